"""Importance matrices: how much each column of a weight matters, as llama-imatrix writes them.

Its GGUF files hold sums of squared inputs and how many went into them; the older `.dat` files hold
the same in a layout of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from ...core.errors import FileFormatError
from ...core.gguf.printable import printable, printable_path
from ...core.gguf.quants import find_format
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.gguf.types import Typed, ValueType, Writable
from ...core.gguf.writer import TensorData

Floats = NDArray[np.float32]
SUMS, COUNTS = ".in_sum2", ".counts"
_LEAST = 1e-6  # added to the relative mean, so that no column has a weight of zero
_MOST_ENTRIES = 1 << 20
_LONGEST_NAME = 1 << 10


class Importance(Struct, frozen=True):
    path: Path
    values: dict[str, Floats]  # by tensor name: (matrices, columns), each row with mean 1
    n_chunks: int
    datasets: list[str] = field(default_factory=list)

    def of(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """(matrices, columns), or None where the file has nothing about the tensor."""
        values = self.values.get(name)
        if values is None:
            return None
        n_matrices = shape[-3] if len(shape) > 2 else 1
        if values.size != n_matrices * shape[-1]:
            # The table's own statistics are those of the output where the two are tied.
            if name == "token_embd.weight":
                return None
            raise FileFormatError(
                f"{printable_path(self.path)}: has {values.size} values for {printable(name)}, "
                f"which needs {n_matrices * shape[-1]}: it was made for another model"
            )
        return values.reshape(n_matrices, shape[-1])


def read_importance(path: Path) -> Importance:
    with open(path, "rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    return _read_gguf(path) if is_gguf else _read_legacy(path)


def _read_gguf(path: Path) -> Importance:
    with open_gguf(path, mmap=False) as source:
        names = [name for name in source.tensors if name.endswith(SUMS)]
        if not names:
            raise FileFormatError(
                f"{source.label}: is no importance matrix: it has no tensors named *{SUMS}"
            )
        values = {name.removesuffix(SUMS): _mean(source, name) for name in names}
        chunks = source.metadata.get("imatrix.chunk_count", 0)
        datasets = source.metadata.get("imatrix.datasets", [])
    n_chunks = chunks if isinstance(chunks, int) else 0
    texts = [str(name) for name in datasets] if isinstance(datasets, list) else []
    return Importance(path, values, n_chunks, texts)


def _mean(source: GgufFile, name: str) -> Floats:
    of = name.removesuffix(SUMS)
    sums, counts = source.tensors[name], source.tensors.get(of + COUNTS)
    if counts is None:
        raise FileFormatError(f"{source.label}: {printable(of + COUNTS)} is missing beside {name}")
    for tensor in (sums, counts):
        if tensor.format.name != "F32":
            raise FileFormatError(
                f"{source.label}: {printable(tensor.name)} is {tensor.format.name}, expected F32"
            )
    if not counts.n_elements or sums.n_elements % counts.n_elements:
        raise FileFormatError(
            f"{source.label}: {printable(name)} has {sums.n_elements} sums for "
            f"{counts.n_elements} counts"
        )
    n = counts.floats().reshape(-1, 1)
    return _scaled(sums.floats().reshape(len(n), -1), n, f"{source.label}: {printable(name)}")


def _scaled(sums: Floats, counts: Floats, what: str) -> Floats:
    """Rows with mean 1; where nothing was counted, or only zeros, all columns are alike."""
    if not np.isfinite(sums).all() or (sums < 0).any() or not np.isfinite(counts).all():
        raise FileFormatError(f"{what}: has values that are negative or no numbers")
    means = sums.mean(axis=1, keepdims=True, dtype=np.float64)
    is_known = (counts > 0) & (means > 0)
    with np.errstate(all="ignore"):
        scaled = np.where(is_known, sums / means, 1.0) + _LEAST
    return np.ascontiguousarray(scaled, np.float32)


def importance_tensors(
    sums: Mapping[str, NDArray[np.float64]], counts: Mapping[str, NDArray[np.int64]]
) -> list[TensorData]:
    """Of an importance matrix, in the order and the shapes of llama-imatrix: where all matrices of
    a tensor have read the same rows, there is one count, as of a plain matrix."""
    found = []
    for name in sorted(sums):
        values, rows = sums[name].astype(np.float32), counts[name].astype(np.float32)
        if len(rows) > 1 and "_exps." not in name:
            values, rows = values.reshape(1, -1), rows[:1]
        for suffix, data in ((SUMS, values), (COUNTS, rows.reshape(-1, 1))):
            shape = data.shape if len(data) > 1 else data.shape[1:]
            found.append(TensorData(name + suffix, shape, find_format("F32"), data))
    return found


def importance_keys(n_chunks: int, chunk_size: int, dataset: str) -> dict[str, Writable]:
    return {
        "general.type": "imatrix",
        "imatrix.datasets": [dataset],
        "imatrix.chunk_count": Typed(ValueType.U32, n_chunks),
        "imatrix.chunk_size": Typed(ValueType.U32, chunk_size),
    }


class _LegacyReader:
    """A `.dat` file, with every length checked."""

    def __init__(self, path: Path) -> None:
        self.data, self.at, self.label = path.read_bytes(), 0, printable_path(path)

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, n: int, what: str) -> bytes:
        if not 0 <= n <= self.left:
            raise FileFormatError(
                f"{self.label}: is no importance matrix, or cut short: {what} needs {n} bytes "
                f"at {self.at}, {self.left} are left"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def integer(self, what: str, low: int, high: int) -> int:
        value: int = struct.unpack("<i", self.take(4, what))[0]
        if not low <= value <= high:
            raise FileFormatError(
                f"{self.label}: is no importance matrix: {what} is {value}, "
                f"expected {low} to {high}"
            )
        return value

    def text(self, what: str, shortest: int, longest: int) -> str:
        length = self.integer(f"length of {what}", shortest, longest)
        return self.take(length, what).decode(errors="replace")


def _read_legacy(path: Path) -> Importance:
    reader, values = _LegacyReader(path), {}
    for _ in range(reader.integer("the number of entries", 1, _MOST_ENTRIES)):
        name = reader.text("a name", 1, _LONGEST_NAME).rstrip("\0")
        n_calls = reader.integer(f"the calls of {printable(name)}", 0, 2**31 - 1)
        n = reader.integer(f"the values of {printable(name)}", 1, 2**31 - 1)
        data = reader.take(4 * n, f"the values of {printable(name)}")
        sums = np.frombuffer(data, "<f4").reshape(1, -1).astype(np.float32)
        counted = np.full((1, 1), max(n_calls, 1), np.float32)
        values[name] = _scaled(sums, counted, f"{reader.label}: {printable(name)}")
    n_chunks, datasets = 0, []
    if reader.left >= 4:  # newer files also hold the number of chunks and the data set
        n_chunks = reader.integer("the number of chunks", -(2**31), 2**31 - 1)
        if reader.left > 4:
            datasets = [reader.text("the data set's name", 0, reader.left - 4)]
    return Importance(path, values, n_chunks, datasets)
