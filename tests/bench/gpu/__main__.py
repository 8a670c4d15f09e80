"""Whole steps on this machine's GPU; `--ledger` counts what they move and launches without one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shim.machine import host_problem

from nextn.cuda_kernels.device import unavailable_reason

from ..figures import Figure, summary, table
from ..kernels.provenance import device, provenance
from ..record import Record
from . import decoding, exact, kernels_of_step, ledger_report, reading, speculating, starting
from .ledger import Ledger
from .loaded import Loaded
from .place import Place, scratch_folder
from .plan import PLANS, Plan

SECONDS = 560  # of a run: what one call on a machine may take, less a little
Section = Callable[[Loaded, float], list[Figure]]

# In the order of a run, with the seconds that each may repeat its measurements for: on the first
# model, and on the others. What is asked for comes first.
SECTIONS: dict[str, tuple[Section, float, float]] = {
    "exact": (exact.bits, 20, 10),
    "plain": (decoding.plain, 25, 15),
    "starts": (starting.starts, 10, 10),
    "widths": (decoding.widths, 15, 10),
    "mtp": (speculating.mtp, 60, 30),
    "prompts": (reading.prompts, 60, 30),
    "rollback": (reading.rollback, 1, 1),
    "kernels": (kernels_of_step.shares, 10, 10),
    "ngrams": (speculating.ngrams, 20, 10),
    "long-drafts": (decoding.long_drafts, 10, 5),
    "together": (decoding.together, 30, 20),
    "contexts": (decoding.contexts, 20, 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    parser.add_argument("--only", type=_names, default=[], metavar="NAME[,NAME...]")
    parser.add_argument("--out", type=Path, help="where the JSON record goes; of --ledger, a page")
    parser.add_argument("--dry", action="store_true", help="tiny models on the CPU, no figures")
    parser.add_argument("--ledger", action="store_true", help="count bytes and launches, run none")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all together")
    options = parser.parse_args()
    if options.ledger:
        print_ledger(options.out)
        return
    if not options.dry and (reason := unavailable_reason()):
        raise SystemExit(f"nothing can be measured here: {reason}")
    if options.dry and (reason := host_problem()):
        raise SystemExit(f"the CPU shim cannot run here: {reason}")
    place = Place.dry() if options.dry else Place.gpu(options.seconds)
    failed = measure(place, options.only, options.out)
    if failed:
        raise SystemExit(f"{len(failed)} sections failed: {', '.join(failed)}")


def measure(place: Place, only: list[str], out: Path | None = None) -> list[str]:
    """Prints figures as they come, keeps them in the record; the names of what failed."""
    bench = Bench(place, only, out)
    with scratch_folder() as folder:
        for plan in PLANS:
            if any(bench.wants(plan, section) for section in SECTIONS):
                bench.model(plan, Path(folder))
                place.tidy()
    judged = {name: [f for f in found if f.asked] for name, found in bench.results.items()}
    _print(f"{table(judged)}\n\n{summary(judged)}")
    if place.is_dry:
        _print("tiny models on the CPU: everything ran, and no time means anything")
    return bench.failed


class Bench:
    def __init__(self, place: Place, only: list[str], out: Path | None) -> None:
        self.place, self.only = place, only
        self.results: dict[str, list[Figure]] = {}
        self.failed: list[str] = []
        self._record = Record(out, provenance(only) | {"dry": place.is_dry})

    def wants(self, plan: Plan, section: str) -> bool:
        """By the model's name, the section's, or both: 27B:mtp."""
        named = {plan.name, section, f"{plan.name}:{section}"}
        return not self.only or not named.isdisjoint(self.only)

    def model(self, plan: Plan, folder: Path) -> None:
        loaded: list[Loaded] = []

        def load(_: Loaded | None, __: float) -> list[Figure]:
            loaded.append(Loaded.make(self.place, plan, folder))
            made = loaded[0]
            size = made.backend.weight_bytes() / 1e9
            return [Figure("made", made.seconds, "s"), Figure("weights", size, "GB")]

        self._section(f"{plan.name} load", lambda: load(None, 0))
        if not loaded:
            return
        for name, (section, *seconds) in SECTIONS.items():
            if self.wants(plan, name):
                share = seconds[0 if plan is PLANS[0] else 1]
                self._section(f"{plan.name} {name}", partial(section, loaded[0], share))
                self.place.tidy()

    def _section(self, name: str, work: Callable[[], list[Figure]]) -> None:
        """One that fails is a line, and so is one for which no time is left."""
        if self.place.seconds_left <= 0:
            self._lost(name, "no time was left for it")
            return
        start, before = time.perf_counter(), device()
        try:
            figures = work()
        except Exception as error:  # noqa: BLE001 - the others go on, and the run fails at its end
            self._lost(name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return
        took = time.perf_counter() - start
        self.results[name] = figures
        facts = {"seconds": round(took, 1), "device_before": before, "device_after": device()}
        self._record.add(name, facts | {"figures": [figure.as_json() for figure in figures]})
        _print(f"{name} ({took:.1f} s)\n{_shown(name, figures)}\n")

    def _lost(self, name: str, why: str) -> None:
        self.failed.append(name)
        self._record.add(name, {"failed": why})
        _print(f"{name}: {why}\n")


def print_ledger(page: Path | None) -> None:
    results: dict[str, list[Figure]] = {}
    parts = []
    for plan in PLANS:
        ledger = Ledger(plan.sizes)
        results[plan.name] = ledger_report.figures(plan, ledger)
        parts.append(ledger_report.tables(plan, ledger))
    against = f"```\n{table(results)}\n```"
    if page is not None:
        ledger_report.put_into(page, "\n\n".join([against, *parts]))
    _print("\n\n".join([*parts, table(results), summary(results)]))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    models = [plan.name for plan in PLANS]
    known = {*models, *SECTIONS, *(f"{model}:{name}" for model in models for name in SECTIONS)}
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(
            f"no section {unknown[0]!r}; choose from {', '.join([*models, *SECTIONS])}, or "
            f"{models[0]}:plain"
        )
    return names


def _shown(name: str, figures: list[Figure]) -> str:
    """Kernels have a table of their own."""
    kernels = [figure for figure in figures if "kernel" in figure.detail]
    others = [figure for figure in figures if figure not in kernels]
    parts = [kernels_of_step.as_table(kernels)] if kernels else []
    return "\n\n".join([*parts, table({name: others})])


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
