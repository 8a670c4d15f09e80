"""From raw samples to what is shown: by configuration, category and number of users."""

from __future__ import annotations

from collections.abc import Sequence

from .counts import compare_texts, count, first_texts
from .record import Sample, Summary
from .times import compare, decoding, interval, reading, times_of, whole


def summarise(
    samples: Sequence[Sample],
    names: Sequence[str],
    baseline: str,
    plain: str | None,
    *,
    categories: Sequence[str] = (),
    seed: int = 0,
) -> list[Summary]:
    """`names`: configurations in their order. `plain`: the one without speculation, if any: what
    a round costs is told in its steps. `categories` to be shown apart, if there are several."""
    if len(categories) == 1:
        categories = ()
    wanted = first_texts(sample for sample in samples if sample.configuration == baseline)
    found = []
    for concurrency in sorted({sample.concurrency for sample in samples}):
        for category in ["", *categories]:
            here = [
                sample
                for sample in samples
                if sample.concurrency == concurrency and category in ("", sample.category)
            ]
            of_each = {name: [s for s in here if s.configuration == name] for name in names}
            for name in names:
                summary = _summary(of_each, name, baseline, plain, seed)
                summary.category, summary.concurrency = category, concurrency
                mine = of_each[name]
                if name != baseline or concurrency > 1:
                    compare_texts(summary.counts, mine, wanted)
                found.append(summary)
    return found


def _summary(
    of_each: dict[str, list[Sample]], name: str, baseline: str, plain: str | None, seed: int
) -> Summary:
    mine, base = of_each[name], of_each[baseline]
    summary = Summary(name, "", 1, count(mine), times_of(mine))
    times = summary.times
    times.n_blocks = len({(s.prompt, s.repetition) for s in mine})
    if name != baseline:
        times.speedup = interval(compare(mine, base, decoding, seed))
        times.wall_speedup = interval(compare(mine, base, whole, seed))
        times.prompt_speedup = interval(compare(mine, base, reading, seed))
    if plain is not None and name != plain and times.round_ms:
        step_ms = times_of(of_each[plain]).round_ms
        times.break_even_len = times.round_ms / step_ms if step_ms else None
    return summary
