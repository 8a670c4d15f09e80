"""Rounds of speculation without a host: drafts begun and picked, steps laid out and settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
from shim.launcher import HostLauncher
from support.device_sequences import draft_rows, new_records, new_sequences, verify_rows
from support.picking_rows import requests_of

from nextn.core.sampling.params import SamplingParams
from nextn.cuda_kernels.draft_pick import DraftHead, draft_pick
from nextn.cuda_kernels.head_pick import MAXIMA_BLOCK, Logits, head_summits
from nextn.cuda_kernels.kernel import Launcher
from nextn.cuda_kernels.round_times import note_time
from nextn.cuda_kernels.spec_accept import (
    Field,
    SequenceTable,
    State,
    draft_begin,
    sequence_words,
    spec_accept,
    verify_begin,
)

from .case import Case, Work
from .models import Sizes
from .place import Place

K, WINDOW, FAR = 4, 16, 1 << 30
LINES = (1, 8)
Arrays = dict[str, Any]  # numpy, or dataclasses of them
Launching = Callable[[Launcher, Arrays], None]


def settling(sizes: Sizes) -> Iterator[Case]:
    """Times do not depend on the model: once is enough."""
    if sizes.n_experts:
        return
    kinds: dict[str, Launching] = {
        "draft_begin": lambda launcher, a: draft_begin(
            launcher, a["sequences"], K, a["first"], a["following"]
        ),
        "verify_begin": lambda launcher, a: verify_begin(launcher, a["sequences"], K, a["rows"]),
        "spec_accept": lambda launcher, a: spec_accept(
            launcher, a["sequences"], a["rows"], a["picked"], a["stops"], WINDOW, a["records"]
        ),
    }
    for name, launching in kinds.items():
        for n in LINES:
            make = partial(_same_as_on_the_cpu, launching=launching, arrays=partial(_round, n))
            yield Case(f"{name}, {n} sequences", make, tolerance=0.0)


def clocks(sizes: Sizes) -> Iterator[Case]:
    if not sizes.n_experts:
        yield Case("note_time", _clock, tolerance=0.0)


def _clock(place: Place) -> Work:
    times, counter = place.zeros((2, 2), np.int64), place.ints(1)

    def error() -> float:
        """The time is in its own place, and nowhere else."""
        return float(((place.get(times) > 0) != [[False, False], [False, True]]).sum())

    return Work(partial(note_time, place.launcher, times, counter, 1), 8, error=error)


def drafting(sizes: Sizes) -> Iterator[Case]:
    def launching(launcher: Launcher, a: Arrays) -> None:
        draft_pick(launcher, a["sequences"], a["head"], 0, a["first"], a["following"])

    for n in LINES:
        arrays = partial(_draft, n, sizes.vocab)
        make = partial(_same_as_on_the_cpu, launching=launching, arrays=arrays)
        yield Case(f"{sizes.name} draft_pick of {sizes.vocab}, {n} sequences", make, tolerance=0.0)


def _lines(n: int) -> SequenceTable:
    sequences = new_sequences(n, K)
    for sequence in range(n):
        sequences.table[:, sequence] = sequence_words(
            state=State.RUNS, slot=sequence, request=sequence, past=100 + sequence, token=7,
            end=FAR, max_draft=K, length=K, drafted=K, fresh=1,
        )  # fmt: skip
    sequences.fresh[:] = 7
    sequences.drafts[:] = 8
    sequences.chances[:] = 0.5
    return sequences


def _round(n: int) -> Arrays:
    """A step that is laid out already; all drafts hold."""
    sequences, rows, launcher = _lines(n), verify_rows(n, n * (K + 1)), HostLauncher()
    verify_begin(launcher, sequences, K, rows)
    return {
        "sequences": sequences,
        "rows": rows,
        "first": draft_rows(n, n * (K + 1)),
        "following": draft_rows(n, n),
        "picked": np.full(n * (K + 1), 8, np.int32),
        "stops": np.array([3], np.int32),
        "records": new_records(4, sequences),
    }


def _draft(n: int, n_vocab: int) -> Arrays:
    sequences, launcher = _lines(n), HostLauncher()
    first, following = draft_rows(n, n * (K + 1)), draft_rows(n, n)
    draft_begin(launcher, sequences, K, first, following)
    values = 3 * np.random.default_rng(n).standard_normal((n, n_vocab), np.float32)
    shape = n, -(-n_vocab // MAXIMA_BLOCK)
    logits = Logits(values, np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    head_summits(launcher, logits)
    requests = requests_of([SamplingParams(temperature=0)] * n, 3, n_vocab)
    head = DraftHead(logits, requests, np.array([3], np.int32))
    return {"sequences": sequences, "head": head, "first": first, "following": following}


def _same_as_on_the_cpu(place: Place, launching: Launching, arrays: Callable[[], Arrays]) -> Work:
    """`error`: the part of the numbers that differ from those of the same launch on the shim."""
    here, there = arrays(), _put(place, arrays())
    launching(HostLauncher(), here)

    def error() -> float:
        pairs = list(zip(_leaves(here), _leaves(there), strict=True))
        unlike = [float((place.get(b) != a).mean()) for a, b in pairs if a.dtype == np.int32]
        return max(unlike)

    moved = 4 * len(Field) * here["sequences"].n
    return Work(partial(launching, place.launcher, there), moved, error=error)


def _put(place: Place, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return place.put(value)
    if isinstance(value, dict):
        return {name: _put(place, one) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(_put(place, getattr(value, field.name)) for field in fields(value)))
    return value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    elif value is not None and not isinstance(value, (int, float)):
        yield value
