"""Every tensor type a GGUF file may hold: block sizes, and how to get floats back.

These dequantisers define what the bytes mean (bit-equal to the `gguf` package, tested). They
are not fast; backends have kernels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from . import blocks_32, blocks_codebook, blocks_k, blocks_plain

Dequantizer = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

_CHUNK_ELEMENTS = 1 << 18  # temporaries of the widest format stay near 10 MB


class BlockFormat(Struct, frozen=True):
    name: str
    type_id: int
    block_size: int  # elements
    block_bytes: int
    dequantize: Dequantizer  # (n_blocks, block_bytes) -> (n_blocks, block_size)

    def n_bytes(self, n_elements: int) -> int:
        """Of whole blocks; the caller has checked that rows are whole blocks."""
        return n_elements // self.block_size * self.block_bytes


_ALL = (
    BlockFormat("F32", 0, 1, 4, blocks_plain.read_as("<f4")),
    BlockFormat("F16", 1, 1, 2, blocks_plain.read_as("<f2")),
    BlockFormat("Q4_0", 2, 32, 18, blocks_32.dequantize_q4_0),
    BlockFormat("Q4_1", 3, 32, 20, blocks_32.dequantize_q4_1),
    BlockFormat("Q5_0", 6, 32, 22, blocks_32.dequantize_q5_0),
    BlockFormat("Q5_1", 7, 32, 24, blocks_32.dequantize_q5_1),
    BlockFormat("Q8_0", 8, 32, 34, blocks_32.dequantize_q8_0),
    BlockFormat("Q8_1", 9, 32, 36, blocks_32.dequantize_q8_1),
    BlockFormat("Q2_K", 10, 256, 84, blocks_k.dequantize_q2_k),
    BlockFormat("Q3_K", 11, 256, 110, blocks_k.dequantize_q3_k),
    BlockFormat("Q4_K", 12, 256, 144, blocks_k.dequantize_q4_k),
    BlockFormat("Q5_K", 13, 256, 176, blocks_k.dequantize_q5_k),
    BlockFormat("Q6_K", 14, 256, 210, blocks_k.dequantize_q6_k),
    BlockFormat("Q8_K", 15, 256, 292, blocks_k.dequantize_q8_k),
    BlockFormat("IQ2_XXS", 16, 256, 66, blocks_codebook.dequantize_iq2_xxs),
    BlockFormat("IQ2_XS", 17, 256, 74, blocks_codebook.dequantize_iq2_xs),
    BlockFormat("IQ3_XXS", 18, 256, 98, blocks_codebook.dequantize_iq3_xxs),
    BlockFormat("IQ1_S", 19, 256, 50, blocks_codebook.dequantize_iq1_s),
    BlockFormat("IQ4_NL", 20, 32, 18, blocks_32.dequantize_iq4_nl),
    BlockFormat("IQ3_S", 21, 256, 110, blocks_codebook.dequantize_iq3_s),
    BlockFormat("IQ2_S", 22, 256, 82, blocks_codebook.dequantize_iq2_s),
    BlockFormat("IQ4_XS", 23, 256, 136, blocks_k.dequantize_iq4_xs),
    BlockFormat("I8", 24, 1, 1, blocks_plain.read_as("<i1")),
    BlockFormat("I16", 25, 1, 2, blocks_plain.read_as("<i2")),
    BlockFormat("I32", 26, 1, 4, blocks_plain.read_as("<i4")),
    BlockFormat("I64", 27, 1, 8, blocks_plain.read_as("<i8")),
    BlockFormat("F64", 28, 1, 8, blocks_plain.read_as("<f8")),
    BlockFormat("IQ1_M", 29, 256, 56, blocks_codebook.dequantize_iq1_m),
    BlockFormat("BF16", 30, 1, 2, blocks_plain.dequantize_bf16),
    BlockFormat("TQ1_0", 34, 256, 54, blocks_k.dequantize_tq1_0),
    BlockFormat("TQ2_0", 35, 256, 66, blocks_k.dequantize_tq2_0),
    BlockFormat("MXFP4", 39, 32, 17, blocks_32.dequantize_mxfp4),
    BlockFormat("NVFP4", 40, 64, 36, blocks_32.dequantize_nvfp4),
    BlockFormat("Q1_0", 41, 128, 18, blocks_32.dequantize_q1_0),
    BlockFormat("Q2_0", 42, 64, 18, blocks_32.dequantize_q2_0),
)

FORMATS: dict[int, BlockFormat] = {fmt.type_id: fmt for fmt in _ALL}

# Types that ggml has dropped; their names are for the error message.
REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

_BY_NAME: dict[str, BlockFormat] = {fmt.name: fmt for fmt in _ALL}


def find_format(name: str) -> BlockFormat:
    """By its ggml name, in any case. A wrong name is the caller's mistake: KeyError."""
    return _BY_NAME[name.upper()]


def dequantize(
    data: NDArray[np.uint8], fmt: BlockFormat, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """A fresh array of `shape`; `data` is the tensor's bytes, flat."""
    n_elements = math.prod(shape)
    if data.size != fmt.n_bytes(n_elements) or n_elements % fmt.block_size:
        raise ValueError(f"{data.size} bytes of {fmt.name} cannot have shape {shape}")
    blocks = data.reshape(-1, fmt.block_bytes)
    out = np.empty((len(blocks), fmt.block_size), np.float32)
    step = max(1, _CHUNK_ELEMENTS // fmt.block_size)
    # Damaged scales give infinities and NaN, which the caller has to check for.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = fmt.dequantize(blocks[start : start + step])
    return out.reshape(shape)
