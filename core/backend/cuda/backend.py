"""`CudaBackend`: every op as launches of `cuda_kernels`, on whatever device it is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....cuda_kernels.kernel import Array, Kernel
from ...gguf.reader import GgufFile
from ..draft_loop import HostDraftLoop
from ..interface import (
    Backend,
    BlockDraft,
    DraftLoop,
    DraftLoopPlan,
    Forward,
    PlannedSteps,
    Run,
    RunRows,
    SlotImage,
    StateRoom,
    Taps,
    Working,
)
from ..interface.device_loop import DeviceLoopPlan
from ..layers import (
    HALF_FLOATS,
    Floats,
    KvTypes,
    MatrixPart,
    StateShape,
)
from .block_draft import CudaBlockDraft
from .compile_ahead import AheadCompiler
from .counting_device import PlannedDevice
from .cuda_ops import CudaOps, OpParts
from .device_contract import Device
from .device_loop import CudaDeviceLoop, can_run
from .draft_loop import CudaDraftLoop, keeps_rows_only
from .expanded_types import say_if_expanded
from .machine import CudaMachine
from .plan import Rehearsal, kernels_of, rehearsed
from .prompt import PromptRows, PromptRunner
from .prompt_parts import PromptSizes
from .state import CudaState, count_state_bytes
from .weight_upload import Uploads
from .weights import CudaMatrix, use_of


class CudaBackend(Backend):
    ops: CudaOps
    frees_windows = True
    turns_by_axes = looks_ahead = False
    runs_towers = False
    batch_invariant = False  # prompts and single rows come from different kernels
    prompts = PromptSizes()

    def __init__(self, device: Device, kv_types: KvTypes = HALF_FLOATS) -> None:
        self.device, self.launcher = device, device.launcher
        self.name, self.kv_types = device.name, kv_types
        self.details = device.details
        if kv_types != HALF_FLOATS:
            self.details = ", ".join(filter(None, (self.details, str(kv_types))))
        self.uploads = Uploads(device)
        self._tied: frozenset[str] = frozenset()
        self._warned_types: set[str] = set()  # types that were spoken of
        self._twin: CudaBackend | None = None  # the latest planner
        self._planned: PlannedSteps | None = None
        self._compiling: AheadCompiler | None = None
        self.ops = CudaOps(OpParts(device))
        self.machine = CudaMachine(device, self.ops, self.prompts)
        self.prompt_chunk = self.prompts.chunk

    @property
    def state_format(self) -> str:
        return "cuda" if self.kv_types == HALF_FLOATS else f"cuda with {self.kv_types}"

    # weights

    def begin_file(self, file: GgufFile) -> None:
        is_tied = "output.weight" not in file.tensors
        self._tied = frozenset({"token_embd.weight"} if is_tied else ())

    def planner(self) -> CudaBackend:
        twin = self._twin = CudaBackend(PlannedDevice(self.device), self.kv_types)
        twin._tied, twin._warned_types = self._tied, self._warned_types
        return twin

    def working(self, rehearsal: PlannedSteps) -> Working:
        self._planned = rehearsal
        return rehearsed(self._rehearsal(), rehearsal)

    def planned_kernels(self) -> list[Kernel]:
        """What the steps that `working` was called for launch."""
        if self._planned is None:
            return []
        return kernels_of(self._rehearsal(), self._planned)

    def _rehearsal(self) -> Rehearsal:
        assert isinstance(self.device, PlannedDevice), "only a `planner` has one"
        machine = CudaMachine(self.device, CudaOps(OpParts(self.device)), self.prompts)
        return Rehearsal(machine, self.device, self.kv_types)

    @property
    def savings(self) -> tuple[str, ...]:  # type: ignore[override]
        halved = ("--cache-type-k q8_0 with --cache-type-v q8_0",)
        return (*(halved if self.kv_types == HALF_FLOATS else ()), "a smaller file", "--device cpu")

    def weight_bytes(self) -> int:
        found = self.device.live_bytes if isinstance(self.device, PlannedDevice) else None
        return self.prepared_bytes if found is None else found

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        device = PlannedDevice(self.device)
        made = CudaMatrix(Uploads(device), parts, use_of(parts, self._tied))
        made.prepare()
        return device.live_bytes

    def expect(self, file: GgufFile, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        self.uploads.is_loading = True
        if self._twin is not None:
            self._compiling = AheadCompiler(self.launcher, self._twin.planned_kernels)
            self._twin = None

    def weights_ready(self, file: GgufFile) -> None:
        self.uploads.is_loading = False
        self.uploads.finish()
        if self._compiling is not None:
            self._compiling.finish(self.report)
            self._compiling = None

    def close(self) -> None:
        if self._compiling is not None:
            self._compiling.cancel()

    def matrix(self, parts: Sequence[MatrixPart]) -> CudaMatrix:
        if self.device.has_memory:
            for part in parts:
                say_if_expanded(part.tensor.format.name, self._warned_types)
        self.prepared_bytes += self.matrix_bytes(parts)
        made = CudaMatrix(self.uploads, parts, use_of(parts, self._tied))
        made.prepare()
        return made

    def free_device_bytes(self) -> int:
        return self.device.free_bytes()

    def vector(self, values: Floats) -> Array:
        self.prepared_bytes += self.device.taken_bytes(values.nbytes)
        return self.device.put(np.ascontiguousarray(values))

    # running

    def compile(
        self, forward: Forward, state: CudaState, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        return PromptRunner(self.machine, forward, state, taps)

    def compile_device_loop(self, plan: DeviceLoopPlan) -> CudaDeviceLoop | None:
        return CudaDeviceLoop(self.machine, plan) if can_run(plan) else None

    def compile_rows(
        self, forward: Forward, state: CudaState, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        return PromptRows(self.machine, forward, state, taps)

    def compile_draft_loop(
        self, forward: Forward, state: CudaState, plan: DraftLoopPlan
    ) -> DraftLoop:
        if keeps_rows_only(state, plan):
            return CudaDraftLoop(self.machine, forward, state, plan)
        run = self.compile(forward, state, max_rows=plan.max_rows, taps=plan.taps)
        return HostDraftLoop(run, plan, state.window)

    def compile_block_draft(
        self, forward: Forward, state: CudaState, plan: DraftLoopPlan
    ) -> BlockDraft:
        return CudaBlockDraft(self.machine, forward, state, plan)

    def activate(self) -> None:
        self.device.activate()

    # state

    def new_state(self, shape: StateShape, room: StateRoom) -> CudaState:
        return CudaState(self.device, shape, self.kv_types, room)

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return count_state_bytes(shape, self.kv_types, page_len, window)

    def copy_pages(
        self,
        state: CudaState,
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        windowed: bool = False,
    ) -> None:
        state.copy_pages(sources, targets, windowed=windowed)

    def save_slot(
        self,
        state: CudaState,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        return state.save(slot, pages, n_cells, n_pending, windowed_pages)

    def load_slot(
        self,
        state: CudaState,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        state.load(slot, pages, image, windowed_pages)

    def copy_slot(self, state: CudaState, source: int, target: int, n_pending: int) -> None:
        state.copy(source, target, n_pending)
