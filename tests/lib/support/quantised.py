"""Random quantised matrices for kernel tests, as kernels want them and in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from shim.machine import Machine

from nextn.core.gguf.quants import dequantize
from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import Matrix, Workspace
from nextn.cuda_kernels.repack import repack, tiles_of

from .blocks import form_of, random_blocks
from .packed_rows import empty_packed, pack

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix as a file has it."""

    form: str
    width: int
    rows: NDArray[np.uint8]  # (rows, bytes of a row)

    @property
    def values(self) -> Doubles:
        shape = len(self.rows), self.width
        return dequantize(self.rows.reshape(-1), form_of(self.form), shape).astype(np.float64)

    def matrix(
        self,
        machine: Machine,
        order: NDArray[np.intp] | None = None,
        scale: NDArray[np.float32] | None = None,
        bias: NDArray[np.float32] | None = None,
    ) -> Matrix:
        rows = self.rows if order is None else self.rows[order]
        tiles = tiles_of(self.form, len(rows), self.width)
        weights = machine.put(repack(self.form, rows, self.width))
        extra = [None if array is None else machine.put(array) for array in (scale, bias)]
        return Matrix(tiles, weights, *extra)


def stored(form: str, rows: int, width: int, seed: int = 0) -> Stored:
    return Stored(form, width, random_blocks(form, rows, width, seed).reshape(rows, -1))


def normal_rows(tokens: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def put_packed(machine: Machine, x: NDArray[np.float32]) -> PackedRows:
    return _put(machine, pack(x))


def empty_rows(machine: Machine, tokens: int, width: int) -> PackedRows:
    return _put(machine, empty_packed(tokens, width))


def _put(machine: Machine, packed: PackedRows) -> PackedRows:
    return PackedRows(machine.put(packed.q), machine.put(packed.d), machine.put(packed.s))


def get_packed(machine: Machine, packed: PackedRows) -> PackedRows:
    return PackedRows(machine.get(packed.q), machine.get(packed.d), machine.get(packed.s))


def workspace(machine: Machine, tokens: int, rows: int, hidden: int = 0) -> Workspace:
    """Of the exact size."""
    partials = Workspace.partials_size(tokens, machine.launcher.n_processors)
    counters = np.zeros(Workspace.counters_size(tokens, rows), np.int32)
    scratch = machine.garbage((tokens, hidden)) if hidden else None
    return Workspace(machine.garbage(partials), machine.put(counters), scratch)


def relative_error(y: NDArray[np.floating], exact: Doubles) -> float:
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))
