"""KV pages and recurrent state of the reference backend, and saving one sequence of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from ..interface import SlotImage, StateRoom
from ..layers import KvShape, RecurrentShape, StateShape


class KvLayer(Struct):
    keys: Tensor  # (cells, Hkv, Dk)
    values: Tensor  # (cells, Hkv, Dv)


class RecurrentLayer(Struct):
    """Stored state of each slot, and the factors of the last window, which may yet be rejected.

    `S` and `conv` are as of the first pending row; `keys`, `updates`, `decays` and `inputs` hold
    what each pending row would add.
    """

    S: Tensor  # (slots, Hv, Dv, Dk)
    conv: Tensor  # (slots, kernel - 1, channels) raw inputs of the rows before, newest last
    keys: Tensor  # (slots, window, Hk, Dk)
    updates: Tensor  # (slots, window, Hv, Dv)
    decays: Tensor  # (slots, window, Hv), or (slots, window, Hv, Dk)
    inputs: Tensor  # (slots, window, channels)

    def parts(self, slot: int, n_pending: int) -> dict[str, Tensor]:
        """What matters of a slot."""
        whole = {"S": self.S[slot], "conv": self.conv[slot]}
        factors = ("keys", "updates", "decays", "inputs")
        return whole | {name: getattr(self, name)[slot, :n_pending] for name in factors}


class ReferenceState:
    def __init__(
        self,
        shape: StateShape,
        room: StateRoom,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.page_len, self.window = room.page_len, room.window
        self.adapter_scales = room.adapter_scales()
        self.is_windowed = [*map(room.has_own_pages, shape.kv)]
        self.kv = [_kv_layer(s, room.pages_of(s) * self.page_len, device, dtype) for s in shape.kv]
        self.recurrent = [
            _recurrent_layer(s, room.n_slots, self.window, device, dtype) for s in shape.recurrent
        ]

    def cells(self, pages: Sequence[int], n_cells: int, first: int = 0) -> Tensor:
        """Where the cells `first` to `n_cells` of a page table lie."""
        cell = np.arange(first, n_cells)
        table = np.asarray(pages, np.int64)
        flat = table[cell // self.page_len] * self.page_len + cell % self.page_len
        device = (self.kv[0].keys if self.kv else self.recurrent[0].S).device
        return torch.from_numpy(flat).to(device)

    def save(
        self,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        image: SlotImage = {}
        n_gone = -(-n_cells // self.page_len) - len(windowed_pages)
        n_windowed = max(n_cells - n_gone * self.page_len, 0)
        cells = self.cells(pages, n_cells), self.cells(windowed_pages, n_windowed)
        for i, kv in enumerate(self.kv):
            where = cells[self.is_windowed[i]]
            image[f"kv.{i}.keys"] = kv.keys[where].cpu().numpy()
            image[f"kv.{i}.values"] = kv.values[where].cpu().numpy()
        for i, layer in enumerate(self.recurrent):
            for name, part in layer.parts(slot, n_pending).items():
                image[f"delta.{i}.{name}"] = part.cpu().numpy().copy()
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
            where = self.cells(own_pages, len(image[f"kv.{i}.keys"]))
            kv.keys[where] = torch.from_numpy(image[f"kv.{i}.keys"]).to(kv.keys)
            kv.values[where] = torch.from_numpy(image[f"kv.{i}.values"]).to(kv.values)
        for i, layer in enumerate(self.recurrent):
            for name, part in layer.parts(slot, len(image[f"delta.{i}.keys"])).items():
                part[:] = torch.from_numpy(image[f"delta.{i}.{name}"]).to(part)

    def copy_pages(
        self, sources: Sequence[int], targets: Sequence[int], *, windowed: bool = False
    ) -> None:
        layers = [kv for i, kv in enumerate(self.kv) if self.is_windowed[i] == windowed]
        for source, target in zip(sources, targets, strict=True):
            cells = slice(source * self.page_len, (source + 1) * self.page_len)
            to = slice(target * self.page_len, (target + 1) * self.page_len)
            for kv in layers:
                kv.keys[to], kv.values[to] = kv.keys[cells], kv.values[cells]

    def copy(self, source: int, target: int, n_pending: int) -> None:
        for layer in self.recurrent:
            old, new = layer.parts(source, n_pending), layer.parts(target, n_pending)
            for name, part in new.items():
                part[:] = old[name]


def count_bytes(shape: StateShape, page_len: int, window: int, item: int) -> tuple[int, int]:
    """Bytes of a page of all layers, and of a slot."""
    cell = sum(s.n_kv_heads * (s.key_dim + s.value_dim) for s in shape.kv)
    slot = 0
    for s in shape.recurrent:
        state = s.state_width + (s.kernel - 1) * s.channels
        slot += state + window * (s.factor_width + s.channels)
    return cell * page_len * item, slot * item


def _kv_layer(s: KvShape, n_cells: int, device: torch.device, dtype: torch.dtype) -> KvLayer:
    return KvLayer(
        keys=torch.zeros(n_cells, s.n_kv_heads, s.key_dim, device=device, dtype=dtype),
        values=torch.zeros(n_cells, s.n_kv_heads, s.value_dim, device=device, dtype=dtype),
    )


def _recurrent_layer(
    s: RecurrentShape, n_slots: int, window: int, device: torch.device, dtype: torch.dtype
) -> RecurrentLayer:
    def zeros(*size: int) -> Tensor:
        return torch.zeros(n_slots, *size, device=device, dtype=dtype)

    return RecurrentLayer(
        S=zeros(s.n_value_heads, s.value_dim, s.key_dim),
        conv=zeros(s.kernel - 1, s.channels),
        keys=zeros(window, s.n_key_heads, s.key_dim),
        updates=zeros(window, s.n_value_heads, s.value_dim),
        decays=zeros(window, s.n_value_heads, *((s.decay_dim,) if s.decay_dim > 1 else ())),
        inputs=zeros(window, s.channels),
    )
