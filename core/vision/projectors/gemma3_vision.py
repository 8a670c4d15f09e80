"""The vision tower of Gemma 3: an image is one square, and each row is the mean of some patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL.Image import Resampling

from ...backend.layers import Floats
from ..image_file import ImageSize
from ..pixels import ImagePlan, PixelBudget, patch_places
from ..projector import PreparedImage, Projector, tile_grid
from ..tower import Tower, TowerTraits, tower_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...backend.interface import Backend, Ops, Rows
    from ...models.model_weights import Weights
    from ..tower import Steps
    from ..tower_sizes import TowerSizes


class Gemma3Projector(Projector):
    begin, end = "<start_of_image>", "<end_of_image>"
    usual_budget = PixelBudget(1, 4096)
    merge_key = ("vision.projector.scale_factor", 4)
    resampling = Resampling.BILINEAR

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        self.sizes = sizes
        self._side, self._grid = tile_grid(weights, sizes)
        scope, traits = weights.scope("v"), TowerTraits(patch_bias=True, n_frames=1)
        self.tower = Tower(sizes, scope, backend, traits)
        self.post_ln = tower_norm(scope, "post_ln", sizes.n_embd, sizes, traits)
        places, side = patch_places(self._grid), self._grid.width
        table = scope.floats("position_embd.weight", side**2, sizes.n_embd)
        self._positions: Floats = table[places[:, 0] * side + places[:, 1]]
        self.norm = weights.norm("mm.soft_emb_norm", sizes.n_embd, sizes.eps)
        self.projection = weights.transposed("mm.input_projection", sizes.n_out, sizes.n_embd)

    def most_rows(self, budget: PixelBudget) -> int:
        return self._grid.n_rows

    def plan(self, size: ImageSize, budget: PixelBudget) -> ImagePlan:
        """An image has as many rows as any other, whatever the budget is."""
        texts = (f"\n\n{self.begin}", f"{self.end}\n\n")
        square = ImageSize(self._side, self._side)
        return ImagePlan((square,), (self._grid,), (self._grid.n_rows,), texts)

    def encode(self, image: PreparedImage) -> Steps[Floats]:
        x = yield from self.tower.encode(image.patches, positions=self._positions)
        n = self.sizes.n_embd
        x = (yield from self.tower.run(self._normed, x, y=n))["y"]
        pooled = x.reshape(-1, self.sizes.merge**2, n).mean(axis=1)
        return (yield from self.tower.run(self._projected, pooled, y=self.sizes.n_out))["y"]

    def _normed(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        return {"y": ops.norm_slices(x, self.post_ln)}

    def _projected(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        return {"y": ops.matmul(ops.norm(x, self.norm), self.projection)}
