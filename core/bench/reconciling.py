"""What was counted here beside what a server has counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .counters import Counters
from .record import Sample


def counted(
    samples: Sequence[Sample], with_cached: bool, *, with_drafts: bool = True
) -> dict[str, Any]:
    """As the server counts them; None where a sample did not say."""
    values: dict[str, Any] = {
        "predicted": sum(s.predicted_n for s in samples),
        "prompt": sum(s.prompt_n - (0 if with_cached else s.cached_n) for s in samples),
    }
    if not with_drafts:
        return values
    for name, field in (("drafts", "drafts"), ("drafted", "draft_n"),
                        ("accepted", "draft_n_accepted")):  # fmt: skip
        known = [getattr(s, field) for s in samples]
        values[name] = None if None in known else sum(known)
    places = [s.accepted_per_pos for s in samples]
    values["per_pos"] = None if None in places else _places([p for p in places if p is not None])
    return values


def fill_from_counters(sample: Sample, found: Counters | None) -> None:
    """For a server whose answers say nothing about drafts, and whose counters do."""
    if found is None or found.drafted is None or found.accepted is None:
        return
    if (found.predicted or 0) != sample.predicted_n:
        return  # somebody else was there
    sample.draft_n, sample.draft_n_accepted = found.drafted, found.accepted
    sample.drafts = found.drafts
    sample.accepted_per_pos = list(found.per_place)
    sample.rounds = max(0, sample.predicted_n - 1 - found.accepted)


def added(some: Counters, others: Counters) -> Counters:
    sums = {
        name: plus(getattr(some, name), getattr(others, name))
        for name in ("drafts", "drafted", "accepted", "predicted", "prompt", "cached", "steps")
    }
    types = {
        name: _types_plus(some.by_type.get(name), others.by_type.get(name))
        for name in {**some.by_type, **others.by_type}
    }
    places = _places([list(some.per_place), list(others.per_place)])
    return replace(others, per_place=tuple(places), by_type=types, **sums)


def _types_plus(some: Any, others: Any) -> Any:
    if some is None or others is None:
        return some or others
    return type(some)(some.drafted + others.drafted, some.accepted + others.accepted)


def plus(some: Any, others: Any) -> Any:
    if some is None or others is None:
        return None
    return _places([some, others]) if isinstance(some, list) else some + others


def _places(lists: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, lists), default=0)
    return [sum(each[i] for each in lists if i < len(each)) for i in range(longest)]
