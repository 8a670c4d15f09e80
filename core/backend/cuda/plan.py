"""What steps take beside weights and state: run once on a device that counts, at their largest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....cuda_kernels import draft_pick, gdn_state, head_pick, page_copy, round_times, spec_accept
from ....cuda_kernels.kernel import Kernel
from ..interface import PlannedSteps, Run, StateRoom, Working
from ..interface.device_loop import DeviceLoopPlan
from ..step import Step, StepPart, build_step
from .counting_device import CountedPool
from .graphs import MOST_GRAPHS
from .prompt import PromptRunner
from .round_launches import RoundLaunches
from .round_memory import RoundMemory, RoundSize
from .state import CudaState
from .step_memory import MOST_REPEATED
from .step_sizes import ROWS, context_bucket
from .undrafted_rounds import MOST_UNDRAFTED

if TYPE_CHECKING:
    from ..layers import KvTypes
    from .counting_device import PlannedDevice
    from .machine import CudaMachine

# An estimate: what a captured launch takes of the device, for its parameters and its order.
LAUNCH_BYTES = 4 << 10
# Tokens of a head's draft that room is planned for: as many as the controller drafts at most. What
# --spec-draft-n-max allows beyond that is not planned.
HEAD_DRAFTS = 16
BESIDE_PASSES = head_pick, draft_pick, spec_accept, round_times, gdn_state, page_copy


class Rehearsal(NamedTuple):
    """What steps are run on: a device that counts, whose matrices the forward passes have."""

    machine: CudaMachine
    device: PlannedDevice
    kv_types: KvTypes


def rehearsed(on: Rehearsal, plan: PlannedSteps) -> Working:
    device = on.device
    outside, plain, graphs = device.pool, CountedPool(), CountedPool()
    state = _state(on, plan)
    device.pool, device.of_graphs = plain, graphs
    rounds = _round_memory(device, plan) if plan.heads else None
    n_launches = []
    for run, width in _passes(on.machine, plan, state):
        of_pass = 0
        for step in _largest_steps(plan, width):
            run(step)
            before = device.launcher.n_started
            run(step)  # as a graph, if it becomes one
            of_pass = max(of_pass, device.launcher.n_started - before)
        n_launches.append(of_pass)
    if rounds is not None:
        _rehearse_round(on, plan, state, rounds)
        n_launches.append(sum(n_launches))  # graphs of rounds
    device.pool = outside
    return Working(
        scratch=plain.most + graphs.most,
        graphs=MOST_GRAPHS * sum(n_launches) * LAUNCH_BYTES,
        n_graphs=MOST_GRAPHS * len(n_launches),
        reserve=device.reserved_bytes,
    )


def kernels_of(on: Rehearsal, plan: PlannedSteps) -> list[Kernel]:
    """All that the steps of a model launch, of whatever size they are."""
    state = _state(on, plan)
    for run, width in _passes(on.machine, plan, state):
        for step in (*_largest_steps(plan, width), *_smaller_steps(on.machine, plan, width)):
            run(step)
    beside = (kernel for module in BESIDE_PASSES for kernel in module.KERNELS)
    return list(dict.fromkeys((*on.device.launcher.kernels, *beside)))


def _round_memory(device: PlannedDevice, plan: PlannedSteps) -> RoundMemory:
    n_pages = -(-plan.n_ctx // plan.page_len)
    n_sequences = min(plan.n_slots, spec_accept.MAX_SEQUENCES)
    tables = ("pages", "windowed_pages") if plan.shape.window else ("pages",)
    size = RoundSize(n_sequences, min(HEAD_DRAFTS, plan.window - 1), n_pages, plan.n_embd, tables)
    return RoundMemory(device, size)


def _rehearse_round(
    on: Rehearsal, plan: PlannedSteps, state: CudaState, memory: RoundMemory
) -> None:
    """The longest drafts in all sequences. Their logits are a graph's, not those of a step; what
    the drafter leaves is less, and in the same memory."""
    memory.history(MOST_UNDRAFTED)
    loop = DeviceLoopPlan(plan.forward, state, 0, (), memory.size.n_sequences)
    shape = memory.size.max_draft, context_bucket(plan.n_ctx), False
    on.device.repeatable(RoundLaunches(on.machine, loop).of(memory, shape))


def _state(on: Rehearsal, plan: PlannedSteps) -> CudaState:
    """Its own size is not counted: windowed layers may have as many pages as the others."""
    n_pages = plan.n_slots * -(-plan.n_ctx // plan.page_len)
    room = StateRoom(n_pages, plan.page_len, plan.n_slots, plan.window, n_pages)
    return CudaState(on.device, plan.shape, on.kv_types, room)


def _passes(
    machine: CudaMachine, plan: PlannedSteps, state: CudaState
) -> Iterator[tuple[Run, int]]:
    """Each forward pass, and the width of the hidden rows that it continues."""
    yield PromptRunner(machine, plan.forward, state, frozenset()), 0
    for head in plan.heads:
        yield PromptRunner(machine, head, state, frozenset()), plan.n_embd


def _smaller_steps(machine: CudaMachine, plan: PlannedSteps, width: int) -> Iterator[Step]:
    """One for each number of rows that a kernel is chosen by."""
    for n_rows in ROWS:
        n_out = n_rows if n_rows <= plan.window else 1
        yield _step(plan, 1, min(n_rows, plan.n_ctx), min(n_out, plan.n_ctx), width)
        n_slots = min(n_rows, plan.n_slots)
        yield _step(plan, n_slots, 1, 1, width)
    for call in machine.prompts.calls:
        yield _step(plan, 1, min(call, plan.n_ctx), 1, width)


def _largest_steps(plan: PlannedSteps, width: int) -> Iterator[Step]:
    """The largest of each kind: of drafts in all sequences, with all logits; of a prompt."""
    each = max(1, min(plan.window, MOST_REPEATED // plan.n_slots, plan.n_ctx))
    yield _step(plan, plan.n_slots, each, each, width)
    yield _step(plan, 1, min(plan.prompt_rows, plan.n_ctx), 1, width)


def _step(plan: PlannedSteps, n_slots: int, n_rows: int, n_out: int, width: int) -> Step:
    """At the end of the context."""
    n_pages = -(-plan.n_ctx // plan.page_len)
    tables = [range(slot * n_pages, (slot + 1) * n_pages) for slot in range(n_slots)]
    pieces = [
        StepPart(
            [0] * n_rows,
            plan.n_ctx - n_rows,
            pages,
            slot=slot,
            n_out=n_out,
            windowed_pages=pages if plan.shape.window else (),
        )
        for slot, pages in enumerate(tables)
    ]
    hidden = np.zeros((n_slots * n_rows, width), np.float32) if width else None
    return build_step(pieces, hidden)
