"""LoRA adapters of a model: files in llama.cpp's layout, added to products and not merged.

A sequence follows each adapter by a scale of its own, so that several are served at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ..backend.layers import Floats, Matrix, MatrixPart, Vector
from ..backend.low_rank import LowRank
from ..errors import ConfigError, ModelError
from ..gguf.reader import GgufFile, open_gguf
from ..gguf.tensors import Tensor
from ..state.fingerprint import model_fingerprint

if TYPE_CHECKING:
    from .model_weights import Preparer

MAX_ADAPTERS: Final = 64
_A, _B = ".lora_a", ".lora_b"
_EMBEDDING: Final = "token_embd.weight"
AdapterPath = str | Path | tuple[str | Path, float]  # with a scale; 1 if there is none


class Adapter(Struct, frozen=True):
    file: GgufFile
    names: frozenset[str]  # of the tensors that it changes
    alpha: float
    task_name: str
    prompt_prefix: str

    @property
    def path(self) -> str:
        return str(self.file.path)

    def factors(self, name: str) -> tuple[Floats, Floats]:
        """a (rank, n_in) and b (n_out, rank), or stacks of these, read anew from the file."""
        a, b = _pair(self.file, name)
        scale = self.alpha / a.shape[-2] if self.alpha else 1.0
        return a.floats(), b.floats() * np.float32(scale)


class AdapterSet:
    """Those of one model, by number."""

    def __init__(self, adapters: Sequence[Adapter], scales: Sequence[float]) -> None:
        """`scales`: of sequences that have none of their own."""
        self.adapters = tuple(adapters)
        self._scales = self.check_scales(scales)

    @classmethod
    def open(cls, paths: Sequence[AdapterPath], model: GgufFile) -> AdapterSet | None:
        pairs = [path if isinstance(path, tuple) else (path, 1.0) for path in paths]
        if len(pairs) > MAX_ADAPTERS:
            raise ConfigError(f"{len(pairs)} LoRA adapters; {MAX_ADAPTERS} at most")
        adapters = [open_adapter(path, model) for path, _ in pairs]
        return cls(adapters, [scale for _, scale in pairs]) if adapters else None

    def __len__(self) -> int:
        return len(self.adapters)

    @property
    def scales(self) -> tuple[float, ...]:
        return self._scales

    def set_scales(self, scales: Sequence[float]) -> None:
        """Of sequences that begin from now on."""
        self._scales = self.check_scales(scales)

    def check_scales(self, scales: Sequence[float]) -> tuple[float, ...]:
        """As float32 numbers; a ConfigError if there are not as many as adapters."""
        if len(scales) != len(self.adapters):
            raise ConfigError(f"{len(scales)} scales for {len(self.adapters)} LoRA adapters")
        with np.errstate(over="ignore"):  # infinity is found below
            made = tuple(float(np.float32(scale)) for scale in scales)
        if not np.isfinite(made).all():
            raise ConfigError(f"scales of LoRA adapters have to be finite, got {list(scales)}")
        return made

    def fingerprint(self, scales: Sequence[float]) -> str:
        """Of what sequences with these scales follow; empty if that is nothing."""
        pairs = zip(self.adapters, scales, strict=True)
        used = [
            f"{model_fingerprint(each.file)}*{float(scale)!r}" for each, scale in pairs if scale
        ]
        return "+".join(used)

    def low_rank(self, name: str) -> LowRank | None:
        """What all adapters add to a tensor."""
        found = [
            (i, *each.factors(name)) for i, each in enumerate(self.adapters) if name in each.names
        ]
        if not found:
            return None
        return LowRank(
            np.concatenate([a for _, a, _ in found], axis=-2),
            np.concatenate([b for *_, b in found], axis=-1),
            np.concatenate([np.full(a.shape[-2], i, np.int64) for i, a, _ in found]),
        )


class AdaptingPreparer:
    """Hands matrices on to another preparer, with what adapters add to them."""

    def __init__(self, inner: Preparer, adapters: AdapterSet) -> None:
        self._inner, self._adapters = inner, adapters
        self.used: set[str] = set()  # names of tensors

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        return self._inner.matrix([self._adapted(part) for part in parts])

    def vector(self, values: Floats) -> Vector:
        return self._inner.vector(values)

    def check_used(self, model: GgufFile, n_layers: int) -> None:
        """A ModelError names a tensor that an adapter changes, and that no product reads."""
        for each in self._adapters.adapters:
            for name in each.names - self.used:
                if not _is_of_head(name, n_layers):
                    raise ModelError(
                        f"{each.file.label}: changes {name}, which is no plain matrix of a product "
                        f"in {model.metadata.architecture} models here; merge the adapter into the "
                        "model first"
                    )

    def _adapted(self, part: MatrixPart) -> MatrixPart:
        name, shape = part.tensor.name, part.tensor.shape
        if name == _EMBEDDING or not _is_product(name, shape):
            return part
        found = self._adapters.low_rank(name)
        if found is None or _target(found.a.shape, found.b.shape) != shape:
            return part
        self.used.add(name)
        return replace(part, low_rank=found)


def open_adapter(path: str | Path, model: GgufFile) -> Adapter:
    """A ModelError if it is no LoRA adapter for this model."""
    file = open_gguf(path)
    meta = file.metadata
    kind = meta.str("adapter.type", "")
    if meta.str("general.type", "") != "adapter" or kind != "lora":
        what = f"its adapter.type is {kind!r}" if kind else "it has no adapter.type"
        raise ModelError(f"{file.label}: is no LoRA adapter: {what}; a whole model goes to -m")
    arch, own = meta.architecture, model.metadata.architecture
    if arch != own:
        raise ModelError(f"{file.label}: is an adapter for {arch} models, and this one is {own}")
    if meta.has("adapter.alora.invocation_tokens"):
        raise ModelError(
            f"{file.label}: begins behind an invocation (aLoRA), which is not supported; only "
            "adapters that hold for a whole text are"
        )
    names = frozenset(name.removesuffix(_A).removesuffix(_B) for name in file.tensors)
    if not names:
        raise ModelError(f"{file.label}: holds no tensors: it changes nothing")
    for name in sorted(names):
        _check_factors(file, model, name)
    return Adapter(
        file,
        names,
        meta.float("adapter.lora.alpha", 0.0, low=0.0, high=1e6),
        meta.str("adapter.lora.task_name", ""),
        meta.str("adapter.lora.prompt_prefix", ""),
    )


def _check_factors(file: GgufFile, model: GgufFile, name: str) -> None:
    a, b = _pair(file, name)
    target = model.tensors.get(name)
    if target is None:
        raise ModelError(
            f"{file.label}: changes {name}, which {model.label} does not have: it was made for "
            "another model"
        )
    _check_shapes(file, name, (a.shape, b.shape, target.shape))
    if not all(np.isfinite(each.floats()).all() for each in (a, b)):
        raise ModelError(f"{file.label}: {name} has numbers that are not finite")


def _pair(file: GgufFile, name: str) -> tuple[Tensor, Tensor]:
    a, b = (file.tensors.get(f"{name}{end}") for end in (_A, _B))
    if a is None or b is None:
        raise ModelError(f"{file.label}: {name} has no {_B if b is None else _A}")
    return a, b


def _check_shapes(
    file: GgufFile, name: str, shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
) -> None:
    a, b, target = shapes
    if name == _EMBEDDING:
        raise ModelError(
            f"{file.label}: changes the embedding of tokens ({name}), which is not supported; "
            "merge the adapter into the model first"
        )
    if not _is_product(name, target):
        raise ModelError(
            f"{file.label}: changes {name}, a stack of matrices, which is not supported; merge the "
            "adapter into the model first"
        )
    fits = len(a) == len(b) == len(target) and a[-2] == b[-1] > 0 and _target(a, b) == target
    if not fits:
        raise ModelError(
            f"{file.label}: {name} has factors of shapes {b} and {a}, and the model's matrix is "
            f"{target}: it was made for another model"
        )


def _is_product(name: str, shape: tuple[int, ...]) -> bool:
    """Of rows with a matrix, or with those of experts."""
    return len(shape) == 2 or (len(shape) == 3 and name.endswith("_exps.weight"))


def _target(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what such factors change."""
    return *b[:-1], a[-1]


def _is_of_head(name: str, n_layers: int) -> bool:
    """Of an MTP head, which may be left out."""
    parts = name.split(".")
    return parts[0] == "blk" and parts[1].isdecimal() and int(parts[1]) >= n_layers


def scales_of(
    adapters: AdapterSet | None, given: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Of a sequence: its own, or those of the set; empty if it follows no adapter."""
    if adapters is None:
        if given:
            raise ConfigError("the model was loaded without LoRA adapters; give them with --lora")
        return ()
    scales = adapters.scales if given is None else adapters.check_scales(given)
    return scales if any(scales) else ()
