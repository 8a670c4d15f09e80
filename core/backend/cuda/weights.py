"""Stored matrices as the kernels read them, laid out when it is known what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ....cuda_kernels import qmm
from ....cuda_kernels.dequant import take_rows
from ....cuda_kernels.embed import GgufTable, embed
from ....cuda_kernels.head_products import HeadMatrices
from ....cuda_kernels.kernel import Array, Launcher
from ....cuda_kernels.mm_bf16_skinny import Plain, PlainMatrix
from ....cuda_kernels.mm_moe import PlainStack
from ....cuda_kernels.qmm_moe import ExpertStack
from ....cuda_kernels.repack import tiles_of
from ...errors import ConfigError
from ..layers import Floats, MatrixPart
from .expanded_types import tile_type
from .sources import height, n_stacked
from .weight_upload import WHOLE, Uploads, common_tile_type

PLAIN = {"BF16": Plain.BF16, "F16": Plain.F16, "F32": Plain.F32}
Stack = ExpertStack | PlainStack


class Use(Enum):
    """What a matrix is for, as the names of its tensors say."""

    PRODUCT = "product"
    TABLE = "table"
    TABLE_AND_HEAD = "table and head"
    GATED = "gated"
    ROUTER = "router"
    EXPERTS_GATED = "gates and ups of experts"
    EXPERTS_DOWN = "experts"
    HEADS = "a matrix for each head"


def use_of(parts: Sequence[MatrixPart], tied: frozenset[str] = frozenset()) -> Use:
    """`tied`: names of the tables that are the output matrix as well."""
    names = [part.tensor.name for part in parts]
    if any("embd" in name or "embed" in name for name in names):
        return Use.TABLE_AND_HEAD if tied.issuperset(names) else Use.TABLE
    if any("attn_k_b" in name or "attn_v_b" in name for name in names):
        return Use.HEADS
    if any("ffn_gate_inp" in name for name in names):
        return Use.ROUTER
    if any("exps" in name or "shexp" in name for name in names):
        return Use.EXPERTS_GATED if any("gate" in name for name in names) else Use.EXPERTS_DOWN
    if len(names) > 1 and all("ffn_" in name for name in names):
        return Use.GATED
    return Use.PRODUCT


class ProductPart(NamedTuple):
    """Outputs `column` … of a product."""

    column: int
    weights: qmm.Matrix | PlainMatrix


class CudaMatrix:
    """Parts whose outputs lie side by side. Each use has a layout of its own, made at first use."""

    def __init__(
        self, uploads: Uploads, parts: Sequence[MatrixPart], use: Use = Use.PRODUCT
    ) -> None:
        self.uploads, self.parts, self.use = uploads, list(parts), use

    def prepare(self) -> None:
        """Lay it out for what it is for."""
        if self.use is Use.TABLE:
            _ = self.table
        elif self.use is Use.ROUTER:
            _ = self.floats, self.bias
        elif self.use in (Use.EXPERTS_GATED, Use.EXPERTS_DOWN):
            _ = self.stack
        elif self.use is Use.HEADS:
            _ = self.of_heads
        elif self.use is not Use.GATED or self.gated is None:
            _ = self.pieces
        if self.uploads.device.has_memory:
            for part in self.parts:
                part.tensor.release()

    @property
    def n_out(self) -> int:
        return height(self.parts)

    @property
    def n_in(self) -> int:
        return self.parts[0].tensor.shape[-1]

    @property
    def is_in_tiles(self) -> bool:
        """As an embedding, because it is the output matrix as well."""
        return self.use is Use.TABLE_AND_HEAD and self.plain is None

    def look_up(self, launcher: Launcher, ids: Array, x: Array) -> None:
        """x = the rows of int32 ids."""
        if self.is_in_tiles:
            (piece,) = self.pieces
            assert isinstance(piece.weights, qmm.Matrix), "not plain"
            take_rows(launcher, piece.weights, ids, x)
        else:
            embed(launcher, self.table, ids, x)

    @cached_property
    def table(self) -> GgufTable:
        """For `embed`: rows as in the file."""
        if len(self.parts) > 1:
            raise ConfigError("an embedding of several tensors cannot be looked up on CUDA")
        if self.use is Use.TABLE_AND_HEAD and self.n_in % WHOLE == 0:
            (piece,) = self.pieces
            if isinstance(piece.weights, PlainMatrix):
                rows = self.uploads.device.as_bytes(piece.weights.weights)
                return GgufTable(rows, piece.weights.kind.name, self.n_in)
        return self.uploads.table(self.parts[0])

    @cached_property
    def pieces(self) -> list[ProductPart]:
        """For products: neighbours of one type are one matrix, and one launch."""
        made, column = [], 0
        for _, group in groupby(self.parts, _kept_as):
            parts = list(group)
            made.append(ProductPart(column, self._product(parts)))
            column += height(parts)
        return made

    @cached_property
    def gated(self) -> qmm.Matrix | None:
        """For `gated_ffn`, if its kernel can take this: gates and ups in tiles of one type."""
        kind = common_tile_type(self.parts)
        if kind is None or self.n_out % 16:
            return None
        return self._tiles(kind, self.parts, gated=True)

    @cached_property
    def stack(self) -> Stack:
        """Experts one behind the other; a matrix without that dimension is one expert."""
        parts, n_expert = self.parts, n_stacked(self.parts[0])
        kinds = {part.tensor.format.name for part in parts}
        kind, plain = common_tile_type(parts), min(kinds)
        if kind is None and not (
            kinds < {"BF16", "F16"} and all(part.scale is None for part in parts)
        ):
            raise ConfigError(
                f"--device cuda: experts of {' and '.join(sorted(kinds))} in "
                f"{parts[0].tensor.name} cannot be run; quantise them: spec convert quantize"
            )
        bias = self._put(stacked_biases(parts, n_expert))
        if kind is None:
            rows = self.uploads.plain(parts, as_stored=True)
            rows = rows.reshape(n_expert, self.n_out, -1)
            return PlainStack(rows, PLAIN[plain], bias)
        gated = self.use is Use.EXPERTS_GATED
        weights = self.uploads.tiles(kind, parts, gated=gated)
        tiles = tiles_of(kind, self.n_out, self.n_in)
        scale = self._put(stacked_scales(parts, n_expert))
        return ExpertStack(tiles, n_expert, weights, scale, bias)

    @cached_property
    def of_heads(self) -> HeadMatrices:
        """One behind the other; what is quantised becomes float32."""
        (part,) = self.parts
        rows = self.uploads.plain(self.parts, as_stored=_is_kept(part))
        kind = PLAIN[part.tensor.format.name] if _is_kept(part) else Plain.F32
        return HeadMatrices(rows.reshape(n_stacked(part), self.n_out, -1), kind, self.n_in)

    @property
    def plain(self) -> PlainMatrix | None:
        """If all of it is one matrix that is not quantised."""
        (first, *others) = self.pieces
        return first.weights if not others and isinstance(first.weights, PlainMatrix) else None

    @cached_property
    def floats(self) -> Array:
        """For a router: float32 rows, padded to whole 16 bytes."""
        return self.uploads.plain(self.parts, as_stored=False)

    @cached_property
    def bias(self) -> Array | None:
        return self._put(joined_biases(self.parts))

    def _product(self, parts: list[MatrixPart]) -> qmm.Matrix | PlainMatrix:
        kind = common_tile_type(parts)
        if kind is not None:
            return self._tiles(kind, parts)
        name = _kept_as(parts[0])
        weights = self.uploads.plain(parts, as_stored=_is_kept(parts[0]))
        return PlainMatrix(weights, PLAIN[name], self._put(joined_biases(parts)))

    def _tiles(self, kind: str, parts: list[MatrixPart], *, gated: bool = False) -> qmm.Matrix:
        """Scales and biases stay in the order of the file."""
        weights = self.uploads.tiles(kind, parts, gated=gated)
        beside = (self._put(joined_scales(parts)), self._put(joined_biases(parts)))
        return qmm.Matrix(tiles_of(kind, height(parts), self.n_in), weights, *beside)

    def _put(self, values: Floats | None) -> Array | None:
        return None if values is None else self.uploads.put(values)


def _is_kept(part: MatrixPart) -> bool:
    """A plain type with a kernel of its own."""
    return part.tensor.format.name in PLAIN and part.scale is None


def _kept_as(part: MatrixPart) -> str:
    """The type on the device."""
    name = part.tensor.format.name
    return tile_type(name) or (name if _is_kept(part) else "F32")


def ordered_bias(part: MatrixPart) -> Floats | None:
    if part.bias is None or part.row_order is None:
        return part.bias
    return part.bias[part.row_order]


def joined_scales(parts: Sequence[MatrixPart]) -> Floats | None:
    """Of all rows of all parts."""
    if all(part.scale is None for part in parts):
        return None
    scales = [1.0 if part.scale is None else float(part.scale[0]) for part in parts]
    return np.repeat(np.array(scales, np.float32), [part.tensor.shape[-2] for part in parts])


def joined_biases(parts: Sequence[MatrixPart]) -> Floats | None:
    if all(part.bias is None for part in parts):
        return None
    found = [ordered_bias(part) for part in parts]
    return np.concatenate(
        [
            np.zeros(part.tensor.shape[-2], np.float32) if bias is None else bias
            for part, bias in zip(parts, found, strict=True)
        ]
    )


def stacked_scales(parts: Sequence[MatrixPart], n_expert: int) -> Floats | None:
    """Of all rows of each expert, in the order of the file."""
    if all(part.scale is None for part in parts):
        return None
    columns = []
    for part in parts:
        own = np.ones(1, np.float32) if part.scale is None else part.scale
        column = np.broadcast_to(own.reshape(-1, 1), (n_expert, part.tensor.shape[-2]))
        columns.append(column)
    return np.ascontiguousarray(np.concatenate(columns, axis=1), np.float32)


def stacked_biases(parts: Sequence[MatrixPart], n_expert: int) -> Floats | None:
    if all(part.bias is None for part in parts):
        return None
    columns = []
    for part in parts:
        shape = n_expert, part.tensor.shape[-2]
        own = np.zeros(shape, np.float32) if part.bias is None else part.bias.reshape(shape)
        columns.append(own)
    return np.ascontiguousarray(np.concatenate(columns, axis=1), np.float32)
