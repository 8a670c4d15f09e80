"""`python -m nextn.convert.nano.plot CHECKPOINT OUT.svg`: the loss curve as a picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.bench.page_style import STYLE
from ...core.bench.svg_chart import ChartSeries, line_chart
from .one_line_errors import in_one_line

SMOOTH = 20  # steps that a point is the mean of
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
    """A file of its own, in the style of the report of bench-spec."""
    drawn = [ChartSeries(NAMES[name], points, i) for i, (name, points) in enumerate(lines.items())]
    chart = line_chart("loss", drawn, ("million tokens", "nats per token"))
    tag, _, rest = chart.removeprefix("<svg ").partition(">")
    return f'<svg xmlns="http://www.w3.org/2000/svg" {tag}><style>{STYLE}</style>{rest}\n'


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    options.out.write_text(draw(series(read_curve(options.checkpoint))), encoding="utf-8")


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.nano.plot", main)
