"""Pixels to the patches that a tower reads: resized, normalised, and in the order of its blocks."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from PIL import Image

from ..backend.layers import Floats
from .image_file import ImageSize, Pixels


class PatchGrid(Struct, frozen=True):
    """How many patches lie above each other and side by side, and how many of them become a row."""

    height: int
    width: int
    merge: int  # patches of a row's side

    @property
    def n_patches(self) -> int:
        return self.height * self.width

    @property
    def n_rows(self) -> int:
        """Of a prompt."""
        return self.n_patches // self.merge**2

    @property
    def row_width(self) -> int:
        """Rows side by side."""
        return self.width // self.merge


class ImagePlan(Struct, frozen=True):
    """What becomes of an image, known from its size alone."""

    sizes: tuple[ImageSize, ...]  # that it is resized to, one after the other
    grids: tuple[PatchGrid, ...]  # that the tower reads: the image, or tiles of it
    runs: tuple[int, ...]  # rows of a prompt that each of these becomes
    texts: tuple[str, ...]  # before the first run, between each two, and behind the last one
    tiles: tuple[int, int] = (0, 0)  # how many are above each other and side by side, if there are

    @property
    def n_rows(self) -> int:
        return sum(self.runs)


class PixelBudget(Struct, frozen=True):
    """How many rows of a prompt an image may take."""

    least: int
    most: int


def fitting_size(size: ImageSize, factor: int, budget: PixelBudget) -> ImageSize:
    """The size nearest to an image's whose sides are multiples of `factor`, and that has so many
    squares of that side. A half is rounded to even, as Qwen's own processor does."""
    width, height = size.width, size.height
    rounded = [round(side / factor) * factor for side in (width, height)]
    least, most = budget.least * factor**2, budget.most * factor**2
    if rounded[0] * rounded[1] > most:
        shrink = math.sqrt(width * height / most)
        rounded = [
            max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height)
        ]
    elif rounded[0] * rounded[1] < least:
        grow = math.sqrt(least / (width * height))
        rounded = [math.ceil(side * grow / factor) * factor for side in (width, height)]
    return ImageSize(*rounded)


def resized(
    pixels: Pixels, size: ImageSize, resample: Image.Resampling = Image.Resampling.BICUBIC
) -> Pixels:
    if pixels.shape[:2] == (size.height, size.width):
        return pixels
    image = Image.fromarray(pixels).resize((size.width, size.height), resample)
    return np.asarray(image)


def cut_tiles(pixels: Pixels, side: int) -> list[Pixels]:
    """Squares of that side, of which an image consists, line by line."""
    height, width = pixels.shape[:2]
    return [
        pixels[top : top + side, left : left + side]
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]


def normalised(pixels: Pixels, mean: tuple[float, ...], std: tuple[float, ...]) -> Floats:
    """Levels from 0 to 1, less the mean of their channel, by its deviation: (3, height, width)."""
    levels = pixels.astype(np.float32) * np.float32(1 / 255)
    centre: Floats = np.array(mean, np.float32)
    deviation: Floats = np.array(std, np.float32)
    return ((levels - centre) / deviation).transpose(2, 0, 1)


def patches_of(planes: Floats, patch: int, merge: int) -> tuple[Floats, PatchGrid]:
    """Of planes (3, height, width): a patch in each row, as (channel, y, x). Those that become one
    row of a prompt follow each other, line by line."""
    _, height, width = planes.shape
    grid = PatchGrid(height // patch, width // patch, merge)
    whole = planes[:, : grid.height * patch, : grid.width * patch]
    blocks = whole.reshape(
        3, grid.height // merge, merge, patch, grid.width // merge, merge, patch
    ).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.ascontiguousarray(blocks.reshape(grid.n_patches, 3 * patch**2)), grid


def patch_places(grid: PatchGrid) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Line and column of each patch, in the order of `patches_of`."""
    lines, columns = np.mgrid[: grid.height, : grid.width]
    both = np.stack([lines, columns], axis=-1).reshape(
        grid.height // grid.merge, grid.merge, grid.width // grid.merge, grid.merge, 2
    )
    return both.transpose(0, 2, 1, 3, 4).reshape(-1, 2)
