"""KV pages and recurrent states on the device, and saving one sequence of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

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
from ....cuda_kernels.page_copy import (
    PageArrays,
    copy_pages,
    gather_pages,
    page_table,
    scatter_pages,
)
from ...errors import ConfigError
from ..interface import SlotImage
from ..layers import DeltaRule, DeltaShape, HeadOrder, KvShape, KvType, KvTypes, StateShape
from .device_contract import Device, Numpy, Shape
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

    def snapshot_parts(self, n_pending: int) -> dict[str, tuple[int, Shape]]:
        return snapshot_parts(self._shape, self._n_layers, n_pending)

    def snapshot_words(self, n_pending: int) -> int:
        return snapshot_words(self._shape, self._n_layers, n_pending)

    def gdn_shape(self, delta: DeltaRule) -> GdnShape:
        return gdn_shape(delta.shape, self.window, tiled=delta.order is HeadOrder.TILED)

    def delta_layer(self, i: int) -> GdnState:
        assert self._delta is not None, "the layer's shape was among those of the state"
        return self._delta.layer(i)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if sources and self.kv:
            there = self._numbers(sources), self._numbers(targets)
            copy_pages(self._device.launcher, self._pages, *there)

    def save(self, slot: int, pages: Sequence[int], n_cells: int, n_pending: int) -> SlotImage:
        """By two launches and one transfer."""
        used = list(pages)[: -(-n_cells // self.page_len)]
        image = _Image(self, len(used), n_pending)
        there = self._device.empty((image.n_words,), "float32")
        launcher = self._device.launcher
        if self._delta is not None:
            words = there[: image.n_delta_words]
            state_save(launcher, self._shape, self._delta, slot, n_pending, words)
        if image.has_pages:
            bytes_of_pages = self._device.as_bytes(there)[image.first_page_byte :]
            gather_pages(launcher, self._pages, self._numbers(used), bytes_of_pages)
        return image.parts(self._device.get(there), n_cells)

    def load(self, slot: int, pages: Sequence[int], image: SlotImage) -> None:
        n_pending = image["delta.keys"].shape[1] if self._delta is not None else 0
        n_pages = next((len(part) for name, part in image.items() if name.startswith("kv.")), 0)
        whole = _Image(self, n_pages, n_pending)
        there = self._device.put(whole.joined(image))
        launcher = self._device.launcher
        if self._delta is not None:
            words = there[: whole.n_delta_words]
            state_load(launcher, self._shape, self._delta, slot, n_pending, words)
        if whole.has_pages:
            bytes_of_pages = self._device.as_bytes(there)[whole.first_page_byte :]
            targets = self._numbers(list(pages)[:n_pages])
            scatter_pages(launcher, self._pages, targets, bytes_of_pages)

    @cached_property
    def _pages(self) -> PageArrays:
        arrays, sizes = [], []
        for kv in self.kv:
            page_bytes = kv.heads.page_bytes(self.page_len)
            for name, array in _arrays(kv).items():
                arrays.append(array)
                sizes.append(page_bytes[name])
        table = page_table(self._device.launcher, arrays, sizes)
        return PageArrays(tuple(sizes), self._device.put(np.array(table, np.int64)))

    def _numbers(self, numbers: Sequence[int]) -> Array:
        return self._device.put(np.array(numbers, np.int32))

    def copy(self, source: int, target: int, n_pending: int) -> None:
        if self._delta is not None and source != target:
            launcher = self._device.launcher
            state_copy(launcher, self._shape, self._delta, source, target, n_pending)


class _Image:
    """A saved sequence as one array of 32-bit words: its recurrent state, then its pages."""

    def __init__(self, state: CudaState, n_pages: int, n_pending: int) -> None:
        self._state, self._n_pages = state, n_pages
        self._delta: dict[str, tuple[int, Shape]] = {}
        self.n_delta_words = 0
        if state.is_recurrent:
            self._delta = state.snapshot_parts(n_pending)
            self.n_delta_words = state.snapshot_words(n_pending)
        # Copies are of 16 bytes each.
        self.first_page_byte = -(-self.n_delta_words // 4) * 16
        n_bytes = sum(
            n_pages * size
            for kv in state.kv
            for size in kv.heads.page_bytes(state.page_len).values()
        )
        self.n_words = (self.first_page_byte + n_bytes) // 4
        self.has_pages = n_bytes > 0

    def parts(self, words: Numpy, n_cells: int) -> SlotImage:
        """Copies, so that what the device wrote to can be given out again."""
        image: SlotImage = {}
        for name, pages in self._cells(words):
            image[name] = pages.copy()
            if self._n_pages and (end := n_cells % self._state.page_len):
                image[name][-1][:, end:] = 0  # a rejected draft or another text
        if self._delta:
            image["delta.header"] = words[:HEADER].copy()
        for name, (first, size) in self._delta.items():
            image[f"delta.{name}"] = words[first : first + math.prod(size)].reshape(size).copy()
        return image

    def joined(self, image: SlotImage) -> Numpy:
        words = np.empty(self.n_words, np.float32)
        for name, pages in self._cells(words):
            pages[...] = image[name]
        if self._delta:
            words[:HEADER] = image["delta.header"]
        for name, (first, size) in self._delta.items():
            words[first : first + math.prod(size)] = image[f"delta.{name}"].reshape(-1)
        return words

    def _cells(self, words: Numpy) -> Iterator[tuple[str, Numpy]]:
        """The pages of each array, by the array's name in an image."""
        raw, first = words.view(np.uint8), self.first_page_byte
        for i, kv in enumerate(self._state.kv):
            for name, shape, dtype in kv.heads.arrays(self._n_pages, self._state.page_len):
                end = first + math.prod(shape) * np.dtype(dtype).itemsize
                yield f"kv.{i}.{name}", raw[first:end].view(dtype).reshape(shape)
                first = end


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
