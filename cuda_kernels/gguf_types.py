"""Stored types that `include/gguf_blocks.cuh` decodes, and the sizes of their blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GgufType:
    number: int  # ggml's
    block_size: int  # values
    block_bytes: int

    def row_bytes(self, width: int) -> int:
        if width % self.block_size:
            raise ValueError(f"rows of {width} values are not whole blocks of {self.block_size}")
        return width // self.block_size * self.block_bytes


GGUF_TYPES = {
    "F32": GgufType(0, 1, 4),
    "F16": GgufType(1, 1, 2),
    "Q4_0": GgufType(2, 32, 18),
    "Q4_1": GgufType(3, 32, 20),
    "Q5_0": GgufType(6, 32, 22),
    "Q5_1": GgufType(7, 32, 24),
    "Q8_0": GgufType(8, 32, 34),
    "Q2_K": GgufType(10, 256, 84),
    "Q3_K": GgufType(11, 256, 110),
    "Q4_K": GgufType(12, 256, 144),
    "Q5_K": GgufType(13, 256, 176),
    "Q6_K": GgufType(14, 256, 210),
    "IQ4_NL": GgufType(20, 32, 18),
    "IQ4_XS": GgufType(23, 256, 136),
    "BF16": GgufType(30, 1, 2),
    "MXFP4": GgufType(39, 32, 17),
}
