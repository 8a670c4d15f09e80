"""Every op of the interface in a few lines of torch. Slow, and the judge of all other backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...errors import ConfigError
from ...gguf.shown import shown_path
from ..interface import Backend, SlotImage
from ..layers import (
    Activation,
    Attention,
    DeltaRule,
    Floats,
    MatrixPart,
    Moe,
    Norm,
    StateShape,
)
from ..step import Step
from .attention import attend, rms_norm
from .delta_rule import delta_rule
from .matrix import ReferenceMatrix
from .moe import gated, moe
from .state import ReferenceState, count_bytes


class ReferenceBackend(Backend):
    """Rows and Packed are float tensors (T, width); a State is a `ReferenceState`."""

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device = find_device(device)
        self.dtype = dtype
        self.name = f"torch:{self.device}"

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        return sum(part.tensor.n_elements for part in parts) * self.dtype.itemsize

    def matrix(self, parts: Sequence[MatrixPart]) -> ReferenceMatrix:
        made = ReferenceMatrix(parts, self.device, self.dtype)
        self.prepared_bytes += made.weight.nbytes
        return made

    def vector(self, values: Floats) -> Tensor:
        made = torch.tensor(values, device=self.device, dtype=self.dtype)
        self.prepared_bytes += made.nbytes
        return made

    def given_rows(self, step: Step, width: int) -> Tensor:
        if step.received is not None:
            received: Tensor = step.received
            return received
        return torch.tensor(step.hidden, device=self.device, dtype=self.dtype)

    def take_rows(self, rows: Tensor) -> Tensor:
        return rows.to(self.device, copy=True)

    def embed(self, table: ReferenceMatrix, step: Step) -> Tensor:
        return table.weight[torch.from_numpy(step.tokens).to(self.device)]

    def keep(self, x: Tensor) -> Tensor:
        return x.clone()

    def out_rows(self, x: Tensor, step: Step) -> Tensor:
        return x[torch.from_numpy(step.out_rows).to(self.device)]

    def to_host(self, x: Tensor) -> Floats:
        return np.asarray(x.to("cpu", torch.float32).numpy())

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, norm)

    def norm_rows(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, norm)

    def norm_pair(self, x: Tensor, x_norm: Norm, y: Tensor, y_norm: Norm) -> Tensor:
        return torch.cat([rms_norm(x, x_norm), rms_norm(y, y_norm)], dim=1)

    def matmul(self, a: Tensor, w: ReferenceMatrix, add_to: Tensor | None = None) -> Tensor:
        y = w.product(a)
        return y if add_to is None else add_to + y

    def gated_ffn(self, a: Tensor, gate_up: ReferenceMatrix, activation: Activation) -> Tensor:
        return gated(gate_up.product(a), activation)

    def attend(
        self, qkv: Tensor, attention: Attention, state: ReferenceState, step: Step
    ) -> Tensor:
        return attend(qkv, attention, state, step)

    def delta_rule(
        self, rows: Tensor, delta: DeltaRule, state: ReferenceState, step: Step
    ) -> Tensor:
        return delta_rule(rows, delta, state, step)

    def moe(self, a: Tensor, layer: Moe, add_to: Tensor) -> Tensor:
        return moe(a, layer, add_to)

    def head(self, a: Tensor, w: ReferenceMatrix) -> Tensor:
        return w.product(a)

    def new_state(
        self, shape: StateShape, *, n_pages: int, page_len: int, n_slots: int, window: int
    ) -> ReferenceState:
        sizes = (n_pages, page_len, n_slots, window)
        return ReferenceState(shape, sizes, self.device, self.dtype)

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return count_bytes(shape, page_len, window, self.dtype.itemsize)

    def copy_pages(
        self, state: ReferenceState, sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        state.copy_pages(sources, targets)

    def save_slot(
        self, state: ReferenceState, slot: int, pages: Sequence[int], n_cells: int, n_pending: int
    ) -> SlotImage:
        return state.save(slot, pages, n_cells, n_pending)

    def load_slot(
        self, state: ReferenceState, slot: int, pages: Sequence[int], image: SlotImage
    ) -> None:
        state.load(slot, pages, image)

    def copy_slot(self, state: ReferenceState, source: int, target: int, n_pending: int) -> None:
        state.copy(source, target, n_pending)


def find_device(name: str) -> torch.device:
    """A torch device that really exists here."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts when built without CUDA
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"--device torch:{shown_path(name)}: torch cannot use it here ({reason[:80]})"
        ) from None
    return device
