"""Which type a tensor of a head gets, and its bytes in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError, ModelError
from ...core.gguf.quants import BlockFormat, find_format
from ..heads.head import HeadTensor
from ..heads.values import Floats
from .small_blocks import ENCODERS

AS_IS: Final = "as-is"
_FLOATS: Final = ("F32", "F16", "BF16")
TYPES: Final = (AS_IS, *(name.lower() for name in (*_FLOATS, *ENCODERS)))
_AT_ONCE: Final = 1 << 16  # numbers; a multiple of all block sizes
# Read as floats by everybody, whatever the rest of a file is.
_ALWAYS_F32: Final = ("norm", "ffn_gate_inp", "attn_sinks", "exp_probs_b", "indexer.k_norm")


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    type_name: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern:
            raise ConfigError(f"{text!r} is not PATTERN=TYPE, as in 'ffn_.*=q8_0'")
        try:
            return cls(re.compile(pattern), check_type(name))
        except re.error as error:
            raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from None


def check_type(name: str) -> str:
    if name.lower() not in TYPES:
        raise ConfigError(f"{name!r} is not a type for a head (known: {', '.join(TYPES)})")
    return name.lower()


@dataclass(frozen=True, slots=True)
class TypeChoice:
    wanted: str = AS_IS
    rules: Sequence[Rule] = ()  # the first that matches

    def of(self, name: str, tensor: HeadTensor) -> BlockFormat:
        """`name` is the tensor's full name, which rules are matched with."""
        rule = next((rule for rule in self.rules if rule.pattern.search(name)), None)
        if rule is not None:
            return self._fit(rule.type_name, tensor, name, is_rule=True)
        if is_kept_float(tensor):
            # A head from a GGUF keeps what it was stored as; others are written as F32.
            return tensor.kept if tensor.place is not None else find_format("F32")
        return self._fit(self.wanted, tensor, name, is_rule=False)

    def _fit(self, wanted: str, tensor: HeadTensor, name: str, *, is_rule: bool) -> BlockFormat:
        form = tensor.kept if wanted == AS_IS else find_format(wanted)
        if tensor.shape[-1] % form.block_size == 0:
            return form
        if is_rule:
            raise ConfigError(
                f"{name} cannot be {wanted}: its rows of {tensor.shape[-1]} numbers are no whole "
                f"blocks of {form.block_size}"
            )
        return find_format("F16")


def is_kept_float(tensor: HeadTensor) -> bool:
    is_vector = sum(n > 1 for n in tensor.shape) < 2
    return (
        is_vector
        or not tensor.stem.endswith(".weight")
        or any(part in tensor.stem for part in _ALWAYS_F32)
    )


def encoded(tensor: HeadTensor, form: BlockFormat) -> Callable[[], Iterator[NDArray[Any]]]:
    """Its bytes, when they are asked for."""

    most = 65504.0 if form.name == "F16" else np.inf

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


def encode(values: Floats, form: BlockFormat) -> NDArray[Any]:
    """Whole rows in a type. The one place that K-quants would be called from."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if form.name == "F32":
        return flat
    with np.errstate(over="ignore", invalid="ignore"):
        if form.name == "F16":
            return flat.astype(np.float16)
        if form.name == "BF16":
            return to_bfloat16(flat)
        return ENCODERS[form.name](flat.reshape(-1, form.block_size))


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 64
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
