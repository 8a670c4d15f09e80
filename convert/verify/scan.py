"""Every tensor of a file, looked through once: NaN, infinity, and weights that no model has.

Of a quantised tensor only the scales are read. The largest of them says what the largest weight
can be; where that is absurd, its block is dequantised to say what it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.gguf.non_finite import SUSPECTS, find_non_finite
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import Tensor

CHUNK_BYTES: Final = 1 << 24
# Trained matrices stay below 100; vectors (norms, biases) may hold thousands.
ABSURD_MATRIX: Final = 1e4
ABSURD_VECTOR: Final = 1e6
# Divisors of angles: 1e30 stands for dimensions that do not turn (Gemma 4).
_ROPE_FACTORS: Final = ("rope_freqs.", "rope_factors_")
ScanProgress = Callable[[str, float], None]


class BlockScale(NamedTuple):
    """A float at the start of something in a block, and the largest number it multiplies."""

    at: int
    most: float
    dtype: str = "<u2"


# (place, largest factor) of half floats: two where they add up, and of codebook types a bound.
_HALVES: Final[dict[str, list[tuple[int, float]]]] = {
    "F16": [(0, 1)], "Q4_0": [(0, 8)], "Q4_1": [(0, 30), (2, 2)], "Q5_0": [(0, 16)],
    "Q5_1": [(0, 62), (2, 2)], "Q8_0": [(0, 128)], "Q1_0": [(0, 1)], "Q2_0": [(0, 2)],
    "Q2_K": [(80, 90), (82, 30)], "Q3_K": [(108, 128)], "Q4_K": [(0, 1890), (2, 126)],
    "Q5_K": [(0, 3906), (2, 126)], "Q6_K": [(208, 4096)], "IQ1_S": [(0, 32)],
    "IQ2_XXS": [(0, 256)], "IQ2_XS": [(0, 256)], "IQ2_S": [(0, 256)], "IQ3_XXS": [(0, 1024)],
    "IQ3_S": [(0, 1024)], "IQ4_NL": [(0, 127)], "IQ4_XS": [(0, 4096)], "TQ1_0": [(52, 1)],
    "TQ2_0": [(64, 2)],
}  # fmt: skip
_SCALES: Final = {
    "F32": (BlockScale(0, 1, "<u4"),),
    "BF16": (BlockScale(0, 1, "bf16"),),
    **{name: tuple(BlockScale(*scale) for scale in scales) for name, scales in _HALVES.items()},
}


class NumberFault(Struct, frozen=True):
    tensor: str
    what: str

    def __str__(self) -> str:
        return f"tensor {self.tensor} {self.what}"


class Scanned(Struct):
    faults: list[NumberFault]
    suspicious: list[NumberFault]  # strange, but it may be meant
    n_tensors: int
    n_bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.n_bytes / self.seconds if self.seconds else 0.0


def scan(file: GgufFile, progress: ScanProgress = lambda _what, _done: None) -> Scanned:
    total = sum(tensor.n_bytes for tensor in file.tensors.values()) or 1
    out = Scanned([], [], len(file.tensors), total, 0.0)
    start, done = time.perf_counter(), 0
    for tensor in file.tensors.values():
        progress("reading tensors", done / total)
        fault, strange = faults_of(tensor)
        out.faults += [fault] if fault else []
        out.suspicious += [strange] if strange else []
        done += tensor.n_bytes
        tensor.release()
    progress("reading tensors", 1.0)
    out.seconds = time.perf_counter() - start
    return out


def faults_of(tensor: Tensor) -> tuple[NumberFault | None, NumberFault | None]:
    if not tensor.n_elements:
        return None, None
    scales = _SCALES.get(tensor.format.name)
    if scales is None:
        return _non_finite(tensor), None
    bound, block = _largest(tensor, scales)
    if not np.isfinite(bound):
        return _non_finite(tensor), None
    if bound == 0 and len(tensor.shape) > 1:
        return None, NumberFault(tensor.name, "is all zero")
    limit = ABSURD_MATRIX if len(tensor.shape) > 1 else ABSURD_VECTOR
    if tensor.name.startswith(_ROPE_FACTORS):
        limit = np.inf
    if bound > limit:
        return _absurd(tensor, block, limit), None
    return None, None


def _largest(tensor: Tensor, scales: tuple[BlockScale, ...]) -> tuple[float, int]:
    """The largest weight there can be, and its block. NaN and infinity are larger than all."""
    best, place, first = -1.0, 0, 0
    for blocks in _chunks(tensor):
        for scale in scales:
            value, at = _largest_of(blocks, scale)
            if value > best:
                best, place = value, first + at
        first += len(blocks)
    return best, place


def _largest_of(blocks: NDArray[np.uint8], scale: BlockScale) -> tuple[float, int]:
    """The largest number: without the sign, a float's bits are in its value's order, NaN last."""
    dtype = "<u2" if scale.dtype == "bf16" else scale.dtype
    size = np.dtype(dtype).itemsize
    # Where they lie, one per block: copying them together takes four times as long.
    bits: NDArray[Any] = np.ndarray(
        (len(blocks),), dtype, np.ascontiguousarray(blocks), scale.at, (blocks.shape[1],)
    )
    mask = bits.dtype.type((1 << (8 * size - 1)) - 1)
    magnitudes = bits & mask
    at = int(magnitudes.argmax())
    value = _decode(int(magnitudes[at]), scale.dtype)
    return (float(value) * scale.most if np.isfinite(value) else np.inf), at


def _decode(bits: int, kind: str) -> Any:
    if kind == "bf16":
        return np.uint32(bits << 16).view(np.float32)
    return np.uint32(bits).view(np.float32) if kind == "<u4" else np.uint16(bits).view(np.float16)


def _chunks(tensor: Tensor) -> Iterator[NDArray[np.uint8]]:
    blocks = tensor.data.reshape(-1, tensor.format.block_bytes)
    step = max(1, CHUNK_BYTES // tensor.format.block_bytes)
    for start in range(0, len(blocks), step):
        yield blocks[start : start + step]


def _non_finite(tensor: Tensor) -> NumberFault | None:
    if tensor.format.name not in SUSPECTS:
        return None
    at = find_non_finite(tensor)
    return (
        None
        if at is None
        else NumberFault(tensor.name, f"has NaN or infinity at {_place(tensor, at)}")
    )


def _absurd(tensor: Tensor, block: int, limit: float) -> NumberFault | None:
    """The fault of the block with the largest scale, if a number of it uses that."""
    fmt = tensor.format
    data = tensor.data.reshape(-1, fmt.block_bytes)[block : block + 1]
    values = np.abs(fmt.dequantize(np.ascontiguousarray(data))[0])
    at = int(values.argmax())
    if values[at] <= limit:
        return None
    where = _place(tensor, block * fmt.block_size + at)
    return NumberFault(
        tensor.name,
        f"holds {values[at]:.3g} at {where}, far beyond what is ever trained: the file is damaged",
    )


def _place(tensor: Tensor, flat: int) -> str:
    return "[" + ", ".join(map(str, np.unravel_index(flat, tensor.shape))) + "]"
