"""Quantisers as native functions: compiled once, kept in the kernel cache."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.backend.cpu.compile import Kernels, Writer
from ...core.backend.cpu.simd import SETS, Simd
from ...core.gguf.quants import BlockFormat
from . import blocks_32, blocks_k, widen

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

WRITERS: dict[str, Writer] = {
    "Q4_0": blocks_32.write_q4_0,
    "Q4_1": blocks_32.write_q4_1,
    "Q5_0": blocks_32.write_q5_0,
    "Q5_1": blocks_32.write_q5_1,
    "Q8_0": blocks_32.write_q8_0,
    "IQ4_NL": blocks_32.write_iq4_nl,
    "MXFP4": blocks_32.write_mxfp4,
    "Q2_K": blocks_k.write_q2_k,
    "Q3_K": blocks_k.write_q3_k,
    "Q4_K": blocks_k.write_q4_k,
    "Q5_K": blocks_k.write_q5_k,
    "Q6_K": blocks_k.write_q6_k,
    "IQ4_XS": blocks_k.write_iq4_xs,
}
WIDENERS: dict[str, Writer] = {
    "F16": widen.write_widen_f16,
    "BF16": widen.write_widen_bf16,
    "F32": widen.write_widen_f32,
}
VECTOR = 16  # widening takes whole vectors

Report = Callable[[int, int], None]


class Native:
    """The quantisers of some formats. Calls release Python's lock."""

    def __init__(
        self, formats: Iterable[str], report: Report | None = None, simd: Simd | None = None
    ) -> None:
        self._kernels = Kernels(simd or best_set())
        writers = {f"quantize_{name.lower()}": WRITERS[name] for name in formats}
        writers |= {f"widen_{name.lower()}": write for name, write in WIDENERS.items()}
        keys = {name: f"{name}_{_digest()}" for name in writers}
        addresses = self._kernels.get({keys[name]: writers[name] for name in writers}, report)
        word = ctypes.c_int64
        kind = ctypes.CFUNCTYPE(None, word, word, word)
        self._functions: dict[str, Any] = {n: kind(addresses[key]) for n, key in keys.items()}

    def quantize(
        self, fmt: BlockFormat, rows: Floats, importance: Floats | None, out: Bytes
    ) -> None:
        """Whole rows of one matrix; `importance` has a number for each column."""
        self._call(
            f"quantize_{fmt.name.lower()}",
            rows.ctypes.data,
            0 if importance is None else importance.ctypes.data,
            out.ctypes.data,
            rows.size // fmt.block_size,
            rows.shape[-1] // fmt.block_size,
        )

    def widen(self, kind: str, stored: Bytes, out: Floats) -> float:
        """Stored F16, BF16 or F32 to `out`, of a multiple of 16 elements; returns the largest
        magnitude, NaN if there is one."""
        largest = np.zeros(1, np.float32)
        self._call(
            f"widen_{kind.lower()}",
            stored.ctypes.data,
            out.ctypes.data,
            out.size,
            largest.ctypes.data,
        )
        return float(largest[0])

    def _call(self, name: str, *words: int) -> None:
        arguments = np.array(words, np.int64)
        self._functions[name](arguments.ctypes.data, 0, 1)


def best_set() -> Simd:
    """The first is the best, and the last needs nothing."""
    return next(kind for kind in SETS.values() if kind.is_available())()


@cache
def _digest() -> str:
    """Of the sources that the code comes from, so that a changed one is never run as it was."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
