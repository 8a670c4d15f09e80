"""What moves whole sequences: recurrent state of all layers, KV pages of all layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nextn.cuda_kernels.gdn_layout import GdnShape, GdnState
from nextn.cuda_kernels.gdn_state import (
    snapshot_parts,
    snapshot_words,
    state_copy,
    state_load,
    state_save,
)
from nextn.cuda_kernels.page_copy import (
    PageArrays,
    copy_pages,
    gather_pages,
    page_table,
    scatter_pages,
)

from .case import Asked, Case, Work
from .delta_cases import delta_shape
from .models import Sizes
from .place import Place

PAGE = 64  # cells
N_PAGES = 16  # that are copied: 1024 cells


@dataclass
class States:
    """Of two slots, in all layers; a layer's numbers are those of the first, in another order."""

    place: Place
    shape: GdnShape
    n_layers: int

    def __post_init__(self) -> None:
        arrays = {}
        for name, size in self.shape.array_shapes(2).items():
            values = self.place.random.standard_normal((1, *size), np.float32)
            arrays[name] = self.place.tiled(values, self.n_layers)
        arrays["header"] = self.place.zeros((self.n_layers, 2, 2), np.int32)
        self.states = GdnState(**arrays)
        self.state = self.place.get(arrays["state"][:1])[0]

    def snapshot(self, n_pending: int = 0) -> NDArray[np.float32]:
        return np.zeros(snapshot_words(self.shape.layout, self.n_layers, n_pending), np.float32)

    def saved(self, words: NDArray[np.float32]) -> NDArray[np.float32]:
        """The states in a snapshot."""
        first, size = snapshot_parts(self.shape.layout, self.n_layers, 0)["S"]
        return words[first : first + int(np.prod(size))].reshape(size)


def states(sizes: Sizes) -> Iterator[Case]:
    us = 100.0 if sizes.name == "27B" else None
    makes = {"save": _save, "load": _load, "copy": _copy}
    for name, make in makes.items():
        asked = Asked(us=us if name in ("save", "load") else None)
        made = partial(make, shape=delta_shape(sizes), n_layers=sizes.n_delta)
        title = f"{sizes.name} recurrent state, {name}"
        yield Case(title, made, 0.0, asked)


def _save(place: Place, shape: GdnShape, n_layers: int) -> Work:
    s = States(place, shape, n_layers)
    to = place.put(s.snapshot())
    launch = partial(state_save, place.launcher, shape.layout, s.states, 1, 0, to)
    error = partial(_unlike, lambda: s.saved(place.get(to)), s.state[1])
    return Work(launch, 8 * len(s.snapshot()), error=error)


def _load(place: Place, shape: GdnShape, n_layers: int) -> Work:
    s = States(place, shape, n_layers)
    image = place.put(s.snapshot())
    state_save(place.launcher, shape.layout, s.states, 1, 0, image)
    launch = partial(state_load, place.launcher, shape.layout, s.states, 0, 0, image)
    error = partial(_unlike, lambda: place.get(s.states.state[:, 0]), s.state[1])
    return Work(launch, 8 * len(s.snapshot()), error=error)


def _copy(place: Place, shape: GdnShape, n_layers: int) -> Work:
    s = States(place, shape, n_layers)
    launch = partial(state_copy, place.launcher, shape.layout, s.states, 1, 0, 0)
    error = partial(_unlike, lambda: place.get(s.states.state[:, 0]), s.state[1])
    return Work(launch, 8 * len(s.snapshot()), error=error)


def _unlike(found: Callable[[], NDArray[np.float32]], wanted: NDArray[np.float32]) -> float:
    """The part of words that differ, where each layer should be `wanted`."""
    return float((found().view(np.uint32) != wanted.view(np.uint32)).mean())


def pages(sizes: Sizes) -> Iterator[Case]:
    for name in ("copied", "gathered", "scattered"):
        title = f"{sizes.name} {N_PAGES} pages {name}"
        yield Case(title, partial(_pages, sizes=sizes, how=name), tolerance=0.0)


def _pages(place: Place, sizes: Sizes, how: str) -> Work:
    """Pages 1, 3, 5 … to 0, 2, 4 … or to a buffer; or back."""
    size = PAGE * sizes.kv_heads * sizes.head_dim * 2
    n_arrays = 2 * sizes.n_attention
    values = place.random.integers(0, 256, (2 * N_PAGES, size), np.uint8)
    arrays = [place.put(values) for _ in range(n_arrays)]
    table = page_table(place.launcher, arrays, [size] * n_arrays)
    known = PageArrays((size,) * n_arrays, place.put(np.array(table, np.int64)))
    odd, even = (place.put(np.arange(i, 2 * N_PAGES, 2, dtype=np.int32)) for i in (1, 0))
    buffer = place.zeros(known.buffer_bytes(N_PAGES), np.uint8)
    launches = {
        "copied": partial(copy_pages, place.launcher, known, odd, even),
        "gathered": partial(gather_pages, place.launcher, known, odd, buffer),
        "scattered": partial(scatter_pages, place.launcher, known, even, buffer),
    }
    if how == "scattered":
        launches["gathered"]()

    def error() -> float:
        found = place.get(arrays[-1])[::2]
        if how == "gathered":
            found = place.get(buffer)[-found.size :].reshape(found.shape)
        return float((found != values[1::2]).mean())

    return Work(launches[how], 2 * known.buffer_bytes(N_PAGES), error=error)
