"""The vision towers of Idefics3, SmolVLM and SmolVLM2: an image is cut into square tiles, which the
tower reads one by one, and the whole of it in the size of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from PIL.Image import Resampling

from ...backend.layers import Floats
from ..image_file import ImageSize
from ..pixels import ImagePlan, PixelBudget, cut_tiles, patch_places, resized
from ..projector import PreparedImage, Projector, tile_grid
from ..tower import Tower, TowerTraits, tower_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...backend.interface import Backend, Ops, Rows
    from ...models.model_weights import Weights
    from ..image_file import Pixels
    from ..tower import Steps
    from ..tower_sizes import TowerSizes

USUAL_TILES: Final = 4  # on the longer side
MAX_SIDE: Final = 4096  # of an image that is cut, in the authors' code
_AROUND: Final = "<fake_token_around_image>"
_WHOLE: Final = f"{_AROUND}<global-img>"


class Idefics3Projector(Projector):
    begin = end = _AROUND
    usual_budget = PixelBudget(1, 4096)
    merge_key = ("vision.projector.scale_factor", 2)
    resampling = Resampling.LANCZOS

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        self.sizes = sizes
        meta, traits = weights.file.metadata, TowerTraits(patch_bias=True, n_frames=1)
        self._tile, self._grid = tile_grid(weights, sizes)
        usual = min(USUAL_TILES * self._tile, MAX_SIDE)
        self._longest = meta.int("vision.preproc_image_size", usual, low=1, high=MAX_SIDE)
        scope = weights.scope("v")
        self.tower = Tower(sizes, scope, backend, traits)
        self.post_ln = tower_norm(scope, "post_ln", sizes.n_embd, sizes, traits)
        places, side = patch_places(self._grid), self._grid.width
        table = scope.floats("position_embd.weight", side**2, sizes.n_embd)
        self._positions: Floats = table[places[:, 0] * side + places[:, 1]]
        self._joined = sizes.merge**2 * sizes.n_embd
        self.fc = weights.matrix(self._joined, {"mm.model.fc": sizes.n_out})

    def plan(self, size: ImageSize, budget: PixelBudget) -> ImagePlan:
        """With as many tiles as the budget has rows for; the tokens between them come on top."""
        longest = self._longest
        while True:
            first = longest_size(size, longest)
            cut = whole_tiles(first, self._tile)
            tiles = (cut.height // self._tile, cut.width // self._tile)
            n_tiles = tiles[0] * tiles[1]
            if n_tiles == 1:
                tiles, n_tiles = (0, 0), 0
            if (n_tiles + 1) * self._grid.n_rows <= budget.most or longest <= self._tile:
                break
            longest = (math.ceil(longest / self._tile) - 1) * self._tile
        n = n_tiles + 1
        return ImagePlan(
            (first, cut), (self._grid,) * n, (self._grid.n_rows,) * n, tuple(_texts(*tiles)), tiles
        )

    def tiles(self, pixels: Pixels, plan: ImagePlan) -> list[Pixels]:
        cut = cut_tiles(pixels, self._tile) if plan.tiles[0] else []
        return [*cut, resized(pixels, ImageSize(self._tile, self._tile), self.resampling)]

    def encode(self, image: PreparedImage) -> Steps[Floats]:
        x = yield from self.tower.encode(image.patches, positions=self._positions)
        joined = x.reshape(-1, self._joined)
        return (yield from self.tower.run(self._pass, joined, y=self.sizes.n_out))["y"]

    def _pass(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        return {"y": ops.matmul(ops.pack(ops.norm_slices(x, self.post_ln)), self.fc)}


def longest_size(size: ImageSize, longest: int) -> ImageSize:
    """With a longer side of so many pixels; the other one is even then, unless it is 1."""
    ratio = size.width / size.height
    if size.width >= size.height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    return ImageSize(max(width, 1), max(height, 1))


def whole_tiles(size: ImageSize, tile: int) -> ImageSize:
    """Sides that are multiples of a tile's: the longer one first, the other one by its ratio."""
    ratio = size.width / size.height
    if size.width >= size.height:
        width = math.ceil(size.width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(size.height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return ImageSize(max(width, tile), max(height, tile))


def _texts(n_lines: int, n_columns: int) -> Iterator[str]:
    """Before each tile, its line and column, counted from 1; a new line behind each line of tiles
    and one more before the whole."""
    for line in range(n_lines):
        for column in range(n_columns):
            ends_line = "\n" if line and not column else ""
            yield f"{ends_line}{_AROUND}<row_{line + 1}_col_{column + 1}>"
    yield f"\n\n{_WHOLE}" if n_lines else _WHOLE
    yield _AROUND
