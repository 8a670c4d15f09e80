"""Projectors: a tower with what makes rows of a prompt of its patches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct
from PIL.Image import Resampling

from ..backend.layers import Floats, PlainActivation
from ..errors import ModelError
from .image_file import ImageSize
from .pixels import (
    ImagePlan,
    PatchGrid,
    PixelBudget,
    fitting_size,
    normalised,
    patches_of,
    resized,
)
from .tower_sizes import TowerSizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..backend.interface import Backend, Ops, Rows
    from ..models.model_weights import Weights
    from .image_file import Pixels
    from .tower import Steps, Tower


MAX_TILE: Final = 4096  # pixels of its side
MAX_TILE_PATCHES: Final = 128


class PreparedImage(Struct, frozen=True, eq=False):
    """What a tower reads at once: an image, or a tile of it."""

    patches: Floats  # (patches, 3 * patch^2)
    grid: PatchGrid


class Projector(ABC):
    """One family of mmproj files; `PROJECTORS` has them by the files' word for them."""

    # Tokens around the rows of an image; empty for none.
    begin: ClassVar[str]
    end: ClassVar[str]
    usual_budget: ClassVar[PixelBudget]
    # Where the file has the patches of a row's side, and how many there are if it does not say.
    merge_key: ClassVar[tuple[str, int]] = ("vision.spatial_merge_size", 2)
    resampling: ClassVar[Resampling] = Resampling.BICUBIC
    has_axes: ClassVar[bool] = False  # rows have positions in height and width

    sizes: TowerSizes

    @classmethod
    def width_of(cls, sizes: TowerSizes, weights: Weights) -> int:
        """Numbers of a row, with what is added behind layers."""
        return sizes.n_out

    @abstractmethod
    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        """Takes its tensors; `Weights.check` says which are missing. `backend`: None if only that
        is wanted."""

    @abstractmethod
    def encode(self, image: PreparedImage) -> Steps[Floats]:
        """The rows of an image, line by line."""

    def fitting_size(self, size: ImageSize, budget: PixelBudget) -> ImageSize:
        """What an image of some size is resized to."""
        return fitting_size(size, self.sizes.factor, budget)

    def most_rows(self, budget: PixelBudget) -> int:
        """Of an image."""
        return budget.most

    def n_rows(self, grid: PatchGrid) -> int:
        return grid.n_rows

    def plan(self, size: ImageSize, budget: PixelBudget) -> ImagePlan:
        """Of an image that has not been decoded."""
        fitting, patch = self.fitting_size(size, budget), self.sizes.patch
        grid = PatchGrid(fitting.height // patch, fitting.width // patch, self.sizes.merge)
        return ImagePlan((fitting,), (grid,), (self.n_rows(grid),), (self.begin, self.end))

    def prepare(self, pixels: Pixels, plan: ImagePlan) -> list[PreparedImage]:
        """One for each grid of the plan."""
        for size in plan.sizes:
            pixels = resized(pixels, size, self.resampling)
        return [self.patches(tile) for tile in self.tiles(pixels, plan)]

    def tiles(self, pixels: Pixels, plan: ImagePlan) -> list[Pixels]:
        """What the tower reads of a resized image, each by itself."""
        return [pixels]

    def patches(self, pixels: Pixels) -> PreparedImage:
        planes = normalised(pixels, self.sizes.mean, self.sizes.std)
        return PreparedImage(*patches_of(planes, self.sizes.patch, self.sizes.merge))


def tile_grid(weights: Weights, sizes: TowerSizes) -> tuple[int, PatchGrid]:
    """Pixels of the side of a tile, and its patches."""
    tile = weights.file.metadata.int("vision.image_size", low=sizes.factor, high=MAX_TILE)
    side = tile // sizes.patch
    if side > MAX_TILE_PATCHES:  # a table of positions for them would fill the memory
        raise ModelError(
            f"{weights.file.label}: clip.vision.image_size = {tile} is {side} patches of "
            f"clip.vision.patch_size = {sizes.patch}, more than {MAX_TILE_PATCHES}"
        )
    if side % sizes.merge:
        raise ModelError(
            f"{weights.file.label}: clip.vision.image_size = {tile} is {side} patches, which "
            f"clip.vision.projector.scale_factor = {sizes.merge} does not divide"
        )
    return tile, PatchGrid(side, side, sizes.merge)


class Merger:
    """Patches that lie in one square become one row: their norm, then two products."""

    def __init__(
        self, weights: Weights, sizes: TowerSizes, norm: tuple[str, bool], names: tuple[str, str],
        *, centred: bool = True,
    ) -> None:  # fmt: skip
        """`norm`: its name, and whether it goes over all patches of a row at once."""
        self._width, self._n_out = sizes.merge**2 * sizes.n_embd, sizes.n_out
        name, self._norms_joined = norm
        width = self._width if self._norms_joined else sizes.n_embd
        if centred:
            self._norm = weights.biased_norm(name, width, sizes.eps)
        else:
            self._norm = weights.norm(name, width, sizes.eps)
        first, second = names
        self._first = weights.matrix(self._width, {first: self._width}, needs_bias=True)
        self._second = weights.matrix(self._width, {second: self._n_out}, needs_bias=True)

    def merge(self, tower: Tower, patches: Floats) -> Steps[Floats]:
        """Rows (rows, n_out) of patches (patches, n_embd)."""
        joined = patches.reshape(-1, self._width)
        return (yield from tower.run(self._pass, joined, y=self._n_out))["y"]

    def _pass(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        if self._norms_joined:
            packed = ops.norm(x, self._norm)
        else:
            packed = ops.pack(ops.norm_slices(x, self._norm))
        # Qwen's models have the exact one here, whatever the tower's blocks have.
        inner = ops.activate(ops.matmul(packed, self._first), PlainActivation.GELU_ERF)
        return {"y": ops.matmul(ops.pack(inner), self._second)}
