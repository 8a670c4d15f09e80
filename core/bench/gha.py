"""Figures for github-action-benchmark, its tool `customBiggerIsBetter`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from .record import BenchReport, Summary


def gha_entries(report: BenchReport) -> list[dict[str, Any]]:
    """Everything here is better if it is more. Names hold no figures, so that a chart goes on from
    run to run."""
    found = []
    for summary in report.summaries:
        place = [summary.configuration, summary.category or "all"]
        if summary.concurrency > 1:
            place.append(f"{summary.concurrency} users")
        for name, unit, value, off in _charted(summary, report.baseline):
            if value is not None and math.isfinite(value):
                entry = {"name": f"{' / '.join(place)}: {name}", "unit": unit, "value": value}
                found.append(entry | ({"range": off} if off else {}) | _extra(report, summary))
    return found


def _charted(summary: Summary, baseline: str) -> Iterable[tuple[str, str, float | None, str]]:
    counts, times = summary.counts, summary.times
    yield "decoding", "tokens/s", times.avg_ts or None, f"± {times.stddev_ts:.3g}"
    if times.aggregate_ts is not None and summary.concurrency > 1:
        yield "all users", "tokens/s", times.aggregate_ts, ""
    if times.speedup is not None:
        low, value, high = times.speedup
        yield f"speed-up against {baseline}", "x", value, f"{low:.3f} to {high:.3f}"
    if counts.draft_n:
        yield "tokens per round", "tokens", counts.mean_len, ""
        yield "accepted", "share of drafted", counts.accept_rate, ""


def _extra(report: BenchReport, summary: Summary) -> dict[str, str]:
    lines = [
        f"prompts {report.prompt_set} ({report.prompt_set_sha256[:12]})",
        f"{summary.counts.n_samples} texts, seed {report.settings.seed}",
    ]
    version = (report.provenance.get("versions") or {}).get("nextn")
    return {"extra": "\n".join([*lines, *([f"nextn {version}"] if version else [])])}


def as_gha(report: BenchReport) -> str:
    return json.dumps(gha_entries(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
