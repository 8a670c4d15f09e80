"""KV pages and recurrent state as the CPU kernels want them, and saving one sequence of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...errors import ConfigError
from ..interface import SlotImage, StateRoom
from ..layers import KvShape, KvType, KvTypes, RecurrentShape, StateShape
from .emit import LANES
from .kernels.cell_types import make_keys, make_values
from .kernels.cells import Cells, Keys, Values
from .kernels.cells_latent import LatentKeys, LatentValues, padded_width
from .memory import aligned


class TiledKvLayer(Struct):
    """Pages as their types lay them out, see kernels/cells.py."""

    keys: NDArray[Any]  # (pages, Hkv, …)
    values: NDArray[Any]
    key_cells: Keys
    value_cells: Values


class TiledRecurrentLayer(Struct):
    states: NDArray[np.float32]  # (slots, Hv, Dv / 16, Dk, 16)
    ring: NDArray[np.float32]  # (slots, kernel - 1 + window, channels) raw convolution inputs
    keys: NDArray[np.float32]  # (slots, Hk, window, Dk) factors of the last window
    updates: NDArray[np.float32]  # (slots, Hv, window, Dv)
    decays: NDArray[np.float32]  # (slots, Hv, window), or (slots, Hv, window, Dk)

    window: int

    def parts(self, slot: int, n_pending: int) -> dict[str, NDArray[np.float32]]:
        """What matters of a slot: views, in which it can also be changed."""
        n_ring = self.ring.shape[1] - self.window + n_pending
        views = {"states": self.states[slot], "ring": self.ring[slot, :n_ring]}
        factors = ("keys", "updates", "decays")
        return views | {name: getattr(self, name)[slot, :, :n_pending] for name in factors}


class CpuState:
    def __init__(self, shape: StateShape, kv_types: KvTypes, room: StateRoom) -> None:
        page_len = room.page_len
        if page_len % LANES:
            raise ConfigError(f"pages of {page_len} cells: the CPU needs a multiple of {LANES}")
        self.n_pages, self.page_len, self.n_slots = room.n_pages, page_len, room.n_slots
        self.window, self.kv_types = room.window, kv_types
        self.adapter_scales = room.adapter_scales()
        self.is_windowed = [*map(room.has_own_pages, shape.kv)]
        self.kv = [_kv_layer(s, kv_types, room.pages_of(s), page_len) for s in shape.kv]
        self.recurrent = [_recurrent_layer(s, room.n_slots, room.window) for s in shape.recurrent]

    def save(
        self,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        whole = list(pages)[: -(-n_cells // self.page_len)]
        dead = range(n_cells % self.page_len or self.page_len, self.page_len)
        image: SlotImage = {}
        for i, kv in enumerate(self.kv):
            used = list(windowed_pages) if self.is_windowed[i] else whole
            keys, values = kv.keys[used], kv.values[used]
            for cell in dead:  # may hold what a rejected draft or another text left there
                kv.key_cells.clear(keys[-1:], cell)
                kv.value_cells.clear(values[-1:], cell)
            image[f"kv.{i}.keys"], image[f"kv.{i}.values"] = keys, values
        for i, layer in enumerate(self.recurrent):
            for name, part in layer.parts(slot, n_pending).items():
                image[f"delta.{i}.{name}"] = part.copy()
        return image

    def load(
        self,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        for i, kv in enumerate(self.kv):
            own_pages = windowed_pages if self.is_windowed[i] else pages
            used = list(own_pages)[: len(image[f"kv.{i}.keys"])]
            kv.keys[used] = image[f"kv.{i}.keys"]
            kv.values[used] = image[f"kv.{i}.values"]
        for i, layer in enumerate(self.recurrent):
            for name, part in layer.parts(slot, image[f"delta.{i}.keys"].shape[1]).items():
                part[:] = image[f"delta.{i}.{name}"]

    def copy(self, source: int, target: int, n_pending: int) -> None:
        for layer in self.recurrent:
            old, new = layer.parts(source, n_pending), layer.parts(target, n_pending)
            for name, part in new.items():
                part[:] = old[name]

    def copy_pages(
        self, sources: Sequence[int], targets: Sequence[int], *, windowed: bool = False
    ) -> None:
        for i, kv in enumerate(self.kv):
            if self.is_windowed[i] != windowed:
                continue
            kv.keys[list(targets)] = kv.keys[list(sources)]
            kv.values[list(targets)] = kv.values[list(sources)]


def count_state_bytes(
    shape: StateShape, kv_types: KvTypes, page_len: int, window: int
) -> tuple[int, int]:
    """Bytes of a page of all layers, and of a slot."""
    page = sum(
        s.n_kv_heads * cells.head_bytes
        for s in shape.kv
        for cells in _cells_of(s, kv_types, page_len)
    )
    slot = 0
    for s in shape.recurrent:
        ring = (s.kernel - 1 + window) * s.channels
        slot += 4 * (s.state_width + ring + window * s.factor_width)
    return page, slot


def _zeros(kind: Any, *shape: int) -> NDArray[Any]:
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
    made: NDArray[Any] = aligned(n_bytes, zeroed=True).view(kind).reshape(shape)
    return made


def _cells_of(s: KvShape, kv_types: KvTypes, page_len: int) -> tuple[Keys, Values]:
    if not s.value_dim:
        width = padded_width(s.key_dim)
        if kv_types.keys is not KvType.F16:
            raise ConfigError(
                f"--cache-type-k {kv_types.keys.value}: latent attention keeps half floats; "
                "leave the flag out"
            )
        return LatentKeys(page_len, width), LatentValues(page_len, 0, width)
    keys = make_keys(kv_types.keys, page_len, s.key_dim)
    return keys, make_values(kv_types.values, page_len, s.value_dim)


def _kv_layer(s: KvShape, kv_types: KvTypes, n_pages: int, page_len: int) -> TiledKvLayer:
    def pages(cells: Cells) -> NDArray[Any]:
        kind, shape = cells.array_shape()
        return _zeros(kind, n_pages, s.n_kv_heads, *shape)

    keys, values = _cells_of(s, kv_types, page_len)
    return TiledKvLayer(pages(keys), pages(values), keys, values)


def _recurrent_layer(s: RecurrentShape, n_slots: int, window: int) -> TiledRecurrentLayer:
    for what, size in (("values in a head", s.value_dim), ("channels", s.channels)):
        if size % LANES:
            raise ConfigError(
                f"recurrent layers have {size} {what}; the CPU backend needs a multiple of {LANES}"
            )

    def zeros(*shape: int) -> NDArray[np.float32]:
        return _zeros(np.float32, n_slots, *shape)

    return TiledRecurrentLayer(
        states=zeros(s.n_value_heads, s.value_dim // LANES, s.key_dim, LANES),
        ring=zeros(s.kernel - 1 + window, s.channels),
        keys=zeros(s.n_key_heads, window, s.key_dim),
        updates=zeros(s.n_value_heads, window, s.value_dim),
        decays=zeros(s.n_value_heads, window, *((s.decay_dim,) if s.decay_dim > 1 else ())),
        window=window,
    )
