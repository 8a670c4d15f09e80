"""Keys and values of attention layers, in pages, as the kernels read and write them.

A layer has two to four arrays of its own, without gaps (H key-value heads):

    keys          (pages, H, page_len, key_dim)         half floats, or int8
    key_scales    (pages, H, page_len, key_dim / 32)    half floats, if keys are int8
    values        (pages, H, page_len, value_dim)       half floats, or int8
    value_scales  (pages, H, page_len, value_dim / 32)  half floats, if values are int8

So a page of a layer is one piece of each array, of `page_bytes`, which is all that copying a page
has to know. Cell c of sequence b is cell c % page_len of page `pages[b, c // page_len]`. `page_len`
is a multiple of 16; from 64 on, pages are read in the longest pieces.

int8 elements are multiples of a half-float scale for each 32 of a cell and head: 1 / 127 of the
largest. Half floats end at 65504, infinities included. What is no number makes a key's scale, or
element, NaN. In a value it becomes 0, and the cell's whole key NaN: a row that sees the cell gets
NaN, one that does not see it cannot be reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .kernel import Array
from .shapes import require_shape

SCALE_BLOCK = 32  # elements of a head that share a scale
CELL_GROUP = 16  # cells: a page is a multiple
LARGEST_HEAD = 576
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvHeads:
    """Keys and values of a layer and cell."""

    n_kv_heads: int
    key_dim: int
    value_dim: int  # 0: there are none
    int8_keys: bool = False
    int8_values: bool = False

    def __post_init__(self) -> None:
        for name, dim, is_int8 in (
            ("keys", self.key_dim, self.int8_keys),
            ("values", self.value_dim, self.int8_values),
        ):
            step = SCALE_BLOCK if is_int8 else 16
            if not dim and name == "values":
                continue
            if dim % step or not 0 < dim <= LARGEST_HEAD:
                raise ValueError(
                    f"{'int8' if is_int8 else 'half-float'} {name} of {dim} elements: "
                    f"kernels take multiples of {step} up to {LARGEST_HEAD}"
                )

    @property
    def of_one_head(self) -> KvHeads:
        """Kernels are made for the sizes of a head, not for their number."""
        return replace(self, n_kv_heads=1)

    def arrays(self, n_pages: int, page_len: int) -> Iterator[tuple[str, Shape, str]]:
        """Name, shape and numpy dtype of what a layer has."""
        cells = n_pages, self.n_kv_heads, page_len
        for name, dim, is_int8 in (
            ("key", self.key_dim, self.int8_keys),
            ("value", self.value_dim, self.int8_values),
        ):
            if not dim:
                continue
            yield f"{name}s", (*cells, dim), "int8" if is_int8 else "float16"
            if is_int8:
                yield f"{name}_scales", (*cells, dim // SCALE_BLOCK), "float16"

    def page_bytes(self, page_len: int) -> dict[str, int]:
        """Of each array."""
        sizes = {"int8": 1, "float16": 2}
        return {
            name: math.prod(shape) * sizes[dtype] for name, shape, dtype in self.arrays(1, page_len)
        }


@dataclass(frozen=True, slots=True)
class KvPages:
    """The arrays of a layer."""

    heads: KvHeads
    keys: Array
    values: Array | None = None
    key_scales: Array | None = None
    value_scales: Array | None = None

    def __post_init__(self) -> None:
        wanted = dict.fromkeys(("keys", "key_scales", "values", "value_scales"), None) | {
            name: shape for name, shape, _ in self.heads.arrays(*self.size)
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if (array is None) != (shape is None):
                raise ValueError(f"{name}: {'missing' if shape else 'not in such a layer'}")
            if shape is not None:
                require_shape(name, array, shape)
        if self.page_len % CELL_GROUP or not self.page_len:
            raise ValueError(
                f"pages of {self.page_len} cells: a multiple of {CELL_GROUP} is needed"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Pages, and cells of one."""
        return int(self.keys.shape[0]), int(self.keys.shape[2])

    @property
    def page_len(self) -> int:
        return self.size[1]
