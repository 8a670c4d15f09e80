"""What a configuration takes in memory, by what takes it."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend.layers import StateShape
from ..runtime import Runtime
from ..speculation.options import DRAFT, MTP
from ..state.sizes import PAGE_LEN
from ..state.windows import state_bytes_each


def memory_of(runtime: Runtime, types: Sequence[str], n_slots: int) -> dict[str, int]:
    """Bytes. `head`, `head_kv`, `draft_*` and `factors` are what speculation adds: without it a
    context would do without them."""
    budget = runtime.plan(n_slots)
    shape = runtime.model.state_shape
    each = state_bytes_each(runtime.backend, shape, budget.sizes)
    _, slot_without = runtime.backend.state_bytes(shape, page_len=PAGE_LEN, window=1)
    head = _head_bytes(runtime)
    n_trunk = len(shape.kv) - len(runtime.model.nextn)
    heads = state_bytes_each(runtime.backend, StateShape(shape.kv[n_trunk:]), budget.sizes)
    head_kv = heads.page * budget.sizes.n_pages
    if budget.windows is not None:
        head_kv += heads.windowed_page * budget.windows.n_pages
    factors = (each.slot - slot_without) * budget.sizes.n_slots
    found = {
        "weights": budget.weights - head,
        "kv": budget.kv - head_kv,
        "recurrent": budget.recurrent - factors,
        "factors": factors,
    }
    if MTP in types:
        found |= {"head": head, "head_kv": head_kv}
    if DRAFT in types and runtime.draft is not None:
        found["draft_weights"] = runtime.draft.file.n_bytes
        found["draft_state"] = budget.draft
    return {name: n for name, n in found.items() if n}


def _head_bytes(runtime: Runtime) -> int:
    """Bytes of the tensors of MTP blocks, as they lie in the file."""
    first = runtime.model.hparams.n_layers
    prefixes = tuple(f"blk.{first + i}." for i in range(len(runtime.model.nextn)))
    if not prefixes:
        return 0
    tensors = runtime.file.tensors.items()
    return sum(tensor.n_bytes for name, tensor in tensors if name.startswith(prefixes))
