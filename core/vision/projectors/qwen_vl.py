"""The vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen 3.5: rope over lines and columns,
and four patches to a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ...backend.layers import Floats
from ...errors import ModelError
from ..patch_attention import turns_of, windows_of
from ..pixels import PixelBudget, patch_places
from ..projector import Merger, PreparedImage, Projector
from ..tower import Tower, TowerTraits

if TYPE_CHECKING:
    from ...backend.interface import Backend
    from ...models.model_weights import Weights
    from ..patch_attention import Places
    from ..pixels import PatchGrid
    from ..tower import Groups, Steps
    from ..tower_sizes import TowerSizes

USUAL_WINDOW: Final = 112  # pixels


class Qwen2VlProjector(Projector):
    begin, end = "<|vision_start|>", "<|vision_end|>"
    usual_budget = PixelBudget(8, 4096)  # llama.cpp's
    has_axes = True
    traits: ClassVar[TowerTraits] = TowerTraits()

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        self.sizes = sizes
        self.tower = Tower(sizes, weights.scope("v"), backend, self.traits)
        self.merger = Merger(
            weights, sizes, ("v.post_ln", False), ("mm.0", "mm.2"), centred=self.traits.centred
        )

    def encode(self, image: PreparedImage) -> Steps[Floats]:
        places, deep = patch_places(image.grid), list[Floats]()

        def on_layer(layer: int, x: Floats) -> Steps[None]:
            yield from self._leave(layer, x, deep)

        x = yield from self.tower.encode(
            image.patches,
            turns=turns_of(places, self.sizes.head_dim),
            positions=self._positions(image.grid, places),
            groups_of=self._groups(places),
            on_layer=on_layer,
        )
        rows = yield from self.merger.merge(self.tower, x)
        return np.concatenate([rows, *deep], axis=1)

    def _positions(self, grid: PatchGrid, places: Places) -> Floats | None:
        """What is added to embedded patches."""
        return None

    def _groups(self, places: Places) -> Callable[[int], Groups]:
        """Which patches of a layer see each other: all of them."""
        every = [np.arange(len(places))]
        return lambda _layer: every

    def _leave(self, layer: int, x: Floats, deep: list[Floats]) -> Steps[None]:
        """Add to `deep` what a layer leaves for layers of the text model."""
        yield from ()


class Qwen25VlProjector(Qwen2VlProjector):
    """Most layers see windows alone, which are cut from the top left on."""

    traits = TowerTraits(centred=False, gated=True)

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        super().__init__(sizes, weights, backend)
        meta = weights.file.metadata
        self._pattern = meta.int("vision.n_wa_pattern", low=1, high=sizes.n_layers + 1)
        pixels = meta.int("vision.window_size", USUAL_WINDOW, low=sizes.factor, high=1 << 16)
        self._window = pixels // sizes.factor * sizes.merge  # in patches, of whole rows

    def _groups(self, places: Places) -> Callable[[int], Groups]:
        every, windows = [np.arange(len(places))], windows_of(places, self._window)
        return lambda layer: windows if (layer + 1) % self._pattern else every


class Qwen3VlProjector(Qwen2VlProjector):
    """With a table of positions, and rows of some layers for layers of the text model."""

    traits = TowerTraits(patch_bias=True)

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        super().__init__(sizes, weights, backend)
        self._side = _table_side(weights, sizes)
        table = weights.floats("v.position_embd.weight", self._side**2, sizes.n_embd)
        self._table = np.array(table, np.float32)  # the file may be closed
        self._deep = {
            layer: Merger(
                weights.scope(f"v.deepstack.{layer}"), sizes, ("norm", True), ("fc1", "fc2")
            )
            for layer in deepstack_layers(weights, sizes)
        }

    @classmethod
    def width_of(cls, sizes: TowerSizes, weights: Weights) -> int:
        return sizes.n_out * (1 + len(deepstack_layers(weights, sizes)))

    def _positions(self, grid: PatchGrid, places: Places) -> Floats:
        return interpolated(self._table, self._side, grid, places)

    def _leave(self, layer: int, x: Floats, deep: list[Floats]) -> Steps[None]:
        if layer in self._deep:
            deep.append((yield from self._deep[layer].merge(self.tower, x)))


def deepstack_layers(weights: Weights, sizes: TowerSizes) -> list[int]:
    """The layers of the tower whose rows go to layers of the text model."""
    scope = weights.scope("v")
    return [i for i in range(sizes.n_layers) if scope.has(f"deepstack.{i}.fc1")]


def _table_side(weights: Weights, sizes: TowerSizes) -> int:
    """Of the table of positions, which is square."""
    table = weights.file.tensors.get("v.position_embd.weight")
    if table is None:  # which is about to be reported
        return 1
    n = table.n_elements // sizes.n_embd
    side = math.isqrt(n)
    if side < 1 or side**2 != n:
        raise ModelError(
            f"{weights.file.label}: v.position_embd.weight has {n} positions, expected a square "
            "of them"
        )
    return side


def interpolated(table: Floats, side: int, grid: PatchGrid, places: Places) -> Floats:
    """Rows of a table of `side` lines and columns for each patch of a grid; the corners of both
    meet."""
    total = np.zeros((len(places), table.shape[1]), np.float32)
    lines, columns = (
        _neighbours(n, side, places[:, axis]) for axis, n in enumerate((grid.height, grid.width))
    )
    for line, of_line in lines:
        for column, of_column in columns:
            total += table[line * side + column] * (of_line * of_column)[:, None]
    return total


def _neighbours(
    n: int, side: int, at: NDArray[np.integer[Any]]
) -> list[tuple[NDArray[np.int64], Floats]]:
    """The two entries of a table between which each of n places lies, and their shares."""
    exact = np.linspace(0, side - 1, n)[at]
    low = np.floor(exact).astype(np.int64)
    share = (exact - low).astype(np.float32)
    return [(low, 1 - share), (np.minimum(low + 1, side - 1), share)]
