"""`python -m nextn.convert.nano.plot CHECKPOINT OUT.svg`: the loss curve as a picture."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .one_line_errors import in_one_line

WIDTH, HEIGHT, MARGIN = 720, 360, 48
SMOOTH = 20  # steps that a point is the mean of
COLOURS = {"trunk": "#1f77b4", "mtp": "#ff7f0e", "held_out": "#2ca02c"}
NAMES = {"trunk": "next token", "mtp": "MTP head", "held_out": "held out"}

Points = list[tuple[float, float]]


def read_curve(checkpoint: Path) -> list[dict[str, Any]]:
    import torch

    curve: list[dict[str, Any]] = torch.load(checkpoint, weights_only=True)["curve"]
    return curve


def series(curve: Sequence[dict[str, Any]]) -> dict[str, Points]:
    """Million tokens against nats per token; training losses smoothed, zeros were not trained."""
    out: dict[str, Points] = {}
    for name in ("trunk", "mtp"):
        known = [(r["tokens"] / 1e6, r[name]) for r in curve if r[name]]
        groups = [known[i : i + SMOOTH] for i in range(0, len(known), SMOOTH)]
        out[name] = [(g[len(g) // 2][0], sum(y for _, y in g) / len(g)) for g in groups]
    out["held_out"] = [(r["tokens"] / 1e6, r["held_out"]) for r in curve if r["held_out"]]
    return out


def draw(lines: dict[str, Points]) -> str:
    most_x = max((x for points in lines.values() for x, _ in points), default=1.0)
    low = math.floor(min((y for points in lines.values() for _, y in points), default=0.0))
    high = math.ceil(max((y for points in lines.values() for _, y in points), default=1.0))

    def place(x: float, y: float) -> tuple[float, float]:
        across = MARGIN + x / most_x * (WIDTH - 2 * MARGIN)
        return across, HEIGHT - MARGIN - (y - low) / (high - low) * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for y in range(low, high + 1):
        (left, at), (right, _) = place(0, y), place(most_x, y)
        parts.append(f'<path d="M{left:.1f} {at:.1f}H{right:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 20:.1f}" y="{at + 4:.1f}">{y}</text>')
    for i in range(5):
        across, at = place(most_x * i / 4, low)
        parts.append(f'<text x="{across - 8:.1f}" y="{at + 18:.1f}">{most_x * i / 4:.1f}</text>')
    for row, (name, points) in enumerate(lines.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>'
        )
        parts.append(
            f'<text x="{WIDTH - 150}" y="{MARGIN + 16 * row}" fill="{COLOURS[name]}">'
            f"{NAMES[name]}</text>"
        )
    parts.append(f'<text x="{MARGIN}" y="20">loss, nats per token</text>')
    parts.append(f'<text x="{WIDTH // 2 - 50}" y="{HEIGHT - 8}">million tokens</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    options.out.write_text(draw(series(read_curve(options.checkpoint))), encoding="utf-8")


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.nano.plot", main)
