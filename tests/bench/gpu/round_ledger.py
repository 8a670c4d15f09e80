"""A round that the device makes by itself, counted like a step."""

from __future__ import annotations

import numpy as np

from nextn.core.backend.cuda.round_memory import RoundMemory
from nextn.core.backend.cuda.step_sizes import context_bucket
from nextn.core.backend.interface.device_loop import DeviceDrafter, DeviceLoopPlan, DeviceSequence
from nextn.core.backend.picking import FIRST_FILTER
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.state.sizes import PAGE_LEN

from .ledger import Account, Ledger


def round_account(ledger: Ledger, n_draft: int, context: int = 1024) -> Account:
    """So many tokens are drafted, verified and accepted. The head has not read what the round
    before accepted: as many, and one."""
    n_cells, model = context + 2 * (n_draft + 1), ledger.model
    drafter = None
    if n_draft:
        drafter = DeviceDrafter(model.nextn[0].forward, H_NEXTN, n_draft)
    state = ledger.new_state(n_cells, 1)
    plan = DeviceLoopPlan(model.forward, state, ledger.sizes.n_vocab, (), 1, drafter)
    rounds = ledger.backend.compile_device_loop(plan)
    assert rounds is not None, "a device can make rounds of one line"
    request = np.zeros(FIRST_FILTER, np.int64)
    text = DeviceSequence(
        slot=0,
        tables={"pages": np.arange(-(-n_cells // PAGE_LEN), dtype=np.int32)},
        past=context,
        n_pending_accepted=n_draft + 1,
        end=n_cells,
        request=request.ctypes.data,
        fresh=[0] * (n_draft + 1),
        hidden=np.zeros((n_draft + 1, ledger.sizes.n_embd), np.float32),
    )
    rounds.begin([text], n_draft, drafts=bool(n_draft))
    room = rounds._current.memory
    _fill_in(room, n_draft, context)
    work = rounds._launches.of(room, (n_draft, context_bucket(context), bool(n_draft)))
    work()  # what is made at first use is not part of a round
    ledger.tell_scratch()
    return ledger.counted(work)


def _fill_in(room: RoundMemory, n_draft: int, context: int) -> None:
    """What kernels of the round would have written before others are told of it."""
    room.verify_rows(n_draft).starts[...] = [0, n_draft + 1]
    for rows, n in ((room.first, n_draft + 1), (room.following, 1)):
        if rows is not None:
            rows.starts[...], rows.past[...] = [0, n], context
