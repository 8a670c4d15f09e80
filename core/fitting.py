"""Whether a model, its state and its workspace fit into memory, before any weight is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .backend.interface import Working
from .backend.layers import StateShape
from .errors import ConfigError, ModelError, NextnError
from .models.demand import Demand
from .speculation.draft_file import DraftFile, leave_out, load_draft
from .speculation.drafters.draft_model_state import draft_sizes
from .speculation.options import SpecOptions
from .speculation.setting import LoadedModel
from .state.budget import TooLargeError, check_weights, make_budget
from .state.host_memory import available_memory
from .state.sizes import PAGE_LEN, PREFILL_CHUNK, StateSizes

if TYPE_CHECKING:
    from .backend.interface import Backend
    from .gguf.reader import GgufFile
    from .models.model import Model

CHECKPOINTS: Final = 2  # per sequence: one where prompts diverge, one at the end
LEAST_CONTEXT: Final = 512  # tokens; a default context is not made shorter

DEFAULT_CONTEXT: Final = 8192  # tokens, where neither the model nor the caller sets less
_HOST_DEVICES: Final = ("cpu", "torch:cpu")  # backends with arrays in host memory

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
        warn_of_shorter_context(longest, length)
        return longest
    return length


def warn_of_shorter_context(n_tokens: int, wanted: int) -> None:
    logger.warning(
        "the context has %d tokens: %d do not fit into memory (-c says how many)", n_tokens, wanted
    )


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


def available_for(backend: Backend) -> int | None:
    if backend.name in _HOST_DEVICES:
        return available_memory()
    return backend.free_device_bytes()


def available_beside_drafts(backend: Backend, n_bytes: int) -> int | None:
    """Return the bytes that are free for a model beside drafters of so many."""
    available = available_for(backend)
    return None if available is None else max(0, available - n_bytes)


def available_beside(backend: Backend) -> int | None:
    """Return the bytes that are free beside the loaded weights; None if unknown."""
    available = available_for(backend)
    if available is not None:  # the system counts pages of a mapped file as free
        available = max(0, available - backend.mapped_bytes)
    return available


def load_drafts_beside(
    drafts: Sequence[DraftFile],
    target: LoadedModel,
    backend: Backend,
    spec: SpecOptions,
    n_ctx: int,
    demands: list[Demand],
) -> tuple[list[DraftFile], LoadedModel | None]:
    """Return those that were loaded, and the draft model among them. One that was found beside the
    model, not named, is left out where it does not fit, with a warning."""
    used, model = [], None
    for each in drafts:
        n_before = len(demands)
        try:
            model = load_draft_beside(each, target, backend, spec, n_ctx, demands) or model
        except NextnError as error:
            if not each.is_companion:
                raise
            del demands[n_before:]
            leave_out(each, error)
        else:
            used.append(each)
    return used, model


def load_draft_beside(
    draft: DraftFile,
    target: LoadedModel,
    backend: Backend,
    spec: SpecOptions,
    n_ctx: int,
    demands: list[Demand],
) -> LoadedModel | None:
    """Return the draft model; raises if it does not fit beside the target and one sequence's state.

    Its memory needs are appended to `demands`.
    """
    sizes = sizes_of(n_ctx, 1)

    def check(demand: Demand) -> None:
        demands.append(demand)
        available = available_beside(backend)
        if available is None:
            return
        working = working_of(demands, sizes)
        shape = target.model.state_shape
        state = make_budget(backend, shape, sizes, available, working=working)
        own = draft_sizes(sizes, n_ctx, spec.n_max)
        left = backend.left_beside(state.needed, available)
        # A head's keys and values belong to the state of the target, which is checked afterwards.
        shape = demand.model.state_shape if draft.is_model else StateShape(())
        weights = demand.weight_bytes
        try:
            check_weights(backend, shape, weights, demand.stored_bytes, left)
            make_budget(backend, shape, own, max(0, left - weights), weights)
        except (ModelError, ConfigError) as error:
            kind = ModelError if isinstance(error, ModelError) else ConfigError
            raise kind(f"{draft.file.label}, beside the model itself: {error}") from None

    return load_draft(draft, target, backend, check)


def context_length(model: Model, n_ctx: int | None) -> int:
    if n_ctx is None:
        return min(model.hparams.n_ctx_train, DEFAULT_CONTEXT)
    if n_ctx < 1:
        raise ConfigError(f"the context size must be at least 1, got {n_ctx}")
    return n_ctx
