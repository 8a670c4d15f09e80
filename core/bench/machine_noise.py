"""How quiet the machine was, and warnings of a run on a busy one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

from msgspec import Struct

from .record import Sample, Summary

NOISY: Final = 0.05  # spread of the repetitions' rates, by their mean
FAR: Final = 0.15  # of the median: a repetition that is so much slower was disturbed
DRIFTED: Final = 0.03
STOLEN: Final = 0.01  # of the processors' time
OTHERS: Final = 0.10  # of one processor
_N_NAMED: Final = 3


class MachineLoad(Struct, frozen=True):
    """Of the whole machine's clocks, in seconds."""

    clock: float
    own: float  # processor time of this process and of its children that have ended
    busy: float | None  # of all processes; None where the system has no /proc/stat
    stolen: float | None  # by the host, for other guests

    @classmethod
    def now(cls) -> MachineLoad:
        busy, stolen = _machine()
        return cls(time.perf_counter(), sum(os.times()[:4]), busy, stolen)

    def until_now(self) -> dict[str, Any]:
        """Shares of one processor: others' work, and what was stolen."""
        now = MachineLoad.now()
        seconds = max(now.clock - self.clock, 1e-9)
        found: dict[str, Any] = {"seconds": round(seconds, 1), "load_average": load_average()}
        if None not in (self.busy, now.busy, self.stolen, now.stolen):
            stolen = (now.stolen or 0.0) - (self.stolen or 0.0)
            busy = (now.busy or 0.0) - (self.busy or 0.0)
            others = max(0.0, busy - (now.own - self.own))
            found |= {"others": round(others / seconds, 3), "stolen": round(stolen / seconds, 3)}
        return found


def load_average() -> list[float] | None:
    return [round(each, 2) for each in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _machine() -> tuple[float | None, float | None]:
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, _idle, _disk, irq, softirq, steal = map(int, words)
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None, None
    return (user + nice + system + irq + softirq) / tick, steal / tick


def warnings_of(
    summaries: Sequence[Summary], samples: Sequence[Sample], machine: dict[str, Any]
) -> list[str]:
    """One line each."""
    found = []
    if machine.get("stolen", 0.0) > STOLEN:
        found.append(f"the host took {machine['stolen']:.0%} of a processor away (steal)")
    if machine.get("others", 0.0) > OTHERS:
        found.append(f"other processes used {machine['others']:.0%} of a processor meanwhile")
    whole = [summary for summary in summaries if not summary.category]
    found += dict.fromkeys(filter(None, map(_of_pairs, whole)))
    found += _of_rates(whole)
    found += _of_samples(samples)
    return found


def _of_pairs(summary: Summary) -> str:
    times = summary.times
    if not times.n_disturbed:
        return ""
    users = "" if summary.concurrency == 1 else f", with {summary.concurrency} users"
    return (
        f"{times.n_disturbed} of {times.n_blocks + times.n_disturbed} pairs were disturbed and are "
        f"set aside{users}: one of their texts took much longer than it did at other times"
    )


def _of_rates(summaries: Sequence[Summary]) -> list[str]:
    """One line for each kind, whatever number of configurations it is about."""
    noisy, slow, drifted = list[str](), list[str](), list[str]()
    for summary in summaries:
        name, rates, drift = summary.label, summary.times.samples_ts, summary.times.drift
        if len(rates) > 2:
            noise = stdev(rates) / fmean(rates)
            noisy += [f"{name} by {noise:.0%}"] if noise > NOISY else []
            far = [i for i, each in enumerate(rates, 1) if each < (1 - FAR) * median(rates)]
            if far and len(far) * 3 <= len(rates):
                more = " ..." if len(far) > _N_NAMED else ""
                slow.append(f"{', '.join(map(str, far[:_N_NAMED]))}{more} of {name}")
        if drift is not None and abs(drift - 1) > DRIFTED:
            drifted.append(f"{name} ended at {drift:.2f}x")
    found = []
    if noisy:
        found.append(
            f"noise too high: repetitions differ ({_first(noisy)}); the interval shows what is "
            "left of that after pairing"
        )
    if slow:
        found.append(
            f"outliers: less than {1 - FAR:.0%} of the median rate in repetition "
            f"{_first(slow, '; ')}"
        )
    if drifted:
        found.append(
            f"drift: {_first(drifted)} of the rate at the start; pairs are side by side, "
            "so that speed-ups do not suffer, but tokens/s do"
        )
    return found


def _first(lines: Sequence[str], comma: str = ", ") -> str:
    n_more = len(lines) - _N_NAMED
    return comma.join(lines[:_N_NAMED]) + (f"{comma}and {n_more} more" if n_more > 0 else "")


def _of_samples(samples: Sequence[Sample]) -> Iterable[str]:
    failed = [sample for sample in samples if sample.error]
    if failed:
        first = failed[0]
        yield f"{len(failed)} texts failed, the first by {first.configuration}: {first.error}"
    at_once = {s.configuration for s in samples if s.predicted_n > 1 and len(s.chunks) == 1}
    for name in sorted(at_once):
        yield (
            f"{name} sent whole texts at once: there is no time between tokens to measure, and "
            "those texts are left out of decoding rates"
        )
    short: dict[str, set[int]] = {}
    for sample in samples:
        short.setdefault(f"{sample.prompt} {sample.turn}", set()).add(sample.predicted_n)
    n_uneven = sum(len(lengths) > 1 for lengths in short.values())
    if n_uneven:
        yield f"{n_uneven} prompts were answered at different lengths by the configurations"
