"""KV pages and recurrent states on the device, and saving one sequence of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....cuda_kernels.gdn_layout import GdnShape, GdnState
from ....cuda_kernels.gdn_state import (
    HEADER,
    snapshot_parts,
    snapshot_words,
    state_copy,
    state_load,
    state_save,
)
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.kv_pages import KvHeads, KvPages
from ...errors import ConfigError
from ..interface import SlotImage
from ..layers import DeltaRule, DeltaShape, HeadOrder, KvShape, KvType, KvTypes, StateShape
from .device_contract import Device, Numpy
from .step_memory import StepLimits

Sizes = tuple[int, int, int, int]  # pages, cells of one, slots, window


class CudaState:
    def __init__(self, device: Device, shape: StateShape, types: KvTypes, sizes: Sizes) -> None:
        n_pages, self.page_len, n_slots, self.window = sizes
        self.limits = StepLimits.of(*sizes)
        self._device = device
        self.kv = [_kv_pages(device, s, types, n_pages, self.page_len) for s in shape.kv]
        self._delta: GdnState | None = None
        if shape.delta:
            self._n_layers = len(shape.delta)
            self._shape = gdn_shape(shape.delta[0], self.window, tiled=False)
            self._delta = _delta_layers(device, shape.delta, n_slots, self.window)

    @property
    def is_recurrent(self) -> bool:
        return self._delta is not None

    def gdn_shape(self, delta: DeltaRule) -> GdnShape:
        return gdn_shape(delta.shape, self.window, tiled=delta.order is HeadOrder.TILED)

    def delta_layer(self, i: int) -> GdnState:
        assert self._delta is not None, "the layer's shape was among those of the state"
        return self._delta.layer(i)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            for kv in self.kv:
                for array in _arrays(kv).values():
                    self._device.copy(array[target], array[source])

    def save(self, slot: int, pages: Sequence[int], n_cells: int, n_pending: int) -> SlotImage:
        used = list(pages)[: -(-n_cells // self.page_len)]
        image: SlotImage = {}
        for i, kv in enumerate(self.kv):
            for name, array in _arrays(kv).items():
                image[f"kv.{i}.{name}"] = self._cells(array, used, n_cells)
        if self._delta is None:
            return image
        words = self._snapshot(n_pending)
        state_save(self._device.launcher, self._shape, self._delta, slot, n_pending, words)
        saved = self._device.get(words)
        image["delta.header"] = saved[:HEADER].copy()
        for name, (first, size) in snapshot_parts(self._shape, self._n_layers, n_pending).items():
            image[f"delta.{name}"] = saved[first : first + int(np.prod(size))].reshape(size).copy()
        return image

    def _snapshot(self, n_pending: int) -> Array:
        n_words = snapshot_words(self._shape, self._n_layers, n_pending)
        return self._device.empty((n_words,), "float32")

    def _cells(self, array: Array, used: list[int], n_cells: int) -> Numpy:
        """Pages, with zeros where a rejected draft or another text may have left something."""
        found = [self._device.get(array[page]) for page in used]
        if found and (end := n_cells % self.page_len):
            found[-1][:, end:] = 0
        return np.stack(found) if found else self._device.get(array[:0])

    def load(self, slot: int, pages: Sequence[int], image: SlotImage) -> None:
        for i, kv in enumerate(self.kv):
            for name, array in _arrays(kv).items():
                for page, values in zip(pages, image[f"kv.{i}.{name}"], strict=False):
                    self._device.write(array[page], values)
        if self._delta is None:
            return
        n_pending = image["delta.keys"].shape[1]
        parts = snapshot_parts(self._shape, self._n_layers, n_pending)
        words = [image["delta.header"], *(image[f"delta.{name}"].reshape(-1) for name in parts)]
        snapshot = self._device.put(np.concatenate(words))
        state_load(self._device.launcher, self._shape, self._delta, slot, n_pending, snapshot)

    def copy(self, source: int, target: int, n_pending: int) -> None:
        if self._delta is not None and source != target:
            launcher = self._device.launcher
            state_copy(launcher, self._shape, self._delta, source, target, n_pending)


def gdn_shape(s: DeltaShape, window: int, *, tiled: bool) -> GdnShape:
    ring = window + s.kernel - 1
    return GdnShape(s.n_key_heads, s.n_value_heads, s.head_dim, s.kernel, window, ring, tiled)


def count_state_bytes(
    shape: StateShape, types: KvTypes, page_len: int, window: int
) -> tuple[int, int]:
    """Bytes of a page of all layers, and of a slot."""
    page = sum(sum(_heads(s, types).page_bytes(page_len).values()) for s in shape.kv)
    slot = 0
    for s in shape.delta:
        shapes = gdn_shape(s, window, tiled=False).array_shapes(1)
        slot += 4 * sum(int(np.prod(sizes)) for sizes in shapes.values())
    return page, slot


def _heads(s: KvShape, types: KvTypes) -> KvHeads:
    return KvHeads(
        s.n_kv_heads,
        s.key_dim,
        s.value_dim,
        int8_keys=types.keys is KvType.Q8_0,
        int8_values=types.values is KvType.Q8_0,
    )


def _kv_pages(device: Device, s: KvShape, types: KvTypes, n_pages: int, page_len: int) -> KvPages:
    try:
        heads = _heads(s, types)
    except ValueError as error:
        raise ConfigError(f"--device cuda: {error}") from None
    arrays = {
        name: device.zeros(shape, dtype) for name, shape, dtype in heads.arrays(n_pages, page_len)
    }
    return KvPages(heads, **arrays)


def _arrays(kv: KvPages) -> dict[str, Array]:
    found = {
        "keys": kv.keys,
        "key_scales": kv.key_scales,
        "values": kv.values,
        "value_scales": kv.value_scales,
    }
    return {name: array for name, array in found.items() if array is not None}


def _delta_layers(
    device: Device, shapes: Sequence[DeltaShape], n_slots: int, window: int
) -> GdnState:
    if len(set(shapes)) > 1:
        raise ConfigError("--device cuda: the recurrent layers differ in size, which it cannot run")
    try:
        sizes = gdn_shape(shapes[0], window, tiled=False).array_shapes(n_slots)
    except ValueError as error:
        raise ConfigError(f"--device cuda: {error}") from None
    arrays = {
        name: device.zeros((len(shapes), *size), "int32" if name == "header" else "float32")
        for name, size in sizes.items()
    }
    return GdnState(**arrays)
