"""KV pages and recurrent states on the device, and saving one sequence of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from ....cuda_kernels.recurrence_parts import MOST_KEY_VALUES
from ....cuda_kernels.state_layout import StateLayout
from ...errors import ConfigError
from ..interface import SlotImage, StateRoom
from ..layers import (
    DeltaRule,
    HeadOrder,
    KvShape,
    KvType,
    KvTypes,
    RecurrentShape,
    StateShape,
)
from .device_contract import Device, Numpy, Shape
from .device_step import DeviceStep
from .step_memory import StepLimits


class CudaState:
    def __init__(self, device: Device, shape: StateShape, types: KvTypes, room: StateRoom) -> None:
        self.page_len, self.window = room.page_len, room.window
        self.limits = StepLimits.of(room)
        self._device = device
        self.is_windowed = [*map(room.has_own_pages, shape.kv)]
        self.kv = [_kv_pages(device, s, types, room.pages_of(s), self.page_len) for s in shape.kv]
        # By page table: the layers that use it, with their numbers.
        self.of_tables: list[dict[int, KvPages]] = [
            {i: kv for i, kv in enumerate(self.kv) if self.is_windowed[i] == windowed}
            for windowed in (False, True)
        ]
        self._delta: GdnState | None = None
        if shape.recurrent:
            self._n_layers = len(shape.recurrent)
            self.layout = _layout(shape.recurrent[0], self.window)
            self._delta = _delta_layers(device, shape.recurrent, room.n_slots, self.window)

    @property
    def is_recurrent(self) -> bool:
        return self._delta is not None

    def snapshot_parts(self, n_pending: int) -> dict[str, tuple[int, Shape]]:
        return snapshot_parts(self.layout, self._n_layers, n_pending)

    def snapshot_words(self, n_pending: int) -> int:
        return snapshot_words(self.layout, self._n_layers, n_pending)

    def gdn_shape(self, delta: DeltaRule) -> GdnShape:
        return gdn_shape(delta.shape, self.window, tiled=delta.order is HeadOrder.TILED)

    def delta_layer(self, i: int) -> GdnState:
        assert self._delta is not None, "the layer's shape was among those of the state"
        return self._delta.layer(i)

    def place(self, step: DeviceStep, layer: int) -> DeviceStep:
        """The step as a layer sees it: through the page table of the layer's pages."""
        return step.through_windowed_pages() if self.is_windowed[layer] else step

    def copy_pages(
        self, sources: Sequence[int], targets: Sequence[int], *, windowed: bool = False
    ) -> None:
        arrays = self._pages[windowed]
        if sources and arrays is not None:
            there = self._numbers(sources), self._numbers(targets)
            copy_pages(self._device.launcher, arrays, *there)

    def save(
        self,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        """By three launches at most, and one transfer."""
        used = list(pages)[: -(-n_cells // self.page_len)], list(windowed_pages)
        image = _Image(self, [*map(len, used)], n_pending)
        there = self._device.empty((image.n_words,), "float32")
        launcher = self._device.launcher
        if self._delta is not None:
            words = there[: image.n_delta_words]
            state_save(launcher, self.layout, self._delta, slot, n_pending, words)
        self._move(gather_pages, used, image, there)
        return image.parts(self._device.get(there), n_cells)

    def load(
        self,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        n_pending = image["delta.keys"].shape[1] if self._delta is not None else 0
        n_pages = [
            next((len(image[f"kv.{i}.keys"]) for i in layers), 0) for layers in self.of_tables
        ]
        whole = _Image(self, n_pages, n_pending)
        there = self._device.put(whole.joined(image))
        launcher = self._device.launcher
        if self._delta is not None:
            words = there[: whole.n_delta_words]
            state_load(launcher, self.layout, self._delta, slot, n_pending, words)
        tables = list(pages)[: n_pages[0]], list(windowed_pages)[: n_pages[1]]
        self._move(scatter_pages, tables, whole, there)

    def _move(
        self, move: Callable[..., None], tables: Sequence[list[int]], image: _Image, there: Array
    ) -> None:
        """Pages into an image on the device, or out of it."""
        for arrays, pages, part in zip(self._pages, tables, image.of_tables, strict=True):
            if arrays is not None and pages:
                buffer = self._device.as_bytes(there)[part]
                move(self._device.launcher, arrays, self._numbers(pages), buffer)

    @cached_property
    def _pages(self) -> list[PageArrays | None]:
        """By page table; None: no layer uses it."""
        return [self._page_arrays(layers.values()) for layers in self.of_tables]

    def _page_arrays(self, layers: Iterable[KvPages]) -> PageArrays | None:
        arrays, sizes = [], []
        for kv in layers:
            page_bytes = kv.heads.page_bytes(self.page_len)
            for name, array in _arrays(kv).items():
                arrays.append(array)
                sizes.append(page_bytes[name])
        if not arrays:
            return None
        table = page_table(self._device.launcher, arrays, sizes)
        return PageArrays(tuple(sizes), self._device.put(np.array(table, np.int64)))

    def _numbers(self, numbers: Sequence[int]) -> Array:
        return self._device.put(np.array(numbers, np.int32))

    def copy(self, source: int, target: int, n_pending: int) -> None:
        if self._delta is not None and source != target:
            launcher = self._device.launcher
            state_copy(launcher, self.layout, self._delta, source, target, n_pending)


class _Image:
    """A saved sequence as one array of 32-bit words: its recurrent state, then the pages of either
    page table."""

    def __init__(self, state: CudaState, n_pages: Sequence[int], n_pending: int) -> None:
        """`n_pages`: by page table."""
        self._state, self._n_pages = state, n_pages
        self._delta: dict[str, tuple[int, Shape]] = {}
        self.n_delta_words = 0
        if state.is_recurrent:
            self._delta = state.snapshot_parts(n_pending)
            self.n_delta_words = state.snapshot_words(n_pending)
        end = -(-self.n_delta_words // 4) * 16  # copies are of 16 bytes each
        self.of_tables: list[slice] = []  # bytes
        for layers, n in zip(state.of_tables, n_pages, strict=True):
            first = end
            for kv in layers.values():
                end += n * sum(kv.heads.page_bytes(state.page_len).values())
            self.of_tables.append(slice(first, end))
        self.n_words = end // 4

    def parts(self, words: Numpy, n_cells: int) -> SlotImage:
        """Copies, so that what the device wrote to can be given out again."""
        image: SlotImage = {}
        for name, pages in self._cells(words):
            image[name] = pages.copy()
            if len(pages) and (end := n_cells % self._state.page_len):
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
        raw, page_len = words.view(np.uint8), self._state.page_len
        first = self.of_tables[0].start
        for layers, n_pages in zip(self._state.of_tables, self._n_pages, strict=True):
            for i, kv in layers.items():
                for name, shape, dtype in kv.heads.arrays(n_pages, page_len):
                    end = first + math.prod(shape) * np.dtype(dtype).itemsize
                    yield f"kv.{i}.{name}", raw[first:end].view(dtype).reshape(shape)
                    first = end


def gdn_shape(s: RecurrentShape, window: int, *, tiled: bool) -> GdnShape:
    ring = window + s.kernel - 1
    try:
        return GdnShape(s.n_key_heads, s.n_value_heads, s.key_dim, s.kernel, window, ring, tiled)
    except ValueError as error:
        raise ConfigError(f"--device cuda: {error}") from None


def _layout(s: RecurrentShape, window: int) -> StateLayout:
    if s.key_dim > MOST_KEY_VALUES:
        raise ConfigError(
            f"--device cuda: recurrent layers have keys of {s.key_dim} values, and there are "
            f"kernels for {MOST_KEY_VALUES} at most; take --device cpu"
        )
    heads = s.n_key_heads, s.n_value_heads, s.key_dim, s.value_dim
    ring = window + s.kernel - 1
    try:
        return StateLayout(*heads, s.kernel, s.channels, s.decay_dim, window, ring)
    except ValueError as error:
        raise ConfigError(f"--device cuda: {error}") from None


def count_state_bytes(
    shape: StateShape, types: KvTypes, page_len: int, window: int
) -> tuple[int, int]:
    """Bytes of a page of all layers, and of a slot."""
    page = sum(sum(_heads(s, types).page_bytes(page_len).values()) for s in shape.kv)
    slot = 0
    for s in shape.recurrent:
        shapes = _layout(s, window).array_shapes(1)
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
    device: Device, shapes: Sequence[RecurrentShape], n_slots: int, window: int
) -> GdnState:
    if len(set(shapes)) > 1:
        raise ConfigError("--device cuda: the recurrent layers differ in size, which it cannot run")
    sizes = _layout(shapes[0], window).array_shapes(n_slots)
    arrays = {
        name: device.zeros((len(shapes), *size), "int32" if name == "header" else "float32")
        for name, size in sizes.items()
    }
    return GdnState(**arrays)
