"""Rewriting a file with small changes: n-grams and MTP spliced, and each alone."""

from __future__ import annotations

import statistics
from functools import partial

from msgspec.structs import replace

import nextn.core
from nextn.core import nano
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import MTP, NGRAM_MOD, NgramModSizes, SpecOptions

from .figures import Figure
from .setup import Setup
from .spec_runs import PLAIN, interleaved, new_engine, ratio, spreads, write_all
from .spec_workloads import EDITS, edit

ROUNDS = 9
SPLICE = "splice"
ALONE = {"mtp alone": (MTP,), "ngram-mod alone": (NGRAM_MOD,)}
# As they are, and finding the place again a few tokens behind a change.
SIZES = {"usual sizes": NgramModSizes(), "n-match 8, n-min 1": NgramModSizes(n_match=8, n_min=1)}


def edits(setup: Setup) -> list[Figure]:
    figures = []
    with nextn.core.load(nano.path(), "cpu", threads=setup.threads) as runtime:
        for name, sizes in SIZES.items():
            found = measure(runtime, sizes)
            for other in ALONE:
                measured = ratio(found[SPLICE], found[other])
                title = f"{name}: splice / {other}"
                figures.append(Figure(title, measured, "x", 1.0, detail=spreads(found)))
            for each, rates in found.items():
                figures.append(Figure(f"{name}: {each}", statistics.median(rates), "tokens/s"))
    return figures


def measure(
    runtime: Runtime, sizes: NgramModSizes, rounds: int = ROUNDS, *, fixed: bool = False
) -> dict[str, list[float]]:
    spliced = SpecOptions(types=(NGRAM_MOD, MTP), ngram_mod=sizes, fixed=fixed)
    options = {"plain": PLAIN, SPLICE: spliced}
    options |= {name: replace(spliced, types=types) for name, types in ALONE.items()}
    engines = {name: new_engine(runtime, each) for name, each in options.items()}
    work = [edit(runtime, name) for name in EDITS]

    def rate(name: str, i: int) -> float:
        return write_all(engines[name], work, 0, str(i)).rate

    runs = {name: partial(rate, name) for name in engines}
    return interleaved(runs, rounds)
