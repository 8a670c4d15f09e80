"""A report as csv, jsonl and sql, a row for each configuration, category and number of users, with
llama-bench's field names where it has them; and as figures for github-action-benchmark."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from .record import BenchReport, Configuration, Interval, Phases, Summary, TimeSpread

FlatRow = dict[str, Any]
TABLE: Final = "spec_bench"
_NUL: Final = "\0"
_PROVENANCE: Final = (
    "build_commit", "cpu_info", "gpu_info", "model_filename", "model_type", "model_size",
    "model_n_params", "model_sha256", "n_threads", "type_k", "type_v", "n_ctx", "device",
    "test_time", "seed",
)  # fmt: skip


def rows_of(report: BenchReport) -> Iterator[FlatRow]:
    by_name = {each.name: each for each in report.configurations}
    for summary in report.summaries:
        yield _row(report, by_name[summary.configuration], summary)


def as_jsonl(report: BenchReport) -> str:
    """One object per row."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows_of(report))
    return "".join(f"{line}\n" for line in lines)


def as_csv(report: BenchReport) -> str:
    """Every value in quotes; the names are not."""
    rows = _plain_rows(report)
    out = io.StringIO()
    if rows:
        out.write(",".join(rows[0]) + "\n")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows(["" if value is None else value for value in row.values()] for row in rows)
    return out.getvalue()


def as_sql(report: BenchReport) -> str:
    """A table that is made if it is missing, and its rows: `… -o sql | sqlite3 FILE` collects
    runs."""
    rows = _plain_rows(report)
    if not rows:
        return ""
    columns = ",\n".join(f"  {name} {_kind(name, rows)}" for name in rows[0])
    names = ", ".join(rows[0])
    lines = [f"CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);\n"]
    for row in rows:
        values = ", ".join(map(_literal, row.values()))
        lines.append(f"INSERT INTO {TABLE} ({names}) VALUES ({values});")
    return "\n".join(lines) + "\n"


def as_gha(report: BenchReport) -> str:
    """For the tool `customBiggerIsBetter`: more is better. Names hold no figures, so that a chart
    continues from run to run."""
    version = (report.provenance.get("versions") or {}).get("nextn")
    entries = []
    for summary in report.summaries:
        place = [summary.configuration, summary.category or "all"]
        if summary.concurrency > 1:
            place.append(f"{summary.concurrency} users")
        lines = [
            f"prompts {report.prompt_set} ({report.prompt_set_sha256[:12]})",
            f"{summary.counts.n_samples} texts, seed {report.settings.seed}",
            *([f"nextn {version}"] if version else []),
        ]
        for name, unit, value, spread in _charted(summary, report.baseline):
            if value is not None and math.isfinite(value):
                entry = {"name": f"{' / '.join(place)}: {name}", "unit": unit, "value": value}
                entry |= {"range": spread} if spread else {}
                entries.append(entry | {"extra": "\n".join(lines)})
    return json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _charted(summary: Summary, baseline: str) -> Iterable[tuple[str, str, float | None, str]]:
    """(name, unit, value, spread)"""
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


# Rows ---------------------------------------------------------------------------------------------


def _row(report: BenchReport, configuration: Configuration, summary: Summary) -> FlatRow:
    known, details = report.provenance, configuration.details
    row = {name: known.get(name) for name in _PROVENANCE}
    if row["model_filename"] is not None:
        row["model_filename"] = PurePath(row["model_filename"]).name
    row |= {
        "build_number": known.get("versions", {}).get("nextn"),
        "backends": known.get("device"),
        "configuration": summary.configuration,
        "baseline": report.baseline,
        "spec_types": details.get("spec_types"),
        "server": details.get("server"),
        "server_version": details.get("version"),
        "url": details.get("url"),
        "category": summary.category or "all",
        "concurrency": summary.concurrency,
        "prompt_set": report.prompt_set,
        "prompt_set_sha256": report.prompt_set_sha256,
    }
    row |= _counts(summary) | _times(report, summary)
    return row | {"memory": configuration.memory, "argv": known.get("argv")}


def _counts(summary: Summary) -> FlatRow:
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
        "by_source": {name: each._asdict() for name, each in counts.by_source.items()},
        "counts_repeat": counts.repeats,
        "outputs_identical": counts.identical,
    }


def _times(report: BenchReport, summary: Summary) -> FlatRow:
    times = summary.times
    base = report.summary(report.baseline, summary.category, summary.concurrency)
    row = {
        "n_pairs": times.n_blocks,
        "n_pairs_disturbed": times.n_disturbed,
        "n_repetitions": len(times.samples_ts),
        # Of one token, as llama-bench's are of one test.
        "avg_ns": round(1e9 / times.avg_ts) if times.avg_ts else None,
        "avg_ts": times.avg_ts,
        "stddev_ts": times.stddev_ts,
        "samples_ns": [round(1e9 / rate) for rate in times.samples_ts if rate],
        "samples_ts": times.samples_ts,
        "aggregate_ts": times.aggregate_ts,
        "avg_ts_prompt": times.prompt_ts,
        "avg_ts_baseline": None if base is None else base.times.avg_ts,
        "round_ns": _ns(times.round_ms),
        "break_even_len": times.break_even_len,
        "drift": times.drift,
    }
    phases = times.phases or [None] * len(Phases._fields)
    row |= {f"{name}_ns": _ns(ms) for name, ms in zip(Phases._fields, phases, strict=True)}
    row |= _interval("speedup", times.speedup) | _interval("speedup_wall", times.wall_speedup)
    row |= _interval("speedup_prompt", times.prompt_speedup)
    row |= _spread("ttft", times.ttft)
    return row | _spread("itl_chunk", times.itl_chunk) | _spread("itl_token", times.itl_token)


def _interval(name: str, interval: Interval | None) -> FlatRow:
    low, value, high = interval or (None, None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _spread(name: str, spread: TimeSpread | None) -> FlatRow:
    values = spread or (None, None, None)
    pairs = zip(TimeSpread._fields, values, strict=True)
    return {f"{name}_{field}_ns": _ns(ms) for field, ms in pairs}


def _ns(ms: float | None) -> int | None:
    return None if ms is None else round(1e6 * ms)


# Values -------------------------------------------------------------------------------------------


def _plain_rows(report: BenchReport) -> list[FlatRow]:
    """For forms without lists and truth values: JSON text, and 0 and 1."""
    return [{name: _plain(value) for name, value in row.items()} for row in rows_of(report)]


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _kind(name: str, rows: Sequence[FlatRow]) -> str:
    """SQL's type, by the name where all values are unknown: all runs have the same columns."""
    kinds = {type(row[name]) for row in rows} - {type(None)}
    if kinds:
        return "INTEGER" if kinds == {int} else "REAL" if kinds <= {int, float} else "TEXT"
    if name.startswith("n_") or name.endswith("_ns"):
        return "INTEGER"
    return "REAL" if "speedup" in name or name.endswith(("_ts", "_len", "_rate")) else "TEXT"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return repr(value)
    # A NUL would end the statement for most readers.
    return "'" + str(value).replace("'", "''").replace(_NUL, "") + "'"
