"""Facts of a GGUF file: blocks by number, and keys that may be wrong or missing."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from ...core.errors import ModelError
from ...core.gguf.metadata import Metadata
from ...core.gguf.reader import GgufFile
from ...core.gguf.types import INTEGERS, ValueType
from ..heads.family_table import find_mtp_family
from ..heads.mtp_family import MtpFamily
from .model_parts import split_name

_WHOLE: Final = INTEGERS | {ValueType.BOOL}
_HUB: Final = re.compile(r"huggingface\.co/([\w.-]+/[\w.-]+)")
_SOURCES: Final = (
    "general.base_model.0.repo_url",
    "general.source.huggingface.repository",
    "general.source.repo_url",
    "general.source.url",
)

SHOWN: Final = 16  # elements of an array: per-layer arrays of small models are whole
_SHOWN_TEXT: Final = 2000


@dataclass
class GgufFacts:
    file: GgufFile
    has_numbers: bool  # False where only headers were read
    faults: list[str] = field(default_factory=list)  # keys that cannot be read

    @cached_property
    def architecture(self) -> str:
        try:
            return self.file.metadata.architecture
        except ModelError as error:
            self._note(error)
            return ""

    @cached_property
    def family(self) -> MtpFamily:
        return find_mtp_family(self.architecture)

    @cached_property
    def blocks(self) -> dict[int, set[str]]:
        """Stems by block: without `.weight`, with any other ending."""
        found: dict[int, set[str]] = {}
        for name in self.file.tensors:
            block, stem = split_name(name)
            if block is not None:
                found.setdefault(block, set()).add(stem.removesuffix(".weight"))
        return dict(sorted(found.items()))

    @cached_property
    def marked(self) -> list[int]:
        """Blocks with tensors that only MTP heads have."""
        return [n for n, stems in self.blocks.items() if any(s.startswith("nextn.") for s in stems)]

    @cached_property
    def n_blocks(self) -> int | None:
        return self.whole("block_count", low=1, high=100_000)

    @cached_property
    def n_nextn(self) -> int:
        return self.whole("nextn_predict_layers", high=100_000) or 0

    @cached_property
    def is_head_only(self) -> bool:
        return bool(self.marked) and not self.trunk_blocks

    @cached_property
    def head_blocks(self) -> list[int]:
        """The blocks that the keys say are heads."""
        if self.n_blocks is None or not 0 < self.n_nextn < self.n_blocks:
            return []
        return list(range(self.n_blocks - self.n_nextn, self.n_blocks))

    @cached_property
    def trunk_blocks(self) -> list[int]:
        heads = set(self.head_blocks) | set(self.marked)
        return [n for n in self.blocks if n not in heads]

    @cached_property
    def source(self) -> str:
        """owner/name of what the file was made from, if it says so."""
        for key in _SOURCES:
            text = self.text(key)
            if found := _HUB.search(text):
                return found[1].removesuffix(".git")
            if key.endswith("repository") and re.fullmatch(r"[\w.-]+/[\w.-]+", text):
                return text
        return ""

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def whole(self, key: str, *, low: int = 0, high: int = 2**31 - 1) -> int | None:
        value: int | None = self._read("int", key, low=low, high=high)
        return value

    def text(self, key: str) -> str:
        return self._read("str", key) or ""

    def array_length(self, key: str) -> int | None:
        """None for a scalar, and for a key that is not there."""
        if not self.architecture or not self.file.metadata.has(key):
            return None
        entry = self.file.metadata.entry(self.file.metadata.full_key(key))
        return len(entry.value) if entry.type is ValueType.ARRAY else None

    def per_block(self, key: str) -> list[Any]:
        """An array, or a scalar as one for every block; empty if it is neither."""
        metadata = self.file.metadata
        if not self.architecture or not metadata.has(key):
            return []
        entry = metadata.entry(metadata.full_key(key))
        if entry.type is ValueType.ARRAY:
            return np.asarray(entry.value).tolist() if entry.element in _WHOLE else []
        return [entry.value] * (self.n_blocks or 0) if entry.type in _WHOLE else []

    def _read(self, kind: str, key: str, **limits: Any) -> Any:
        if not self.architecture and not key.startswith(("general.", "tokenizer.")):
            return None
        try:
            return getattr(self.file.metadata, kind)(key, None, **limits)
        except ModelError as error:
            self._note(error)
            return None

    def _note(self, error: ModelError) -> None:
        text = str(error).removeprefix(f"{self.file.label}: ")
        if text not in self.faults:
            self.faults.append(text)


def ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def plain_metadata(metadata: Metadata) -> dict[str, Any]:
    """Keys and values for JSON, long arrays and texts shortened."""
    return {key: _plain(metadata, key) for key in metadata}


def _plain(metadata: Metadata, key: str) -> Any:
    entry = metadata.entry(key)
    if entry.type is not ValueType.ARRAY:
        value = metadata[key]
        if isinstance(value, str) and len(value) > _SHOWN_TEXT:
            return f"{value[:_SHOWN_TEXT]}... ({len(value)} characters)"
        return _number(value)
    n = len(entry.value)
    some: Any = metadata[key]
    shown = [_number(v.item() if isinstance(v, np.generic) else v) for v in some[:SHOWN]]
    return shown if n <= SHOWN else [*shown, f"... {n} in all"]


def _number(value: Any) -> Any:
    """JSON has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
