"""One flat row per configuration, category and number of users, with llama-bench's field names
where it has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from .record import BenchReport, Configuration, Interval, Phases, Summary, TimeSpread

Row = dict[str, Any]


def rows_of(report: BenchReport) -> Iterator[Row]:
    by_name = {each.name: each for each in report.configurations}
    for summary in report.summaries:
        yield _row(report, by_name[summary.configuration], summary)


def flat(row: Row) -> Row:
    """For formats without lists: they become JSON text."""
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        for name, value in row.items()
    }


def _row(report: BenchReport, configuration: Configuration, summary: Summary) -> Row:
    return (
        _place(report)
        | {
            "configuration": summary.configuration,
            "baseline": report.baseline,
            "spec_types": configuration.details.get("spec_types"),
            "server": configuration.details.get("server"),
            "server_version": configuration.details.get("version"),
            "url": configuration.details.get("url"),
            "category": summary.category or "all",
            "concurrency": summary.concurrency,
            "prompt_set": report.prompt_set,
            "prompt_set_sha256": report.prompt_set_sha256,
        }
        | _counts(summary)
        | _times(report, summary)
        | {"memory": configuration.memory, "argv": report.provenance.get("argv")}
    )


def _place(report: BenchReport) -> Row:
    known = report.provenance
    names = (
        "build_commit", "cpu_info", "gpu_info", "model_filename", "model_type", "model_size",
        "model_n_params", "model_sha256", "n_threads", "type_k", "type_v", "n_ctx", "device",
        "test_time", "seed",
    )  # fmt: skip
    row = {name: known.get(name) for name in names}
    row["build_number"] = known.get("versions", {}).get("nextn")
    row["backends"] = known.get("device")
    if row["model_filename"] is not None:
        row["model_filename"] = PurePath(row["model_filename"]).name
    return row


def _counts(summary: Summary) -> Row:
    counts = summary.counts
    n = max(counts.n_samples, 1)
    return {
        "n_prompt": round(counts.prompt_n / n),
        "n_gen": round(counts.predicted_n / n),
        "n_depth": 0,
        "n_samples": counts.n_samples,
        "n_rounds": counts.rounds,
        "n_drafts": counts.drafts,
        "n_drafted": counts.draft_n,
        "n_accepted": counts.draft_n_accepted,
        "accept_rate": counts.accept_rate,
        "mean_accepted_len": counts.mean_len,
        "mean_accepted_len_drafted": counts.mean_len_drafted,
        "accept_per_pos": counts.accept_per_pos,
        "accept_if_reached": counts.accept_if_reached,
        "accept_histogram": counts.histogram,
        "by_source": {
            name: {"drafted": each.drafted, "accepted": each.accepted, "ms": each.ms}
            for name, each in counts.by_source.items()
        },
        "counts_repeat": counts.repeats,
        "outputs_identical": counts.identical,
    }


def _times(report: BenchReport, summary: Summary) -> Row:
    times = summary.times
    base = report.summary(report.baseline, summary.category, summary.concurrency)
    samples_ns = [round(1e9 / rate) for rate in times.samples_ts if rate]
    row = {
        "n_pairs": times.n_blocks,
        "n_pairs_disturbed": times.n_disturbed,
        "n_repetitions": len(times.samples_ts),
        # Of one token, as llama-bench's are of one test.
        "avg_ns": round(1e9 / times.avg_ts) if times.avg_ts else None,
        "avg_ts": times.avg_ts,
        "stddev_ts": times.stddev_ts,
        "samples_ns": samples_ns,
        "samples_ts": times.samples_ts,
        "aggregate_ts": times.aggregate_ts,
        "avg_ts_prompt": times.prompt_ts,
        "avg_ts_baseline": None if base is None else base.times.avg_ts,
        "round_ns": _ns(times.round_ms),
        "break_even_len": times.break_even_len,
        "drift": times.drift,
    }
    row |= _phases(times.phases)
    row |= _interval("speedup", times.speedup) | _interval("speedup_wall", times.wall_speedup)
    row |= _interval("speedup_prompt", times.prompt_speedup)
    row |= _spread("ttft", times.ttft)
    return row | _spread("itl_chunk", times.itl_chunk) | _spread("itl_token", times.itl_token)


def _phases(phases: Phases | None) -> Row:
    values = [None] * len(Phases._fields) if phases is None else list(map(_ns, phases))
    return {f"{name}_ns": ns for name, ns in zip(Phases._fields, values, strict=True)}


def _interval(name: str, interval: Interval | None) -> Row:
    low, value, high = interval or (None, None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _spread(name: str, spread: TimeSpread | None) -> Row:
    values = [None] * 3 if spread is None else list(map(_ns, spread))
    return {f"{name}_{field}_ns": ns for field, ns in zip(TimeSpread._fields, values, strict=True)}


def _ns(ms: float | None) -> int | None:
    return None if ms is None else round(1e6 * ms)
