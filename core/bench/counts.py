"""What repeats exactly: how much was drafted and accepted, and whether the texts are equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest

from .record import Sample, SourceCount, SummaryCounts

Key = tuple[str, int]  # prompt and turn


def count(samples: Sequence[Sample]) -> SummaryCounts:
    """Of one configuration, and one of its repetitions; of all of them where they differ, as they
    do where drafts follow the clock."""
    if not samples:
        return SummaryCounts()
    repeats, once = _repeats(samples), list(samples)
    if repeats:
        first = min(sample.repetition for sample in samples)
        once = [sample for sample in samples if sample.repetition == first]
    counts = SummaryCounts(
        n_samples=len(once),
        prompt_n=sum(sample.prompt_n for sample in once),
        predicted_n=sum(sample.predicted_n for sample in once),
        rounds=_sum(sample.rounds for sample in once),
        drafts=_sum(sample.drafts for sample in once),
        draft_n=_sum(sample.draft_n for sample in once),
        draft_n_accepted=_sum(sample.draft_n_accepted for sample in once),
        by_source=_sources(once, samples),
        repeats=repeats,
    )
    _add_rates(counts, once)
    return counts


def compare_texts(
    counts: SummaryCounts, samples: Sequence[Sample], wanted: dict[Key, Sample]
) -> None:
    """Compare the texts of every repetition with the baseline's."""
    counts.identical = True
    for sample in samples:
        other = wanted.get((sample.prompt, sample.turn))
        if other is None or _same(sample, other):
            continue
        counts.identical = False
        counts.first_difference = _difference(sample, other)
        return


def first_texts(samples: Iterable[Sample]) -> dict[Key, Sample]:
    """The first text that was written of each prompt and turn."""
    found: dict[Key, Sample] = {}
    for sample in samples:
        found.setdefault((sample.prompt, sample.turn), sample)
    return found


def _same(one: Sample, other: Sample) -> bool:
    if one.tokens is not None and other.tokens is not None:
        return one.tokens == other.tokens
    return one.text == other.text


def _difference(sample: Sample, other: Sample) -> str:
    where = sample.prompt if not sample.turn else f"{sample.prompt}, turn {sample.turn + 1}"
    mine, theirs = sample.output or (), other.output or ()
    unit = "token" if isinstance(mine, list) else "character"
    for i, (a, b) in enumerate(zip_longest(mine, theirs)):
        if a != b:
            return f"{where}: {unit} {i + 1} is {_shown(a)}, not {_shown(b)}"
    return f"{where}: texts of another kind"


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)


def _add_rates(counts: SummaryCounts, once: Sequence[Sample]) -> None:
    made = sum(sample.decode_n for sample in once)
    if counts.rounds:
        counts.mean_len = made / counts.rounds
    if counts.draft_n is None or counts.draft_n_accepted is None:
        return
    if counts.draft_n:
        counts.accept_rate = counts.draft_n_accepted / counts.draft_n
    if counts.rounds and counts.drafts:
        # Rounds without a draft make one token each.
        counts.mean_len_drafted = (made - (counts.rounds - counts.drafts)) / counts.drafts
    accepted = _by_place(sample.accepted_per_pos for sample in once)
    if not counts.drafts or not accepted:
        return
    counts.accept_per_pos = [n / counts.drafts for n in accepted]
    before = [counts.drafts, *accepted]
    counts.accept_if_reached = [n / m if m else 0.0 for m, n in zip(before, accepted, strict=False)]
    ends = [*accepted, 0]
    counts.histogram = [m - n for m, n in zip(before, ends, strict=True)]
    while len(counts.histogram) > 1 and not counts.histogram[-1]:
        counts.histogram.pop()


def _by_place(counts: Iterable[list[int] | None]) -> list[int]:
    rows = zip_longest(*(each for each in counts if each is not None), fillvalue=0)
    totals = [sum(row) for row in rows]
    # Some servers count each place alone; rates must not rise from place to place.
    return list(accumulate(totals[::-1], max))[::-1]


def _sum(values: Iterable[int | None]) -> int | None:
    """None if any is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _sources(once: Sequence[Sample], every: Sequence[Sample]) -> dict[str, SourceCount]:
    names = dict.fromkeys(name for sample in every for name in sample.by_source)
    found = {}
    for name in names:
        first = [s.by_source[name] for s in once if name in s.by_source]
        ms = sum(s.by_source[name].ms for s in every if name in s.by_source)
        found[name] = SourceCount(sum(c.drafted for c in first), sum(c.accepted for c in first), ms)
    return found


def _repeats(samples: Sequence[Sample]) -> bool:
    seen: dict[Key, tuple[object, ...]] = {}
    for sample in samples:
        now = (
            sample.output, sample.rounds, sample.drafts, sample.drafted_per_pos,
            sample.accepted_per_pos,
        )  # fmt: skip
        if seen.setdefault((sample.prompt, sample.turn), now) != now:
            return False
    return True
