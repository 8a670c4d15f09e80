"""Plain decoding, steps of several rows, several sequences, long contexts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams

from ..figures import Figure, spread
from ..spec_runs import PLAIN, Task, new_engine, write
from .loaded import Loaded, Steps

ASKED_PLAIN = {"27B": 215.0, "35B-A3B": 700.0}
ASKED_WIDTHS = {"27B": {4: 1.08, 8: 1.15, 16: 1.4}}
SHORT = 1024  # cells that are there when nothing is said of contexts


def plain(loaded: Loaded, seconds: float) -> list[Figure]:
    """As the engine does it, with all that the host has to do; and the step without the host."""
    scale, engine, steps = loaded.scale, new_engine(loaded.runtime, PLAIN), Steps(loaded, SHORT)
    step = steps.step(1, SHORT)

    def tokens_per_s(i: int) -> float:
        task = Task(loaded.tokens(scale.n_prompt, i), scale.tokens)
        written = write(engine, task, 0, i, str(i))
        return written.n / written.seconds

    runs = {"tokens/s": tokens_per_s, "step ms": lambda _: steps.ms(step)}
    found = loaded.place.interleaved(runs, seconds)
    rate, ms = (statistics.median(found[name]) for name in runs)
    account = loaded.ledger.step(1, SHORT)
    floor = 1e3 * account.floor_s
    asked = ASKED_PLAIN.get(loaded.plan.name)
    detail = {"rates": spread(found["tokens/s"]), "steps_ms": spread(found["step ms"])}
    return [
        Figure("plain decoding", rate, "tokens/s", at_least=asked, detail=detail),
        Figure("a step without the host", ms, "ms"),
        Figure("floor of a step", floor, "ms"),
        Figure("floor / step", floor / ms, "x"),
        Figure("host, of each token", 1e3 / rate - ms, "ms"),
    ]


def widths(loaded: Loaded, seconds: float) -> list[Figure]:
    """Steps that verify, in time of a plain one."""
    steps, scale = Steps(loaded, SHORT), loaded.scale
    runs: dict[str, Callable[[int], float]] = {
        str(n): partial(_ms, steps, n, SHORT) for n in scale.widths
    }
    found = loaded.place.interleaved(runs, seconds)
    base = found["1"]
    figures = [Figure("1 row", statistics.median(base), "ms", detail={"ms": spread(base)})]
    for n in scale.widths[1:]:
        times = statistics.median(a / b for a, b in zip(found[str(n)], base, strict=True))
        asked = ASKED_WIDTHS.get(loaded.plan.name, {}).get(n)
        detail = {"ms": spread(found[str(n)]), "floor_ms": 1e3 * loaded.ledger.step(n).floor_s}
        name = f"{n} rows / a plain step"
        figures.append(Figure(name, times, "x", at_most=asked, detail=detail))
    return figures


def long_drafts(loaded: Loaded, seconds: float) -> list[Figure]:
    """What n-grams may draft: a row more than tokens."""
    steps = Steps(loaded, SHORT)
    runs: dict[str, Callable[[int], float]] = {"1": partial(_ms, steps, 1, SHORT)}
    runs |= {str(n): partial(_ms, steps, n + 1, SHORT) for n in loaded.scale.long_drafts}
    found = loaded.place.interleaved(runs, seconds)
    figures = []
    for n in loaded.scale.long_drafts:
        pairs = list(zip(found[str(n)], found["1"], strict=True))
        times = statistics.median(a / b for a, b in pairs)
        best = statistics.median(1e3 * (n + 1) / ms for ms, _ in pairs)
        detail = {"ms": spread(found[str(n)])}
        figures.append(Figure(f"draft of {n}: step / a plain step", times, "x", detail=detail))
        figures.append(Figure(f"draft of {n}, if all of it holds", best, "tokens/s"))
        worth = times - 1
        figures.append(Figure(f"draft of {n}: pays from so many accepted", worth, "tokens"))
    return figures


def contexts(loaded: Loaded, seconds: float) -> list[Figure]:
    """Cells hold random numbers: nothing was read to get there."""
    scale = loaded.scale
    steps = Steps(loaded, max(scale.contexts))
    figures = []
    runs = {
        f"{n} rows at {past}": partial(_ms, steps, n, past)
        for past in scale.contexts
        for n in (1, 4)
    }
    found = loaded.place.interleaved(runs, seconds)
    for past in scale.contexts:
        one, four = (found[f"{n} rows at {past}"] for n in (1, 4))
        floor = 1e3 * loaded.ledger.step(1, past).floor_s
        ms = statistics.median(one)
        times = statistics.median(a / b for a, b in zip(four, one, strict=True))
        name = f"context {past}"
        detail = {"ms": spread(one), "floor_ms": floor}
        figures += [
            Figure(f"{name}: a step", ms, "ms", detail=detail),
            Figure(f"{name}: floor / step", floor / ms, "x"),
            Figure(f"{name}: 4 rows / 1 row", times, "x", detail={"ms": spread(four)}),
        ]
    return figures


def together(loaded: Loaded, seconds: float) -> list[Figure]:
    """Sequences that are written at once, all tokens counted."""
    counts = loaded.scale.sequences
    engines = {n: new_engine(loaded.runtime, PLAIN, n_slots=n) for n in counts}
    runs = {str(n): partial(_rate, loaded, engines[n], n) for n in counts}
    found = loaded.place.interleaved(runs, seconds)
    figures = []
    for n in counts:
        rates = found[str(n)]
        gain = statistics.median(a / b for a, b in zip(rates, found[str(counts[0])], strict=True))
        name = f"{n} sequences" if n > 1 else "1 sequence"
        rate = statistics.median(rates)
        figures.append(Figure(name, rate, "tokens/s", detail={"rates": spread(rates)}))
        figures.append(Figure(f"{name} / one", gain, "x"))
    return figures


def _ms(steps: Steps, n_rows: int, past: int, _: int) -> float:
    return steps.ms(steps.step(n_rows, past))


def _rate(loaded: Loaded, engine: Engine, n: int, i: int) -> float:
    """Of tokens after all prompts were read."""
    scale = loaded.scale
    params = GenerateParams(
        SamplingParams(temperature=0.0), max_tokens=scale.tokens, ignore_eos=True
    )
    texts = [engine.add(loaded.tokens(scale.n_prompt, 100 * i + k), params) for k in range(n)]
    while engine.has_work and any(not text.stats.steps for text in texts):
        engine.step()
    before = sum(len(text.tokens) for text in texts)

    def rest() -> None:
        while engine.has_work:
            engine.step()

    took = loaded.place.seconds(rest)
    return (sum(len(text.tokens) for text in texts) - before) / took
