"""Quantisers as native functions: compiled once, kept in the kernel cache."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.backend.cpu.compile import Kernels, Writer
from ...core.backend.cpu.simd import SETS
from ...core.gguf.quants import BlockFormat
from . import blocks_32, blocks_k

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


class Native:
    """The quantisers of some formats. Calls release Python's lock."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        # `SETS` has the best first; the last needs nothing.
        simd = next(kind for kind in SETS.values() if kind.is_available())
        self._kernels = kernels or Kernels(simd())
        self._functions: dict[str, Any] = {}

    def prepare(
        self, names: list[str], report: Callable[[int, int], None] | None = None
    ) -> None:
        wanted = {f"quantize_{name.lower()}_{_digest()}": WRITERS[name] for name in names}
        addresses = self._kernels.get(wanted, report)
        word = ctypes.c_int64
        for name, key in zip(names, wanted, strict=True):
            self._functions[name] = ctypes.CFUNCTYPE(None, word, word, word)(addresses[key])

    def quantize(
        self, fmt: BlockFormat, rows: Floats, importance: Floats | None, out: Bytes
    ) -> None:
        """Whole rows of one tensor; `importance` has a number for each column."""
        n_blocks = rows.size // fmt.block_size
        arguments = np.array(
            [
                rows.ctypes.data,
                0 if importance is None else importance.ctypes.data,
                out.ctypes.data,
                n_blocks,
                rows.shape[-1] // fmt.block_size,
            ],
            np.int64,
        )
        self._functions[fmt.name](arguments.ctypes.data, 0, 1)


@cache
def _digest() -> str:
    """Of the sources that the code comes from, so that a changed one is never run as it was."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
