"""The vision towers of Pixtral, Mistral Small 3.1 and later, and Ministral 3: rope over lines and
columns, and a row of its own behind each line but the last."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from ...backend.layers import Floats, PlainActivation
from ...errors import ModelError
from ..image_file import ImageSize
from ..patch_attention import ROPE_BASE
from ..pixels import PixelBudget, fitting_size, patch_places
from ..projector import PreparedImage, Projector
from ..tower import Tower, TowerTraits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...backend.interface import Backend, Ops, Rows
    from ...models.model_weights import Weights
    from ..patch_attention import Places, Turns
    from ..pixels import PatchGrid
    from ..tower import Steps
    from ..tower_sizes import TowerSizes

MAX_SIDE: Final = 1 << 14
_BREAK: Final = "v.token_embd.img_break"
_TRAITS: Final = TowerTraits(
    centred=False, gated=True, biased=False, n_frames=1, pre_norm=True, adjacent_pairs=True
)


class PixtralProjector(Projector):
    begin, end = "", "[IMG_END]"
    usual_budget = PixelBudget(1, 64 * 65 - 1)  # 64 lines of 64 patches, as of Pixtral's authors
    merge_key = ("vision.spatial_merge_size", 1)

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        self.sizes = sizes
        meta, n, n_out = weights.file.metadata, sizes.n_embd, sizes.n_out
        if not meta.bool("use_silu", False):
            raise ModelError(
                f"{weights.file.label}: clip.use_silu is not true, and no other activation of "
                "pixtral can be run"
            )
        self._longest = meta.int("vision.image_size", low=sizes.factor, high=MAX_SIDE)
        self.tower = Tower(sizes, weights.scope("v"), backend, _TRAITS)
        self._joined = sizes.merge**2 * n
        self.norm = None
        if weights.has("mm.input_norm"):
            self.norm = weights.norm("mm.input_norm", n, sizes.eps)
        self.merger = None
        if sizes.merge > 1:
            self.merger = weights.matrix(self._joined, {"mm.patch_merger": n})
        self.first = weights.matrix(n, {"mm.1": n_out})
        self.second = weights.matrix(n_out, {"mm.2": n_out})
        self._break: Floats = np.array(weights.floats(_BREAK, n_out), np.float32)

    def fitting_size(self, size: ImageSize, budget: PixelBudget) -> ImageSize:
        """As it is, but for what is missing from whole rows; shrunk to the longest side that the
        file allows, and further where a budget is less."""
        ratio = max(size.width / self._longest, size.height / self._longest)
        sides = [size.width, size.height]
        if ratio > 1:
            sides = [max(1, math.floor(side / ratio)) for side in sides]
        factor = self.sizes.factor
        width, height = (math.ceil(side / factor) * factor for side in sides)
        found, most = ImageSize(width, height), budget.most
        if self._size_rows(found) < budget.least:
            return fitting_size(size, factor, budget)
        while (surplus := self._size_rows(found) - budget.most) > 0 and most > 1:
            most = max(1, most - surplus)  # the rows behind lines take some of it
            found = fitting_size(size, factor, PixelBudget(1, most))
        return found

    def _size_rows(self, size: ImageSize) -> int:
        lines, width = size.height // self.sizes.factor, size.width // self.sizes.factor
        return lines * (width + 1) - 1

    def n_rows(self, grid: PatchGrid) -> int:
        return grid.n_rows + grid.height // grid.merge - 1

    def encode(self, image: PreparedImage) -> Steps[Floats]:
        turns = alternate_turns(patch_places(image.grid), self.sizes.head_dim)
        x = yield from self.tower.encode(image.patches, turns=turns)
        n, tower = self.sizes.n_embd, self.tower
        if self.norm is not None:
            x = (yield from tower.run(self._normed, x, y=n))["y"]
        if self.merger is not None:  # whose columns have all patches of a channel together
            square = x.reshape(-1, self.sizes.merge**2, n).transpose(0, 2, 1)
            x = (yield from tower.run(self._merged, square.reshape(-1, self._joined), y=n))["y"]
        rows = (yield from tower.run(self._product, x, y=self.sizes.n_out))["y"]
        return self._with_breaks(rows.reshape(-1, image.grid.row_width, self.sizes.n_out))

    def _with_breaks(self, lines: Floats) -> Floats:
        breaks = np.broadcast_to(self._break, (len(lines), 1, self.sizes.n_out))
        joined = np.concatenate([lines, breaks], axis=1)
        return joined.reshape(-1, self.sizes.n_out)[:-1]

    def _normed(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        assert self.norm is not None
        return {"y": ops.norm_slices(x, self.norm)}

    def _merged(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        return {"y": ops.matmul(ops.pack(x), self.merger)}

    def _product(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        # The exact one, whatever the tower's blocks have.
        inner = ops.activate(ops.matmul(ops.pack(x), self.first), PlainActivation.GELU_ERF)
        return {"y": ops.matmul(ops.pack(inner), self.second)}


def alternate_turns(places: Places, head_dim: int) -> Turns:
    """As `turns_of`, with the frequencies of one rope dealt out: every other one is the line's."""
    frequencies = ROPE_BASE ** (-np.arange(0, head_dim, 2) / head_dim)
    of_line, of_column = frequencies[::2], frequencies[1::2]
    angles = np.concatenate([places[:, :1] * of_line, places[:, 1:] * of_column], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
