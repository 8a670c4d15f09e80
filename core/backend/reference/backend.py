"""`ReferenceBackend`: plain torch. Slow, and the judge of all other backends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import ConfigError
from ...gguf.printable import printable_path
from ..draft_loop import (
    HostBlockDraft,
    HostDraftLoop,
    compile_block_on_host,
    compile_on_host,
)
from ..interface import (
    Backend,
    DraftLoopPlan,
    Forward,
    HostOutput,
    Run,
    RunRows,
    SlotImage,
    StateRoom,
    Taps,
)
from ..layers import Floats, MatrixPart, StateShape
from ..step import Step
from .float_matrix import AdapterContext, ReferenceMatrix
from .reference_ops import ReferenceOps
from .state import ReferenceState, count_bytes


class ReferenceBackend(Backend):
    """Rows and Packed are float tensors (T, width); a State is a `ReferenceState`."""

    frees_windows = True
    runs_adapters = True

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device = find_device(device)
        self.dtype = dtype
        self.name = f"torch:{self.device}"
        self.ops = ReferenceOps(self.device, dtype)
        self._adapters = AdapterContext()

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        return sum(part.tensor.n_elements for part in parts) * self.dtype.itemsize

    def matrix(self, parts: Sequence[MatrixPart]) -> ReferenceMatrix:
        made = ReferenceMatrix(parts, self.device, self.dtype, self._adapters)
        self.prepared_bytes += made.weight.nbytes
        return made

    def vector(self, values: Floats) -> Tensor:
        made = torch.tensor(values, device=self.device, dtype=self.dtype)
        self.prepared_bytes += made.nbytes
        return made

    def compile(
        self, forward: Forward, state: ReferenceState, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        def run(step: Step) -> HostOutput:
            self._adapters.begin(step, state.adapter_scales)
            output = forward(self.ops, step, state, taps)
            rows = {name: self.ops.to_host(tapped) for name, tapped in output.taps.items()}
            return HostOutput(self.ops.to_host(output.logits), rows)

        return run

    def compile_rows(
        self, forward: Forward, state: ReferenceState, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        return lambda step: forward(self.ops, step, state, taps)

    def compile_draft_loop(
        self, forward: Forward, state: ReferenceState, plan: DraftLoopPlan
    ) -> HostDraftLoop:
        return compile_on_host(self, forward, state, plan)

    def compile_block_draft(
        self, forward: Forward, state: ReferenceState, plan: DraftLoopPlan
    ) -> HostBlockDraft:
        return compile_block_on_host(self, forward, state, plan)

    def new_state(self, shape: StateShape, room: StateRoom) -> ReferenceState:
        return ReferenceState(shape, room, self.device, self.dtype)

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return count_bytes(shape, page_len, window, self.dtype.itemsize)

    def copy_pages(
        self,
        state: ReferenceState,
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        windowed: bool = False,
    ) -> None:
        state.copy_pages(sources, targets, windowed=windowed)

    def save_slot(
        self,
        state: ReferenceState,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        return state.save(slot, pages, n_cells, n_pending, windowed_pages)

    def load_slot(
        self,
        state: ReferenceState,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        state.load(slot, pages, image, windowed_pages)

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
            f"--device torch:{printable_path(name)}: torch cannot use it here ({reason[:80]})"
        ) from None
    return device
