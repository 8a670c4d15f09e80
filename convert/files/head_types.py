"""Which type a tensor of a head gets, and its bytes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.errors import ConfigError, ModelError
from ...core.gguf.quants import BlockFormat, find_format
from ..heads.stored_head import HeadTensor
from ..quantize.model_facts import layer_of
from ..quantize.native_quantizer import ENCODED, HALVES, LARGEST_HALF, encode
from ..quantize.quantize_plan import fitting
from ..quantize.type_rules import KEEP, TypeRule

TYPES: Final = (KEEP, *(name.lower() for name in ENCODED))
_AT_ONCE: Final = 1 << 16  # numbers; a multiple of all block sizes
# All readers expect floats here, whatever the rest of a file is.
_ALWAYS_F32: Final = (
    "norm", "ffn_gate_inp", "attn_sinks", "exp_probs_b", "indexer.k_norm", "indexer_compressor_ape",
    "indexer_compressor_gate", "hc_attn_", "hc_ffn_",
)  # fmt: skip


def check_type(name: str) -> str:
    if name.lower() not in TYPES:
        raise ConfigError(f"--type: {name!r} is not a type for a head (known: {', '.join(TYPES)})")
    return name.lower()


class TypeChoice(Struct, frozen=True):
    wanted: str = KEEP
    rules: Sequence[TypeRule] = ()  # the first that matches

    def of(self, name: str, tensor: HeadTensor, n_layers: int) -> BlockFormat:
        """`name` is the tensor's full name, which rules are matched with."""
        rule = next((rule for rule in self.rules if _fits(rule, name, n_layers)), None)
        is_float = is_kept_float(tensor)
        if rule is not None and not (rule.is_of_head and is_float):
            return self._fit(rule.type, tensor, name, is_rule=not rule.is_of_head)
        if is_float:
            # A head from a GGUF keeps what it was stored as; others are written as F32.
            return tensor.kept if tensor.place is not None else find_format("F32")
        return self._fit(self.wanted, tensor, name, is_rule=False)

    def unused_rules(self, names: Sequence[str], n_layers: int) -> list[str]:
        """Those that fit none of the head's tensors."""
        return [
            rule.text
            for rule in self.rules
            if not any(_fits(rule, name, n_layers) for name in names)
        ]

    def _fit(self, wanted: str, tensor: HeadTensor, name: str, *, is_rule: bool) -> BlockFormat:
        form = tensor.kept if wanted == KEEP else find_format(wanted)
        row = tensor.shape[-1]
        if is_rule and row % form.block_size:
            raise ConfigError(
                f"{name} cannot be {wanted}: its rows of {row} numbers are no whole blocks of "
                f"{form.block_size}"
            )
        return fitting(row, form)[0]


def _fits(rule: TypeRule, name: str, n_layers: int) -> bool:
    """Of a tensor of the head."""
    layer = layer_of(name)
    return rule.fits(name, n_layers, () if layer is None else (layer,))


def is_kept_float(tensor: HeadTensor) -> bool:
    is_vector = sum(n > 1 for n in tensor.shape) < 2
    return (
        is_vector
        or not tensor.stem.endswith(".weight")
        or any(part in tensor.stem for part in _ALWAYS_F32)
    )


def encoded(tensor: HeadTensor, form: BlockFormat) -> Callable[[], Iterator[NDArray[Any]]]:
    """A function that encodes and yields its bytes."""

    most = LARGEST_HALF if form.name in HALVES else np.inf

    def pieces() -> Iterator[NDArray[Any]]:
        for piece in tensor.pieces():
            flat = piece.reshape(-1)
            for start in range(0, flat.size, _AT_ONCE):  # what fits into a cache
                part = flat[start : start + _AT_ONCE]
                size = np.abs(part).max()
                if not size <= most or np.isinf(size):
                    raise ModelError(
                        f"{tensor.stem} of the head holds NaN, infinity or a number that is too "
                        f"large for {form.name}"
                    )
                yield encode(part, form)

    return pieces
