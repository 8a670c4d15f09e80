"""Which rank holds which layers: ranges that fill all devices to the same degree.

Ranks run one after the other, so how layers are spread makes no difference to the time of a step;
it decides how much room is left for contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ..backend.interface import Backend
from ..backend.layers import SplitShape, StateShape
from ..gguf.reader import GgufFile
from ..models import survey_model
from ..models.demand import Demand
from ..models.model import Share
from ..state.sizes import StateSizes
from ..state.windows import WindowedPages, state_bytes_each

_ROUNDS: Final = 60  # of bisection
_MOST: Final = 1e9  # of what a device has


class Weighed(Struct, frozen=True):
    """A block of a model, or its ends: what it takes on a device."""

    weights: int
    state: int
    shape: StateShape

    @property
    def total(self) -> int:
        return self.weights + self.state


def weigh(file: GgufFile, backend: Backend, sizes: StateSizes, share: Share, mtp: bool) -> Weighed:
    survey = survey_model(file, with_nextn=mtp, share=share)
    weights = Demand.of(survey.model, survey.inventory, backend).weight_bytes
    shape = survey.model.state_shape
    each = state_bytes_each(backend, shape, sizes)
    windows = WindowedPages.of(backend, shape, sizes)
    windowed = windows.n_pages * each.windowed_page if windows else 0
    state = sizes.n_pages * each.page + windowed + sizes.n_slots * each.slot
    return Weighed(weights, state, shape)


def divide(ends: int, blocks: Sequence[int], room: Sequence[float]) -> list[range]:
    """Bytes of what only rank 0 can hold and of each block, and of each device; the blocks of each
    rank, at least one. Whether they fit is `fill`."""
    low, high = 0.0, _MOST
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if _last_fits(ends, blocks, room, middle):
            high = middle
        else:
            low = middle
    return _cut(ends, blocks, room, high)


def fill(ends: int, blocks: Sequence[int], ranges: Sequence[range]) -> list[int]:
    """Bytes on each device."""
    return [
        (0 if rank else ends) + sum(blocks[i] for i in each) for rank, each in enumerate(ranges)
    ]


def split_shape(
    ends: StateShape, blocks: Sequence[StateShape], ranges: Sequence[range]
) -> SplitShape:
    """Of the whole model; MTP heads lie behind all blocks."""
    ranks = [rank for rank, each in enumerate(ranges) for _ in each]
    kv = [(s, rank) for shape, rank in zip(blocks, ranks, strict=True) for s in shape.kv]
    recurrent = [
        (s, rank) for shape, rank in zip(blocks, ranks, strict=True) for s in shape.recurrent
    ]
    trunk = SplitShape(
        tuple(s for s, _ in kv),
        tuple(s for s, _ in recurrent),
        tuple(rank for _, rank in kv),
        tuple(rank for _, rank in recurrent),
    )
    return trunk.followed_by(ends)


def _last_fits(ends: int, blocks: Sequence[int], room: Sequence[float], degree: float) -> bool:
    ranges = _cut(ends, blocks, room, degree)
    used = fill(ends, blocks, ranges)
    return all(n <= degree * r for n, r in zip(used, room, strict=True))


def _cut(ends: int, blocks: Sequence[int], room: Sequence[float], degree: float) -> list[range]:
    """Each rank takes what fits, and leaves one block at least to each that follows."""
    first, ranges = 0, []
    for rank, own in enumerate(room):
        behind = len(room) - 1 - rank
        end, used = first + 1, (0 if rank else ends) + blocks[first]
        while end < len(blocks) - behind and used + blocks[end] <= degree * own:
            used += blocks[end]
            end += 1
        if not behind:
            end = len(blocks)
        ranges.append(range(first, end))
        first = end
    return ranges
