"""Metadata of a file that gets a head, or loses it: counts, and every array with a value per layer.

All else keeps its place, its type and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...core.errors import ModelError
from ...core.gguf.metadata import Metadata
from ...core.gguf.reader import GgufFile
from ...core.gguf.types import Typed, ValueType
from .model_parts import NEXTN, ModelParts

_ATTENTION: Final = frozenset(
    {"attention.head_count", "attention.head_count_kv", "attention.key_length",
     "attention.value_length", "rope.dimension_count"}
)  # fmt: skip
_FFN: Final = frozenset(
    {"feed_forward_length", "expert_feed_forward_length", "expert_shared_feed_forward_length",
     "expert_count", "expert_used_count"}
)  # fmt: skip
# Values for a block of a head where its source has none.
_PLAIN: Final[Mapping[str, Any]] = {
    "attention.sliding_window_pattern": False,
    "attention.recurrent_layers": False,
    "swiglu_clamp_exp": 0.0,
    "swiglu_clamp_shexp": 0.0,
    "attention.compress_ratios": 0,
}
LAYER_KEYS: Final = (*sorted(_ATTENTION), *sorted(_FFN), *_PLAIN)

Entries = dict[str, Typed]


def entries_of(metadata: Metadata) -> Entries:
    """Entries as they were read, without those on how a set of shards is divided."""
    return {key: metadata.entry(key) for key in metadata if not key.startswith("split.")}


def with_head(
    file: GgufFile,
    parts: ModelParts,
    n_heads: int,
    known: Mapping[str, Sequence[Any]],
    twin: Callable[[int, str], int | None],
) -> Entries:
    """`known`: values of the new blocks by key. `twin`: which block of the trunk a new one is
    built like, in its attention or its "ffn"."""

    def of_heads(key: str, old: Sequence[Any]) -> Sequence[Any]:
        blocks = range(n_heads)
        return known.get(key) or [_guess(key, old, block, twin, file.label) for block in blocks]

    entries = _of_blocks(file, parts, n_heads, of_heads)
    return _with_nextn(entries, f"{parts.architecture}.", n_heads)


def without_head(file: GgufFile, parts: ModelParts) -> Entries:
    entries = _of_blocks(file, parts, 0, lambda key, old: ())
    entries.pop(f"{parts.architecture}.{NEXTN}", None)
    return entries


def _of_blocks(
    file: GgufFile,
    parts: ModelParts,
    n_heads: int,
    of_heads: Callable[[str, Sequence[Any]], Sequence[Any]],
) -> Entries:
    """Counts and arrays of the trunk and of so many heads, whose values `of_heads` returns."""
    prefix = f"{parts.architecture}."
    entries = entries_of(file.metadata)
    for key in LAYER_KEYS:
        entry = entries.get(prefix + key)
        if entry is None or entry.type is not ValueType.ARRAY:
            continue
        if len(entry.value) in {parts.n_trunk, parts.n_blocks}:
            old = list(entry.value)[: parts.n_trunk]
            values = _as_before(entry, [*old, *of_heads(key, old)])
            entries[prefix + key] = Typed(entry.type, values, entry.element)
    count = prefix + "block_count"
    entries[count] = Typed(entries[count].type, parts.n_trunk + n_heads)
    return entries


def _guess(
    key: str,
    old: Sequence[Any],
    block: int,
    twin: Callable[[int, str], int | None],
    label: str,
) -> Any:
    if key in _PLAIN:
        return _PLAIN[key]
    layer = twin(block, "ffn" if key in _FFN else "attention")
    if layer is None:
        raise ModelError(
            f"{label}: {key} has a value per layer, and no layer is built like block {block} of "
            f"the head: this head is of another model"
        )
    return old[layer]


def _as_before(entry: Typed, values: Sequence[Any]) -> list[Any]:
    """Bools where there were bools; integers where a pattern was written with these."""
    if entry.element is ValueType.BOOL:
        return [bool(value) for value in values]
    if entry.element in (ValueType.F32, ValueType.F64):
        return [float(value) for value in values]
    return [int(value) for value in values]


def _with_nextn(entries: Entries, prefix: str, n_heads: int) -> Entries:
    """Entries with the number of heads in its old place, or behind the architecture's last key."""
    key, value = prefix + NEXTN, Typed(ValueType.U32, n_heads)
    if key in entries:
        return entries | {key: Typed(entries[key].type, n_heads)}
    last = max(i for i, name in enumerate(entries) if name.startswith(prefix))
    items = list(entries.items())
    return dict([*items[: last + 1], (key, value), *items[last + 1 :]])
