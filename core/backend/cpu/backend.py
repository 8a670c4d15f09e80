"""`CpuBackend`: prepares weights, records a model's forward pass, runs it on the team."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...gguf.reader import GgufFile
from ..interface import (
    Backend,
    BlockDraft,
    DraftLoop,
    DraftLoopPlan,
    Forward,
    Output,
    Run,
    SlotImage,
    StateRoom,
    Taps,
)
from ..layers import (
    HALF_FLOATS,
    Floats,
    KvTypes,
    MatrixPart,
    StateShape,
)
from . import ops
from .block_draft import CpuBlockDraft, RecordedBlockDraft
from .draft_loop import CpuDraftLoop, record_draft_loop
from .formats import FORMATS
from .inputs import AdapterRows, Filler, StepInputs
from .machine_code import Kernels
from .memory import Arena, aligned
from .picker import Picker, add_picks
from .program import Recording
from .recorded_ops import CpuOps
from .repacked import RepackCache
from .runner import CpuRunner
from .simd import SETS, Simd, best_set
from .state import CpuState, count_state_bytes
from .team import Team
from .threads import default_threads
from .tile_matrix import (
    CpuMatrix,
    Repacker,
    Store,
    TileMatrix,
    adapter_bytes,
    count_bytes,
    low_rank_of_experts,
    tile_bytes,
)

logger = logging.getLogger(__name__)
PLAN: Any = None  # the step and state that a recording needs are known to the recording


class CpuBackend(Backend):
    drafts_in_one_call = True
    frees_windows = True
    runs_adapters = True

    def __init__(
        self,
        threads: int | None = None,
        instruction_set: str | None = None,
        kv_types: KvTypes = HALF_FLOATS,
        *,
        repack_cache: bool = False,
    ) -> None:
        simd = choose_set(instruction_set)
        self.n_threads = default_threads() if threads is None else threads
        if self.n_threads < 1:
            raise ConfigError(f"the number of threads must be at least 1, got {threads}")
        self.name = "cpu"
        self.details = f"{simd.name}, {self.n_threads} threads"
        self.kv_types = kv_types
        if kv_types != HALF_FLOATS:
            self.details += f", {kv_types}"
        self.kernels = Kernels(simd)
        self.host_threads = self.n_threads
        self.team = Team(self.kernels, self.n_threads)
        self._expanded: set[str] = set()  # types that were spoken of
        self._repacker = Repacker(self.kernels, self.n_threads)
        self._cache = RepackCache(self.n_threads, simd) if repack_cache else None
        self._store: Store | None = None  # while weights are prepared

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        simd = self.kernels.simd
        return sum(tile_bytes(part, simd) + adapter_bytes(part, simd) for part in parts)

    def expect(self, file: GgufFile, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        simd = self.kernels.simd
        n_bytes = sum(tile_bytes(part, simd) for parts in matrices for part in parts)
        kept = self._cache and self._cache.find(file, matrices, n_bytes)
        self._store = kept or Arena(n_bytes)

    def weights_ready(self, file: GgufFile) -> None:
        store, self._store = self._store, None
        if self._cache is None:
            return
        self.repacked_path = self._cache.path
        if isinstance(store, Arena):
            self.repacked_path = self._cache.keep(file, store, self.report)

    @property
    def state_format(self) -> str:
        return self.name if self.kv_types == HALF_FLOATS else f"{self.name} with {self.kv_types}"

    def matrix(self, parts: Sequence[MatrixPart]) -> CpuMatrix:
        made = tuple(self._repacker.repack(part, self._store) for part in parts)
        for part, tiles in zip(parts, made, strict=True):
            self._say_if_expanded(part.tensor.format.name, part.tensor.n_bytes, tiles)
        n_bytes = count_bytes(made)
        self.prepared_bytes += n_bytes
        if self._store is not None and self._store.is_filled:
            self.mapped_bytes += n_bytes
        self.prepared_bytes += sum(adapter_bytes(part, self.kernels.simd) for part in parts)
        return CpuMatrix(made, self._repacker.low_rank(parts), low_rank_of_experts(parts))

    def _say_if_expanded(self, name: str, stored_bytes: int, tiles: TileMatrix) -> None:
        if tiles.form is not FORMATS.get(name) and name not in self._expanded:
            self._expanded.add(name)
            logger.warning(
                "%s tensors have no kernel of their own here: expanded to int8 with exact scales, "
                "%.1f times their size in the file",
                name,
                tiles.n_bytes / stored_bytes,
            )

    def vector(self, values: Floats) -> Floats:
        made = aligned(values.nbytes).view(np.float32).reshape(values.shape)
        made[:] = values
        self.prepared_bytes += made.nbytes
        return made

    # running

    def compile(
        self, forward: Forward, state: CpuState, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        recording, output = self._record(forward, state, max_rows, taps)
        best = ops.maxima(recording, output.logits)
        Picker.add_to(recording)
        picked = add_picks(recording, output.logits, best, self.n_threads)
        program = recording.finish(self.kernels, self._report_compiling)
        return CpuRunner(self.team, self.kernels, program, recording, output, best, picked)

    def compile_draft_loop(
        self, forward: Forward, state: CpuState, plan: DraftLoopPlan
    ) -> DraftLoop:
        recording, output = self._record(forward, state, plan.max_rows, plan.taps)
        made = record_draft_loop(recording, output, plan, state, self.team)
        program = recording.finish(self.kernels, self._report_compiling)
        return CpuDraftLoop(self.team, self.kernels, made, program)

    def compile_block_draft(
        self, forward: Forward, state: CpuState, plan: DraftLoopPlan
    ) -> BlockDraft:
        recording, output = self._record(forward, state, plan.max_rows, plan.taps)
        made = RecordedBlockDraft(recording, output, plan, self.team)
        program = recording.finish(self.kernels, self._report_compiling)
        parts = recording, output, made.summits.maxima
        return CpuBlockDraft(made, CpuRunner(self.team, self.kernels, program, *parts))

    def _record(
        self, forward: Forward, state: CpuState, max_rows: int, taps: Taps
    ) -> tuple[Recording, Output]:
        n_sequences = min(max_rows, state.n_slots)
        inputs = StepInputs(
            max_rows,
            n_sequences,
            state.n_pages,
            state.page_len,
            windowed=any(state.is_windowed),
        )
        recording = Recording(inputs)
        Filler.add_to(recording.writers, recording.kinds)
        recording.held += [state, forward]  # the program reads and writes their arrays
        if state.adapter_scales is not None:
            recording.adapters = AdapterRows(state.adapter_scales)
        return recording, forward(CpuOps(recording), PLAN, state, taps)

    def _report_compiling(self, done: int, total: int) -> None:
        self.report(f"compiling {total} kernels", done / total)

    # state

    def new_state(self, shape: StateShape, room: StateRoom) -> CpuState:
        return CpuState(shape, self.kv_types, room)

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return count_state_bytes(shape, self.kv_types, page_len, window)

    def copy_pages(
        self,
        state: CpuState,
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        windowed: bool = False,
    ) -> None:
        state.copy_pages(sources, targets, windowed=windowed)

    def save_slot(
        self,
        state: CpuState,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        return state.save(slot, pages, n_cells, n_pending, windowed_pages)

    def load_slot(
        self,
        state: CpuState,
        slot: int,
        pages: Sequence[int],
        image: SlotImage,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        state.load(slot, pages, image, windowed_pages)

    def copy_slot(self, state: CpuState, source: int, target: int, n_pending: int) -> None:
        state.copy(source, target, n_pending)


def choose_set(name: str | None) -> Simd:
    """The best of this CPU, or the chosen one."""
    if name is None:
        return best_set()
    if name not in SETS:
        raise ConfigError(f"unknown instruction set {name!r}; choose one of {', '.join(SETS)}")
    if not SETS[name].is_available():
        raise ConfigError(f"this CPU does not have the instruction set {name}")
    return SETS[name]()
