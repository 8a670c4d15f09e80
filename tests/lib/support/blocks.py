"""Random quantised blocks whose scales are small and finite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nextn.core.gguf.quants import BlockFormat, find_format
from nextn.core.gguf.reader import Tensor

# Byte offsets of half floats in a block.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_XS": (0,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
    "Q1_0": (0,), "Q2_0": (0,), "Q8_1": (0, 2),
}  # fmt: skip


def _dequantize_i8_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    codes, levels = blocks[:, :256].view(np.int8), blocks[:, 256:272].view(np.int8)
    d = np.ascontiguousarray(blocks[:, 272:]).view(np.float32)
    scales = (d * levels.astype(np.float32))[..., None]
    return (scales * codes.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


# What kernels expand codebooks to; no file has it.
I8_K = BlockFormat("I8_K", -1, 256, 276, _dequantize_i8_k)


def form_of(name: str) -> BlockFormat:
    return I8_K if name == "I8_K" else find_format(name)


def random_blocks(type_name: str, n_rows: int, n_in: int, seed: int = 0) -> NDArray[np.uint8]:
    """(rows, blocks, bytes of a block)."""
    rng, form = np.random.default_rng(seed), form_of(type_name)
    shape = (n_rows, n_in // form.block_size)
    if type_name in ("F32", "F16", "BF16"):
        return _floats(rng, type_name, shape)
    raw = rng.integers(0, 256, (*shape, form.block_bytes), dtype=np.uint8)
    for at in HALVES.get(type_name, ()):
        halves = (rng.random(shape) * 0.01 + 0.001).astype(np.float16)
        raw[..., at : at + 2] = halves[..., None].view(np.uint8)
    if type_name in ("I8_K", "Q8_K"):
        at = 272 if type_name == "I8_K" else 0
        scales = (rng.random((*shape, 1)) * 0.01 + 0.001).astype(np.float32)
        raw[..., at : at + 4] = scales.view(np.uint8)
    if type_name == "MXFP4":
        raw[..., 0] = rng.integers(116, 130, shape)
    if type_name == "NVFP4":
        raw[..., :4] = rng.integers(1, 0x50, (*shape, 4))
    if type_name == "IQ1_M":  # its half-float scale is spread over the top bits of four words
        words = raw[..., 48:56].view(np.uint16)
        scale = int(np.float16(0.01).view(np.uint16))
        for i in range(4):
            words[..., i] = (words[..., i] & 0x0FFF) | ((scale >> (4 * i) & 15) << 12)
    return raw


def _floats(rng: np.random.Generator, type_name: str, shape: tuple[int, int]) -> NDArray[np.uint8]:
    values = rng.standard_normal(shape).astype(np.float32)
    if type_name == "F16":
        return values.astype(np.float16)[..., None].view(np.uint8)
    if type_name == "BF16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits[..., None].view(np.uint8)
    return values[..., None].view(np.uint8)


def identity(n: int, first: int = 0, height: int = 0) -> Tensor:
    """A matrix that lets a test see rows as they are; or `height` columns of them from one on."""
    height = height or n
    data = np.eye(n, dtype=np.float32)[first : first + height].view(np.uint8).reshape(-1)
    return Tensor("identity", (height, n), find_format("F32"), data)
