"""The vision towers of InternVL: tiles in as many lines and columns as suit the shape of an image,
and the whole of it in the size of a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from ...backend.layers import Floats, PlainActivation
from ..image_file import ImageSize
from ..pixels import ImagePlan, PixelBudget, cut_tiles, patch_places, resized
from ..projector import PreparedImage, Projector, tile_grid
from ..tower import Tower, TowerTraits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...backend.interface import Backend, Ops, Rows
    from ...models.model_weights import Weights
    from ..image_file import Pixels
    from ..tower import Steps
    from ..tower_sizes import TowerSizes

MAX_TILES: Final = 64
_NORM_EPS: Final = 1e-5  # of what is behind the tower, for which the file has no key
_MLP: Final = "mm.model.mlp"


class InternVlProjector(Projector):
    begin, end = "<img>", "</img>"
    usual_budget = PixelBudget(1, 4096)
    merge_key = ("vision.projector.scale_factor", 2)

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        meta, n = weights.file.metadata, sizes.n_embd
        if sizes.activation is PlainActivation.GELU_TANH:
            # The authors' is the exact one, and the file has one word for both.
            sizes = replace(sizes, activation=PlainActivation.GELU_ERF)
        self.sizes = sizes
        self._tile, self._grid = tile_grid(weights, sizes)
        self._least = meta.int("vision.preproc_min_tiles", 1, low=1, high=MAX_TILES)
        self._most = meta.int("vision.preproc_max_tiles", 12, low=1, high=MAX_TILES)
        scope = weights.scope("v")
        # The class token is in front, and has the first position, as in checkpoints. llama.cpp puts
        # it behind the patches and gives all of them the position before their own.
        traits = TowerTraits(patch_bias=True, n_frames=1, scaled=True)
        self.tower = Tower(sizes, scope, backend, traits)
        places, side = patch_places(self._grid), self._grid.width
        table = scope.floats("position_embd.weight", 1 + side**2, n)
        self._first: Floats = (scope.floats("class_embd", n) + table[0])[None]
        self._positions: Floats = table[1 + places[:, 0] * side + places[:, 1]]
        self._joined = sizes.merge**2 * n
        self.norm = weights.biased_norm(f"{_MLP}.0", self._joined, _NORM_EPS)
        n_out = sizes.n_out
        self.first = weights.matrix(self._joined, {f"{_MLP}.1": n_out}, needs_bias=True)
        self.second = weights.matrix(n_out, {f"{_MLP}.3": n_out}, needs_bias=True)

    def plan(self, size: ImageSize, budget: PixelBudget) -> ImagePlan:
        """With as many tiles as the budget has rows for."""
        most = min(self._most, max(1, budget.most // self._grid.n_rows - 1))
        n_lines, n_columns = tiles_for(size, self._tile, min(self._least, most), most)
        n = n_lines * n_columns
        n += n > 1
        cut = ImageSize(n_columns * self._tile, n_lines * self._tile)
        texts = (self.begin, *[""] * (n - 1), self.end)
        tiles = (n_lines, n_columns) if n > 1 else (0, 0)
        return ImagePlan((cut,), (self._grid,) * n, (self._grid.n_rows,) * n, texts, tiles)

    def prepare(self, pixels: Pixels, plan: ImagePlan) -> list[PreparedImage]:
        tiles = cut_tiles(resized(pixels, plan.sizes[0]), self._tile)
        if plan.tiles[0]:
            tiles.append(resized(pixels, ImageSize(self._tile, self._tile)))
        return [self.patches(tile) for tile in tiles]

    def encode(self, image: PreparedImage) -> Steps[Floats]:
        x = yield from self.tower.encode(
            image.patches, positions=self._positions, first=self._first
        )
        joined = np.ascontiguousarray(x[1:]).reshape(-1, self._joined)
        return (yield from self.tower.run(self._pass, joined, y=self.sizes.n_out))["y"]

    def _pass(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        inner = ops.matmul(ops.norm(x, self.norm), self.first)
        packed = ops.pack(ops.activate(inner, PlainActivation.GELU_ERF))
        return {"y": ops.matmul(packed, self.second)}


def tiles_for(size: ImageSize, tile: int, least: int, most: int) -> tuple[int, int]:
    """Lines and columns whose shape is nearest to an image's; of equal ones the most tiles of which
    it fills more than half."""
    ratio, area = size.width / size.height, size.width * size.height
    shapes = [
        (n_lines, n_columns)
        for n_columns in range(1, most + 1)
        for n_lines in range(1, most // n_columns + 1)
        if n_lines * n_columns >= least
    ]
    best, nearest = (1, 1), float("inf")
    for n_lines, n_columns in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
        distance = abs(ratio - n_columns / n_lines)
        fills_half = area > 0.5 * tile**2 * n_lines * n_columns
        if distance < nearest or (distance == nearest and fills_half):
            best, nearest = (n_lines, n_columns), distance
    return best
