"""A comparison for people: a Markdown table that reads as plain text, too."""

from __future__ import annotations

from .comparing import ComparedRow, Comparison
from .tables import markdown
from .words import NOTHING, interval, number, share

_COLUMNS = (
    "configuration", "category", "users", "A tokens/s", "B tokens/s", "B / A", "A speed-up",
    "B speed-up", "A tokens/round", "B tokens/round", "A accepted", "B accepted", "same texts",
)  # fmt: skip


def as_markdown(found: Comparison) -> str:
    rows = [_cells(row) for row in found.rows]
    known = [i for i in range(len(_COLUMNS)) if any(row[i] != NOTHING for row in rows)]
    kept = [[row[i] for i in known] for row in rows]
    lines = [*_notes(found), *markdown([[_COLUMNS[i] for i in known], *kept]), ""]
    if found.has_speeds:
        lines.append("B / A: decoding, with its 95% interval. Speed-ups: against the own baseline.")
    return "\n".join(lines) + "\n"


def _notes(found: Comparison) -> list[str]:
    lines = []
    if found.machines:
        lines.append("Speeds are not compared, because these differ (--force shows them anyway):")
        lines += [f"- {each.line}" for each in found.machines]
    if found.others:
        lines.append("Also different:")
        lines += [f"- {each.line}" for each in found.others]
    lines += [f"Warning: {line}" for line in found.warnings]
    for name, configurations in (("A", found.only_a), ("B", found.only_b)):
        if configurations:
            lines.append(f"Only in {name}: {', '.join(configurations)}")
    return [*lines, ""] if lines else []


def _cells(row: ComparedRow) -> list[str]:
    a, b = row.a, row.b
    gains = (a.times.speedup, b.times.speedup)
    return [
        row.configuration,
        row.category or "all",
        str(row.concurrency),
        number(a.times.avg_ts),
        number(b.times.avg_ts),
        interval(row.change),
        *(f"{gain.value:.3f}x" if gain is not None else NOTHING for gain in gains),
        number(a.counts.mean_len),
        number(b.counts.mean_len),
        share(a.counts.accept_rate),
        share(b.counts.accept_rate),
        f"{row.n_same} of {row.n_texts}",
    ]
