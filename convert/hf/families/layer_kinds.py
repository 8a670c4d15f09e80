"""Which layers look through a window: several spellings in config.json, one list per model."""

from __future__ import annotations

from typing import Any, Final

from ....core.gguf.printable import printable
from ..model_config import ModelConfig

WINDOWED: Final = "sliding_attention"
_KNOWN: Final = (WINDOWED, "full_attention")


def windowed_layers(config: ModelConfig, n_layers: int) -> list[bool]:
    """Of the trunk."""
    kinds = config.get("layer_types")
    if kinds is None:
        return _by_pattern(config, n_layers)
    if not isinstance(kinds, list) or len(kinds) < n_layers:
        raise config.error(f"layer_types does not name the {n_layers} layers")
    return [_is_windowed(config, kind) for kind in kinds[:n_layers]]


def windowed_heads(config: ModelConfig, n_layers: int, n_mtp: int, *, default: bool) -> list[bool]:
    """Of MTP heads: named apart, or behind the trunk's."""
    kinds = config.get("mtp_layer_types")
    if not isinstance(kinds, list):
        listed = config.get("layer_types")
        kinds = listed[n_layers:] if isinstance(listed, list) else []
    found = [_is_windowed(config, kind) for kind in kinds[:n_mtp]]
    return found + [default] * (n_mtp - len(found))


def _is_windowed(config: ModelConfig, kind: Any) -> bool:
    if kind not in _KNOWN:
        raise config.error(f"layer_types has {printable(kind)}, expected {' or '.join(_KNOWN)}")
    return bool(kind == WINDOWED)


def _by_pattern(config: ModelConfig, n_layers: int) -> list[bool]:
    """A list of numbers, 1 for a window; a period; or letters, L for a window."""
    pattern = config.get("hybrid_layer_pattern", "sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) >= n_layers:
        return [n == 1 for n in pattern[:n_layers]]
    if isinstance(pattern, str) and pattern:
        return [pattern[i % len(pattern)] == "L" for i in range(n_layers)]
    if type(pattern) is int and pattern > 0:
        return [(i + 1) % pattern != 0 for i in range(n_layers)]
    raise config.error(f"layer_types is missing, and the pattern is {printable(pattern)}")
