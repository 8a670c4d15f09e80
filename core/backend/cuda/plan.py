"""What steps take beside weights and state: run once on a device that counts, at their largest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..interface import PlannedSteps, State, Working
from ..step import Step, StepPart, build_step
from .counting_device import CountedPool
from .step_memory import MOST_REPEATED
from .step_sizes import SHORTEST_CONTEXT

if TYPE_CHECKING:
    from .backend import CudaBackend
    from .counting_device import PlannedDevice

# An estimate: what a captured launch takes of the device, for its parameters and its order.
LAUNCH_BYTES = 4 << 10
WIDTHS = 16  # different numbers of rows that steps of few rows have in the end, an estimate too


def rehearsed(backend: CudaBackend, device: PlannedDevice, plan: PlannedSteps) -> Working:
    """`backend` runs on `device`, and the forward passes have its matrices."""
    n_pages = plan.n_slots * -(-plan.n_ctx // plan.page_len)
    state: State = backend.new_state(
        plan.shape,
        n_pages=n_pages,
        page_len=plan.page_len,
        n_slots=plan.n_slots,
        window=plan.window,
    )
    outside, plain, graphs = device.pool, CountedPool(), CountedPool()
    device.pool, device.of_graphs = plain, graphs
    run = backend.compile(plan.forward, state, max_rows=plan.prompt_rows)
    n_launches = 0
    for step in _steps(plan):
        run(step)
        before = device.launcher.n_started
        run(step)  # as a graph, if it becomes one
        n_launches = max(n_launches, device.launcher.n_started - before)
    for head in plan.heads:
        run_head = backend.compile(head, state, max_rows=plan.prompt_rows)
        for step in _steps(plan, width=plan.n_embd):
            run_head(step)
            run_head(step)
    device.pool = outside
    n_graphs = WIDTHS * _contexts(plan.n_ctx)
    return Working(
        scratch=plain.most + graphs.most,
        graphs=n_graphs * n_launches * LAUNCH_BYTES,
        n_graphs=n_graphs,
        reserve=device.reserved_bytes,
    )


def _contexts(n_ctx: int) -> int:
    """Lengths of a context that steps are made for."""
    n, cells = 1, SHORTEST_CONTEXT
    while cells < n_ctx:
        n, cells = n + 1, 2 * cells
    return n


def _steps(plan: PlannedSteps, width: int = 0) -> Iterator[Step]:
    """The largest of each kind: of drafts in all sequences, with all logits; of a prompt."""
    each = max(1, min(plan.window, MOST_REPEATED // plan.n_slots, plan.n_ctx))
    yield _step(plan, plan.n_slots, each, each, width)
    yield _step(plan, 1, min(plan.prompt_rows, plan.n_ctx), 1, width)


def _step(plan: PlannedSteps, n_slots: int, n_rows: int, n_out: int, width: int) -> Step:
    """At the end of the context."""
    n_pages = -(-plan.n_ctx // plan.page_len)
    pieces = [
        StepPart(
            [0] * n_rows,
            plan.n_ctx - n_rows,
            range(slot * n_pages, (slot + 1) * n_pages),
            slot=slot,
            n_out=n_out,
        )
        for slot in range(n_slots)
    ]
    hidden = np.zeros((n_slots * n_rows, width), np.float32) if width else None
    return build_step(pieces, hidden)
