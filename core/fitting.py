"""Whether a model, its state and its workspace fit into memory, before any weight is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .backend.interface import Working
from .errors import ModelError
from .state.budget import TooLargeError, check_weights, make_budget
from .state.sizes import PAGE_LEN, PREFILL_CHUNK, StateSizes

if TYPE_CHECKING:
    from .backend.interface import Backend
    from .gguf.reader import GgufFile
    from .models.model_weights import Demand

CHECKPOINTS: Final = 2  # per sequence: one where prompts diverge, one at the end
LEAST_CONTEXT: Final = 512  # tokens; a default context is not made shorter

logger = logging.getLogger(__name__)


def sizes_of(n_ctx: int, n_slots: int) -> StateSizes:
    return StateSizes(n_ctx, n_slots, n_checkpoints=CHECKPOINTS * n_slots)


def fitting_context(
    file: GgufFile,
    demand: Demand,
    backend: Backend,
    length: int,
    available: int | None,
    *,
    may_shrink: bool,
) -> int:
    """Return the context length in tokens: `length`, or what fits of it if it `may_shrink`.

    Raises before the weights are read, because a machine that swaps or kills the process gives no
    reason.
    """
    shape = demand.model.state_shape
    if available is None:
        return length
    sizes, weights = sizes_of(length, 1), demand.weight_bytes
    least = working_of([demand], sizes_of(min(length, PAGE_LEN), 1))
    try:
        check_weights(backend, shape, weights, demand.stored_bytes, available, least)
    except ModelError as error:
        raise ModelError(f"{file.label}: {error}") from None
    left, working = available - weights, working_of([demand], sizes)
    try:
        make_budget(backend, shape, sizes, left, weights, working=working)
    except TooLargeError as error:
        longest = error.longest
        if working.total:  # which is less in a shorter context
            longest = _longest(demand, backend, length, left)
        if not may_shrink or longest < LEAST_CONTEXT:
            raise TooLargeError(error.budget, longest) from None
        logger.warning(
            "the context has %d tokens: %d do not fit into memory (-c says how many)",
            longest,
            length,
        )
        return longest
    return length


def _longest(demand: Demand, backend: Backend, length: int, left: int) -> int:
    """Return the longest shorter context that fits, in tokens of whole pages; 0 if none fits."""
    fitting, too_many = 0, -(-length // PAGE_LEN)
    while too_many - fitting > 1:
        n_pages = (fitting + too_many) // 2
        sizes = sizes_of(n_pages * PAGE_LEN, 1)
        working = working_of([demand], sizes)
        try:
            make_budget(backend, demand.model.state_shape, sizes, left, 0, working=working)
            fitting = n_pages
        except TooLargeError:
            too_many = n_pages
    return fitting * PAGE_LEN


def working_of(demands: Sequence[Demand], sizes: StateSizes) -> Working:
    """Return the workspace of models that run in turn, each with memory of its own."""
    each = [demand.working(sizes, PREFILL_CHUNK) for demand in demands]
    return Working(
        sum(one.scratch for one in each),
        sum(one.graphs for one in each),
        sum(one.n_graphs for one in each),
        max((one.reserve for one in each), default=0),
    )
