"""Rows of numbers as the bytes of a type, and stored floats back: native functions, compiled once
and kept in the kernel cache."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...core.backend.cpu.emit import F32, I16, I32, LANES, Emitter, Value, vector
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16
from ...core.backend.cpu.machine_code import Kernels, Writer
from ...core.backend.cpu.simd import Simd, best_set
from ...core.gguf.quants import BlockFormat
from .block_writers import WRITERS
from .codebook_writers import LAYOUTS, quantize_codebook
from .sixteen_blocks import MAGNITUDE
from .ternary_writers import TERNARY, quantize_ternary

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
CompileReport = Callable[[int, int], None]

VECTOR: Final = 16  # widening takes whole vectors
FLOAT_TYPES: Final = ("F32", "F16", "BF16")
ENCODED: Final = (*FLOAT_TYPES, *WRITERS)
QUANTISED: Final = (*WRITERS, *LAYOUTS, *TERNARY)
LARGEST_HALF: Final = 65504.0
# Types that store a value itself as a half float, or a scale that is no smaller than some value.
HALVES: Final = frozenset(QUANTISED) - {"MXFP4"} | {"F16"}
SLAB_ELEMENTS: Final = 1 << 18  # 1 MB as float32: its work stays in the second level of the cache


def encode(rows: Floats, fmt: BlockFormat) -> Bytes:
    """The bytes of whole rows of finite numbers, quantised without importance."""
    if fmt.name in FLOAT_TYPES:
        return narrowed(rows, fmt)
    out = np.empty(fmt.n_bytes(rows.size), np.uint8)
    _quantizer(fmt.name).quantize(fmt, np.ascontiguousarray(rows, np.float32), None, out)
    return out


def prepare(names: Iterable[str]) -> None:
    """Compile what these types need; without it the first call of each does."""
    for name in sorted(set(names) & WRITERS.keys()):
        _quantizer(name)


def narrowed(values: Floats, fmt: BlockFormat) -> Bytes:
    """The bytes as F32, F16 or BF16, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32).reshape(-1)
    if fmt.name == "F32":
        return values.view(np.uint8)
    if fmt.name == "F16":
        return values.astype("<f2").view(np.uint8)
    bits = values.view(np.uint32)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return halves.view(np.uint8)


class NativeQuantizer:
    """The quantisers of some formats. Calls release Python's lock; those of codebooks and ternary
    types are numpy."""

    def __init__(
        self, formats: Iterable[str], report: CompileReport | None = None, simd: Simd | None = None
    ) -> None:
        self._kernels = Kernels(simd or best_set())
        writers = {f"quantize_{name.lower()}": WRITERS[name] for name in formats if name in WRITERS}
        writers |= {f"widen_{name.lower()}": write for name, write in WIDENERS.items()}
        keys = {name: f"{name}_{_digest()}" for name in writers}
        addresses = self._kernels.get({keys[name]: writers[name] for name in writers}, report)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
        self._functions: dict[str, Any] = {n: kind(addresses[key]) for n, key in keys.items()}

    def quantize(
        self, fmt: BlockFormat, rows: Floats, importance: Floats | None, out: Bytes
    ) -> None:
        """Whole rows of one matrix; `importance` has a number for each column."""
        if fmt.name in LAYOUTS:
            out[:] = quantize_codebook(LAYOUTS[fmt.name], rows, importance)
            return
        if fmt.name in TERNARY:
            out[:] = quantize_ternary(fmt.name, rows, importance)
            return
        at = 0 if importance is None else importance.ctypes.data
        counts = rows.size // fmt.block_size, rows.shape[-1] // fmt.block_size
        name = f"quantize_{fmt.name.lower()}"
        self._call(name, rows.ctypes.data, at, out.ctypes.data, *counts)

    def widen(self, kind: str, stored: Bytes, out: Floats) -> float:
        """Stored F16, BF16 or F32 to `out`, of a multiple of 16 elements; returns the largest
        magnitude, NaN if there is one."""
        largest = np.zeros(1, np.float32)
        at = stored.ctypes.data, out.ctypes.data, out.size, largest.ctypes.data
        self._call(f"widen_{kind.lower()}", *at)
        return float(largest[0])

    def _call(self, name: str, *words: int) -> None:
        arguments = np.array(words, np.int64)
        self._functions[name](arguments.ctypes.data, 0, 1)


@cache
def _quantizer(name: str) -> NativeQuantizer:
    return NativeQuantizer([name])


@cache
def _digest() -> str:
    """A hash of the kernels' sources, so that a changed kernel is never run as it was."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _widen_f16(e: Emitter, source: Value, at: Value) -> Value:
    return e.simd.from_half(e, e.load(vector(I16), source + at * 2, 2))


def _widen_bf16(e: Emitter, source: Value, at: Value) -> Value:
    return (e.load(vector(I16), source + at * 2, 2).widen(I32X16) << 16).bits(F32X16)


def _widen_f32(e: Emitter, source: Value, at: Value) -> Value:
    return e.load(F32X16, source + at * 4)


def _widener(load: Callable[[Emitter, Value, Value], Value]) -> Writer:
    """Arguments: source, target, number of elements (of whole vectors), where to put the largest
    magnitude. NaN and infinity are larger than all numbers when read as integers."""

    def write(e: Emitter) -> None:
        source, target, n, largest_at = e.words(e.parameters[0], 4)
        largest = e.variable(e.const(I32X16, 0))
        with e.range(0, n, LANES) as i:
            x = load(e, source, i)
            e.store(x, target + i * 4)
            size = x.bits(I32X16) & MAGNITUDE
            largest.set((size > largest.get()).select(size, largest.get()))
        found = e.call("llvm.vector.reduce.smax.v16i32", I32, largest.get())
        e.store(found.bits(F32), largest_at)
        e.finish()

    return write


WIDENERS: dict[str, Writer] = {
    "F16": _widener(_widen_f16),
    "BF16": _widener(_widen_bf16),
    "F32": _widener(_widen_f32),
}
