"""Metadata as plain values, long arrays shortened."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ...core.gguf.metadata import Metadata
from ...core.gguf.types import ValueType

SHOWN: Final = 16  # elements of an array: per-layer arrays of small models are whole
_SHOWN_TEXT: Final = 2000


def plain_metadata(metadata: Metadata) -> dict[str, Any]:
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
