"""Draw a file of `--spec-trace` as an SVG: drafted and taken tokens, what was believed, the rate.

python tests/bench/plot_trace.py TRACE.jsonl OUT.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_WIDTH: Final = 900
_PANEL: Final = 150
_LEFT: Final = 60
_GAP: Final = 40
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")

Series = dict[str, list[float]]


def plot(path: Path, sequence: int | None = None) -> str:
    """Of one sequence, the first of the file unless said otherwise."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not entries:
        raise SystemExit(f"{path}: holds no rounds")
    if sequence is None:
        sequence = entries[0]["plans"][0]["sequence"]
    rounds = [entry for entry in entries if _plan(entry, sequence) is not None]
    panels = [
        ("tokens of a round", _lengths(rounds, sequence)),
        ("believed: first token taken", _beliefs(rounds, sequence)),
        ("tokens per plain step", _speed(rounds, sequence)),
    ]
    height = len(panels) * (_PANEL + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, (title, series) in enumerate(panels):
        parts += _draw(title, series, _GAP + i * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>"])


def _plan(entry: dict[str, Any], sequence: int) -> dict[str, Any] | None:
    found = [plan for plan in entry["plans"] if plan["sequence"] == sequence]
    return found[0] if found else None


def _lengths(rounds: Sequence[dict[str, Any]], sequence: int) -> Series:
    pairs = [entry["accepted"].get(str(sequence), [0, 0]) for entry in rounds]
    return {"drafted": [float(n) for n, _ in pairs], "taken": [float(n) for _, n in pairs]}


def _beliefs(rounds: Sequence[dict[str, Any]], sequence: int) -> Series:
    series: Series = {}
    for i, entry in enumerate(rounds):
        for source, rates in entry["estimates"]["sources"][str(sequence)].items():
            # A source that comes later is drawn at zero before.
            values = series.setdefault(source, [0.0] * i)
            values += [values[-1] if values else 0.0] * (i - len(values)) + [rates[0]]
    return {
        name: values + values[-1:] * (len(rounds) - len(values)) for name, values in series.items()
    }


def _speed(rounds: Sequence[dict[str, Any]], sequence: int) -> Series:
    tokens = time = 0.0
    values = []
    for entry in rounds:
        plain = entry["estimates"]["steps"][0] / len(entry["plans"])
        ms = entry.get("step_ms", plain) + sum(entry["draft_ms"].values())
        tokens = 0.9 * tokens + 1 + entry["accepted"].get(str(sequence), [0, 0])[1]
        time = 0.9 * time + ms / (plain * len(entry["plans"]))
        values.append(tokens / time)
    return {"reached": values, "plain": [1.0] * len(rounds)}


def _draw(title: str, series: Series, top: int) -> list[str]:
    highest = max((max(values) for values in series.values()), default=1.0) or 1.0
    n = max((len(values) for values in series.values()), default=1)
    width, bottom = _WIDTH - _LEFT - 20, top + _PANEL
    parts = [
        f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{title}</text>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + width}" y2="{bottom}" stroke="#888"/>',
        f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">{highest:.3g}</text>',
        f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for i, (name, values) in enumerate(series.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        points = " ".join(
            f"{_LEFT + width * x / max(n - 1, 1):.1f},{bottom - _PANEL * y / highest:.1f}"
            for x, y in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        x = _LEFT + width - 110 * (len(series) - i)
        parts.append(f'<text x="{x}" y="{top - 8}" fill="{colour}">{name}</text>')
    return parts


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    Path(sys.argv[2]).write_text(plot(Path(sys.argv[1])) + "\n", encoding="utf-8")
