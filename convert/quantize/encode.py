"""Rows of numbers as the bytes of a type: one way for all that make tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

import numpy as np

from ...core.gguf.quants import BlockFormat
from .native import WRITERS, Bytes, Floats, Native, Report

FLOAT_TYPES: Final = ("F32", "F16", "BF16")
ENCODED: Final = (*FLOAT_TYPES, *WRITERS)


def encode(rows: Floats, fmt: BlockFormat) -> Bytes:
    """Whole rows of finite numbers, without importance."""
    if fmt.name in FLOAT_TYPES:
        return narrowed(rows, fmt)
    out = np.empty(fmt.n_bytes(rows.size), np.uint8)
    _quantiser(fmt.name).quantize(fmt, np.ascontiguousarray(rows, np.float32), None, out)
    return out


def prepare(names: Iterable[str], report: Report | None = None) -> None:
    """Compile what these types need; without it the first call of each does."""
    wanted = sorted(set(names) & WRITERS.keys())
    for done, name in enumerate(wanted):
        if report is not None:
            report(done, len(wanted))
        _quantiser(name)


def narrowed(values: Floats, fmt: BlockFormat) -> Bytes:
    """To F32, F16 or BF16, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32).reshape(-1)
    if fmt.name == "F32":
        return values.view(np.uint8)
    if fmt.name == "F16":
        return values.astype("<f2").view(np.uint8)
    bits = values.view(np.uint32)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return halves.view(np.uint8)


@cache
def _quantiser(name: str) -> Native:
    return Native([name])
