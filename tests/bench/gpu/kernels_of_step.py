"""Where the time of a step goes: each kernel's share, and how far it is from its floor.

Kernels are started in turn: the time of one that starts early has its waiting in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from ..figures import Figure
from .decoding import SHORT
from .ledger import COPIED
from .loaded import Loaded, Steps

WIDTHS = (1, 4)
Seen = dict[str, tuple[float, float]]  # launches of a step, and microseconds of them all


def shares(loaded: Loaded, seconds: float) -> list[Figure]:
    figures = []
    with loaded.place.starting(early=False):
        for n in WIDTHS:
            figures += _of_width(loaded, n)
    return figures


def _of_width(loaded: Loaded, n_rows: int) -> list[Figure]:
    steps = Steps(loaded, SHORT)
    step = steps.step(n_rows, SHORT)
    ms, one = steps.ms(step), steps.again(step)
    seen = (_counted if loaded.place.is_dry else _profiled)(loaded, one)
    account, row = loaded.ledger.step(n_rows, SHORT), f"{n_rows} {'row' if n_rows == 1 else 'rows'}"
    figures = []
    for name, (launches, us) in sorted(seen.items(), key=lambda item: -item[1][1]):
        line = account.lines.get(name)
        moved = math.nan if line is None else line.bytes.from_memory
        floor = 1e6 * moved / COPIED
        detail = {
            "kernel": name,
            "launches": launches,
            "launches_counted": 0 if line is None else line.launches,
            "floor_us": floor,
            "above_floor_us": us - floor,
            "gb_per_s": moved / us / 1e3 if us else math.nan,
        }
        figures.append(Figure(f"{row}: {name}", us, "us", detail=detail))
    total = sum(us for _, us in seen.values())
    figures += [
        Figure(f"{row}: all kernels", total, "us"),
        Figure(f"{row}: a step", 1e3 * ms, "us"),
        Figure(f"{row}: between kernels", 1e3 * ms - total, "us"),
        Figure(f"{row}: floor of a step", 1e6 * account.floor_s, "us"),
        Figure(f"{row}: launches / counted", _launches(seen) / account.launches, "x"),
    ]
    return figures


def as_table(figures: Sequence[Figure]) -> str:
    """Kernels only: how often, how long, how long at least."""
    head = ("", "launches", "us", "floor us", "above us", "GB/s")
    lines = [f"{head[0]:44}" + "".join(f"{name:>10}" for name in head[1:])]
    for figure in figures:
        if "kernel" in figure.detail:
            numbers = [figure.detail["launches"], figure.measured]
            numbers += [figure.detail[n] for n in ("floor_us", "above_floor_us", "gb_per_s")]
            lines.append(f"{figure.name:44}" + "".join(f"{n:10.1f}" for n in numbers))
    return "\n".join(lines)


def _launches(seen: Seen) -> float:
    return sum(launches for launches, _ in seen.values())


def _profiled(loaded: Loaded, one: Callable[[], object]) -> Seen:
    """As torch's profiler sees it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    times = loaded.scale.profiled
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(times):
            one()
        torch.cuda.synchronize()
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in found.events():
        if event.device_type.name == "CUDA":
            counts[event.name] += 1
            spent[event.name] += event.time_range.elapsed_us()
    if not counts:
        raise RuntimeError("torch's profiler saw no kernel: is CUPTI there?")
    return {name: (n / times, spent[name] / times) for name, n in counts.items()}


def _counted(loaded: Loaded, one: Callable[[], object]) -> Seen:
    """On the CPU: what was launched, in no time worth telling."""
    launches = loaded.place.device.launcher.launches  # type: ignore[attr-defined]
    launches.clear()
    one()
    return {name: (n, math.nan) for name, n in Counter(made.name for made in launches).items()}
