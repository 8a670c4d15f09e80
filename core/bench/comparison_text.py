"""A comparison for people: a Markdown table that reads as plain text, too."""

from __future__ import annotations

from collections.abc import Sequence

from .comparing import Comparison, Row
from .words import NOTHING, interval, number, share

_COLUMNS = (
    "configuration", "category", "users", "A tokens/s", "B tokens/s", "B / A", "A speed-up",
    "B speed-up", "A tokens/round", "B tokens/round", "A accepted", "B accepted", "same texts",
)  # fmt: skip


def as_markdown(found: Comparison) -> str:
    rows = [_cells(row) for row in found.rows]
    known = [i for i in range(len(_COLUMNS)) if any(row[i] != NOTHING for row in rows)]
    kept = [[row[i] for i in known] for row in rows]
    lines = [*_notes(found), *markdown_table([_COLUMNS[i] for i in known], kept), ""]
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


def _cells(row: Row) -> list[str]:
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


def markdown_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns are padded, so that it can be read as it stands."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (names, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    lines = ["| " + " | ".join(_padded(row, widths)) + " |" for row in cells]
    rule = ["-" * (width - 1) + ("-" if i == 0 else ":") for i, width in enumerate(widths)]
    return [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in pairs]
