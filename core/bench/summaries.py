"""From raw samples to what is shown: by configuration, category and number of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .counts import compare_texts, count, first_texts
from .record import Sample, Summary, Times
from .times import compare, decoding, interval, reading, times_of, whole


def summarise(
    samples: Sequence[Sample],
    timed: Sequence[Sample],
    names: Sequence[str],
    baseline: str,
    plains: Mapping[str, str],
    *,
    categories: Sequence[str] = (),
    seed: int = 0,
) -> list[Summary]:
    """`samples`: complete pairs, of which `timed` were not disturbed. `names`: configurations in
    their order. `plains`: of a configuration, the one of its engine without speculation, if any:
    a round's cost is given in its steps. `categories` to be shown apart, if several."""
    if len(categories) == 1:
        categories = ()
    wanted = first_texts(sample for sample in samples if sample.configuration == baseline)
    found = []
    for concurrency in sorted({sample.concurrency for sample in samples}):
        for category in ["", *categories]:
            of_each = _of_each(timed, names, concurrency, category)
            all_of_each = _of_each(samples, names, concurrency, category)
            for name in names:
                mine = all_of_each[name]
                times = _times(of_each, name, baseline, plains.get(name), seed)
                times.n_disturbed = len({(s.prompt, s.repetition) for s in mine}) - times.n_blocks
                summary = Summary(name, category, concurrency, count(mine), times)
                if name != baseline or concurrency > 1:
                    compare_texts(summary.counts, mine, wanted)
                found.append(summary)
    return found


def _of_each(
    samples: Sequence[Sample], names: Sequence[str], concurrency: int, category: str
) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {name: [] for name in names}
    for sample in samples:
        if sample.concurrency == concurrency and category in ("", sample.category):
            found[sample.configuration].append(sample)
    return found


def _times(
    of_each: dict[str, list[Sample]], name: str, baseline: str, plain: str | None, seed: int
) -> Times:
    mine, base = of_each[name], of_each[baseline]
    times = times_of(mine)
    times.n_blocks = len({(s.prompt, s.repetition) for s in mine})
    if name != baseline:
        times.speedup = interval(compare(mine, base, decoding, seed))
        times.wall_speedup = interval(compare(mine, base, whole, seed))
        times.prompt_speedup = interval(compare(mine, base, reading, seed))
    if plain is not None and name != plain and times.round_ms:
        step_ms = times_of(of_each[plain]).round_ms
        times.break_even_len = times.round_ms / step_ms if step_ms else None
    return times
