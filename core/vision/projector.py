"""Projectors: a tower with what makes rows of a prompt of its patches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from ..backend.layers import Floats, PlainActivation
from .pixels import PatchGrid, PixelBudget, fitting_size, normalised, patches_of, resized
from .tower_sizes import TowerSizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..backend.interface import Backend, Ops, Rows
    from ..models.model_weights import Weights
    from .image_file import ImageSize, Pixels
    from .tower import Steps, Tower


class PreparedImage(Struct, frozen=True, eq=False):
    """What a tower reads of an image."""

    patches: Floats  # (patches, 3 * patch^2)
    grid: PatchGrid


class Projector(ABC):
    """One family of mmproj files; `PROJECTORS` has them by the files' word for them."""

    # Tokens around the rows of an image.
    begin: ClassVar[str]
    end: ClassVar[str]
    usual_budget: ClassVar[PixelBudget]

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

    def grid_of(self, size: ImageSize, budget: PixelBudget) -> PatchGrid:
        """Of an image that has not been decoded."""
        fitting = fitting_size(size, self.sizes.factor, budget)
        patch = self.sizes.patch
        return PatchGrid(fitting.height // patch, fitting.width // patch, self.sizes.merge)

    def prepare(self, pixels: Pixels, grid: PatchGrid) -> PreparedImage:
        from .image_file import ImageSize

        patch = self.sizes.patch
        image = resized(pixels, ImageSize(grid.width * patch, grid.height * patch))
        planes = normalised(image, self.sizes.mean, self.sizes.std)
        return PreparedImage(*patches_of(planes, patch, self.sizes.merge))


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
