"""The controller against every fixed setting, over six kinds of work."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import nextn.core
from nextn.core import nano
from nextn.core.engine.engine import Engine
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import NGRAM_MOD, SpecOptions

from .figures import Figure, spread
from .setup import Setup
from .spec_runs import AUTO, PLAIN, Pace, fixed_mtp, interleaved, new_engine, ratio, write_all
from .spec_workloads import KINDS, tasks

ROUNDS = 5
TEMPERATURES = (0.0, 0.7)
CONTROLLER, NO_DRAFTS = "controller", "plain"
SETTINGS: dict[str, SpecOptions] = {
    NO_DRAFTS: PLAIN,
    **{f"mtp {n}": fixed_mtp(n) for n in range(1, 9)},
    NGRAM_MOD: SpecOptions(types=(NGRAM_MOD,), fixed=True),
    CONTROLLER: AUTO,
}
NEAR_THE_BEST = 0.97

Rates = dict[str, list[float]]  # by setting, one of each round


def sweep(setup: Setup) -> list[Figure]:
    """One engine for each setting, which does all the work in turn, as a server would."""
    path: Path = nano.path()
    with nextn.core.load(path, "cpu", threads=setup.threads) as runtime:
        engines = {name: new_engine(runtime, options) for name, options in SETTINGS.items()}
        found = {
            f"{kind}, temperature {temperature:g}": measure(runtime, engines, kind, temperature)
            for kind in KINDS
            for temperature in TEMPERATURES
        }
    figures = [_of_one_kind(name, rates) for name, rates in found.items()]
    return [*figures, *overall(list(found.values()))]


def measure(
    runtime: Runtime,
    engines: dict[str, Engine],
    kind: str,
    temperature: float,
    rounds: int = ROUNDS,
) -> Rates:
    """Tokens/s; every text has to be the same with all of them."""
    work = tasks(runtime, kind)
    texts: dict[str, list[list[int]]] = {}

    def runner(name: str) -> Callable[[int], float]:
        def run(i: int) -> float:
            pace = write_all(engines[name], work, temperature, f"{kind} {temperature} {i}")
            check_texts(texts, pace, name)
            return pace.rate

        return run

    return interleaved({name: runner(name) for name in engines}, rounds)


def check_texts(texts: dict[str, list[list[int]]], pace: Pace, name: str) -> None:
    if texts.setdefault("all", pace.texts) != pace.texts:
        raise AssertionError(f"the texts are not the same with {name}")


def _of_one_kind(name: str, rates: Rates) -> Figure:
    best = best_fixed(rates)
    measured = ratio(rates[CONTROLLER], rates[best])
    detail = {
        "best_fixed": best,
        "best_fixed_over_plain": ratio(rates[best], rates[NO_DRAFTS]),
        "tokens_per_second": {key: spread(values) for key, values in rates.items()},
    }
    title = f"{name}: controller / {best}"
    return Figure(title, measured, "x", NEAR_THE_BEST, detail=detail)


def best_fixed(rates: Rates) -> str:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    del medians[CONTROLLER]
    return max(medians, key=lambda name: medians[name])


def overall(found: Sequence[Rates]) -> list[Figure]:
    """Geometric means over all kinds of work, in plain decoding's."""
    mean = {
        name: statistics.geometric_mean(ratio(rates[name], rates[NO_DRAFTS]) for rates in found)
        for name in found[0]
    }
    fixed = {name: value for name, value in mean.items() if name != CONTROLLER}
    best = max(fixed, key=lambda name: fixed[name])
    measured = mean[CONTROLLER] / fixed[best]
    title = f"overall: controller / {best}, the best single setting"
    return [
        Figure(title, measured, "x", 1.0, detail={"over_plain": mean}),
        Figure("overall: controller / plain", mean[CONTROLLER], "x"),
    ]
