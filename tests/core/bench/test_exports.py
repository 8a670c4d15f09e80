"""Reports in the forms that others read: read by those who made the forms."""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3

from support.bench_reports import report

from nextn.core.bench.exports import TABLE, as_csv, as_gha, as_jsonl, as_sql
from nextn.core.bench.record import CurvePoint, Interval
from nextn.core.bench.text_charts import spark, text_charts

HOSTILE = 'it\'s; DROP TABLE "x"\n<b>&|,'


def database(text: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(text)
    return connection


def test_sql_goes_into_a_database() -> None:
    rows = database(as_sql(report()))
    query = f"SELECT configuration, category, avg_ts, speedup, n_drafted, argv FROM {TABLE}"
    found = rows.execute(query).fetchall()
    assert len(found) == 6
    name, category, rate, speedup, drafted, argv = found[1]
    assert (name, category, drafted) == ("mtp:n=3", "all", 288)
    assert 1400 < rate < 1600
    assert 1.4 < speedup < 1.6
    assert json.loads(argv)[-1] == "it's"


def test_runs_collect_in_one_table() -> None:
    """Also where one knows less than the other: the columns are the same."""
    plain = report(names=("none",))
    rows = database(as_sql(plain) + as_sql(report()) + as_sql(plain))
    assert rows.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (12,)
    types = {name: kind for _, name, kind, *_ in rows.execute(f"PRAGMA table_info({TABLE})")}
    assert types["speedup"] == "REAL"
    assert types["n_drafted"] == "INTEGER"
    assert types["draft_ns"] == "INTEGER"
    assert types["configuration"] == "TEXT"


def test_llama_bench_names() -> None:
    first = json.loads(as_jsonl(report()).splitlines()[0])
    names = {
        "build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename",
        "model_type", "model_size", "model_n_params", "n_threads", "type_k", "type_v", "n_prompt",
        "n_gen", "n_depth", "test_time", "avg_ns", "avg_ts", "stddev_ts", "samples_ns",
        "samples_ts",
    }  # fmt: skip
    assert names <= first.keys()
    assert len(first["samples_ts"]) == 5


def test_csv_and_jsonl_say_the_same() -> None:
    made = report()
    rows = list(csv.DictReader(io.StringIO(as_csv(made))))
    objects = [json.loads(line) for line in as_jsonl(made).splitlines()]
    assert len(rows) == len(objects) == 6
    for row, wanted in zip(rows, objects, strict=True):
        assert list(row) == list(wanted)
        assert row["configuration"] == wanted["configuration"]
        assert float(row["avg_ts"]) == wanted["avg_ts"]
        assert json.loads(row["accept_per_pos"] or "[]") == (wanted["accept_per_pos"] or [])


def test_any_name_survives() -> None:
    made = report(names=("none", HOSTILE))
    rows = database(as_sql(made)).execute(f"SELECT DISTINCT configuration FROM {TABLE}").fetchall()
    assert (HOSTILE,) in rows
    assert any(row["configuration"] == HOSTILE for row in csv.DictReader(io.StringIO(as_csv(made))))
    assert len(as_jsonl(made).splitlines()) == 6


def test_github_action_benchmark() -> None:
    entries = json.loads(as_gha(report(users=(1, 4))))
    assert {frozenset(entry) for entry in entries} <= {
        frozenset({"name", "unit", "value", "extra"}),
        frozenset({"name", "unit", "value", "range", "extra"}),
    }
    assert all(isinstance(e["value"], float) and math.isfinite(e["value"]) for e in entries)
    values = {entry["name"]: entry["value"] for entry in entries}
    assert len(values) == len(entries)
    assert 1.4 < values["mtp:n=3 / all: speed-up against none"] < 1.6
    assert values["mtp:n=3 / all: accepted"] == 1 / 3
    assert "none / all / 4 users: all users" in values


def test_plots_of_characters() -> None:
    lines = text_charts(report(), 80)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "1.50x [" in text
    assert text.count("●") == 3
    assert "100 0 0 %" in text
    assert all(not line.startswith("none") for line in lines)


def test_one_far_interval_does_not_hide_the_others() -> None:
    made = report()
    made.summaries[1].times.speedup = made.summaries[1].times.speedup._replace(high=500.0)  # type: ignore[union-attr]
    bars = [line for line in text_charts(made, 80) if "●" in line]
    assert all(line.index("●") > line.index("┊") + 3 for line in bars)


def test_sparks() -> None:
    assert spark([0.0, 0.5, 1.0, 2.0, -1.0]) == "▁▅██▁"


def test_the_curve_is_drawn() -> None:
    made = report()
    made.curve = [CurvePoint(n, n, n + 0.5, Interval(0.9, 1.0 + n / 10, 1.5), 3.0) for n in (1, 2)]
    lines = text_charts(made, 80)
    assert len(lines) == 3
    assert "drafts of 2, 2.50 per round" in lines[2]
    assert "1.20x" in lines[2]
