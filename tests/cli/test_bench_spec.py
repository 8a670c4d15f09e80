"""`spec bench-spec`: what it prints, what it writes, and when it fails a job."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nextn.cli.app import run
from nextn.cli.bench_progress import BenchProgress, duration
from nextn.cli.console import Console
from nextn.core.bench import paired_run
from nextn.core.bench.record import BenchReport, Sample
from nextn.core.bench.tables import TextTable

Capture = pytest.CaptureFixture[str]
SMALL = ("bench-spec", "--category", "code,edit", "--limit", "2", "-n", "12", "-r", "2", "-t", "1")
PAIR = ("--vs", "none", "--vs", "mtp:n=3,fixed")


def bench(capsys: Capture, *flags: str) -> tuple[int, str, str]:
    code = run([*SMALL, *flags])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_tables(capsys: Capture) -> None:
    code, out, err = bench(capsys, *PAIR, "--concurrency", "1,2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("nextn nano (qwen35 Q8_0), cpu")
    assert lines[1].startswith("4 prompts, 2 repetitions, prompt set code")
    titles = [line for line in lines[2:] if line.endswith(":") and not line.startswith("|")]
    assert titles == [
        "Speed-up by category:", "Drafts:", "Accepted by place, of all drafts:",
        "Accepted by place, where the one before was:",
        "Drafts by how much of them was accepted:", "ms per round:", "Latency, ms:",
        "Users at once:", "Memory, MiB:",
    ]  # fmt: skip
    (row,) = (line for line in lines if line.startswith("| mtp:n=3,fixed") and "exactly" in line)
    assert len(row.split("|")) == 12
    widths = {len(line) for line in lines[3:7]}
    assert len(widths) == 1
    assert "ok   expect-identical mtp:n=3,fixed: texts are those of the baseline" in err
    assert "\x1b" not in out + err


def test_json_holds_all_of_it(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    code, out, _ = bench(capsys, *PAIR, "-o", "json", "--save", str(path), "-q")
    assert code == 0
    value = json.loads(out)
    report = BenchReport.from_json(value)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert BenchReport.from_json(json.loads(path.read_text())) == report
    assert len(report.samples) == 16
    assert report.baseline == "none"
    known = report.provenance
    for name in ("cpu_info", "n_threads", "model_sha256", "versions", "argv", "seed", "machine"):
        assert known[name] is not None, name
    counts, times = (getattr(report.summaries[1], name) for name in ("counts", "times"))
    assert (counts.identical, counts.repeats) == (True, True)
    assert counts.draft_n > counts.draft_n_accepted > 0
    assert times.speedup.low <= times.speedup.value <= times.speedup.high
    if not times.n_disturbed:
        gain = times.break_even_len * times.speedup.value
        assert gain == pytest.approx(counts.mean_len, rel=0.02)
    assert len(value["results"]) == 6  # two configurations, together and in two categories


def test_rows(capsys: Capture) -> None:
    code, out, _ = bench(capsys, *PAIR, "-o", "jsonl", "-q")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["configuration"], row["category"]) for row in rows[:2]] == [
        ("none", "all"),
        ("mtp:n=3,fixed", "all"),
    ]
    assert rows[1]["avg_ts_baseline"] == rows[0]["avg_ts"]
    code, out, _ = bench(capsys, *PAIR, "-o", "csv", "-q")
    table = list(csv.DictReader(out.splitlines()))
    assert list(table[0]) == list(rows[0])
    assert len(table) == len(rows)
    assert json.loads(table[1]["accept_per_pos"]) == rows[1]["accept_per_pos"]


def test_counts_are_the_same_in_two_runs(capsys: Capture) -> None:
    flags = ("--vs", "none", "--vs", "mtp:n=3", "--vs", "ngram-mod,mtp", "--spec-fixed", "-q")
    found = []
    for _ in range(2):
        _, out, _ = bench(capsys, *flags, "-o", "json")
        report = BenchReport.from_json(json.loads(out))
        for each in report.summaries:
            each.counts.by_source = {
                name: source._replace(ms=0.0) for name, source in each.counts.by_source.items()
            }
        found.append([each.counts for each in report.summaries])
    assert found[0] == found[1]


def test_gates(capsys: Capture) -> None:
    code, _, err = bench(
        capsys, *PAIR, "--min-acceptance", "99%", "--min-mean-len", "1.01", "--min-speedup", "1e6",
        "-q",
    )  # fmt: skip
    assert code == 3
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("FAIL min-acceptance mtp:n=3,fixed: 0.")
    assert lines[0].endswith(" < 0.99")
    assert lines[1].startswith("FAIL min-speedup mtp:n=3,fixed: ")
    assert lines[1].endswith(" < 1e+06")


def test_texts_that_differ_fail(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    run_target = paired_run.PairedRun._write

    def spoil(self: paired_run.PairedRun, target: Any, *args: Any) -> None:
        before = len(self.samples)
        run_target(self, target, *args)
        for sample in self.samples[before:]:
            if sample.configuration != "none" and sample.prompt == "edit-1" and sample.tokens:
                sample.tokens[3] = 0

    monkeypatch.setattr(paired_run.PairedRun, "_write", spoil)
    code, out, err = bench(capsys, *PAIR, "-q")
    assert code == 3
    assert "DIFFER" in out
    assert "First difference of texts:" in out
    assert (
        "FAIL expect-identical mtp:n=3,fixed: texts differ from the baseline; edit-1: token 4"
        in err
    )
    assert bench(capsys, *PAIR, "-q", "--no-expect-identical")[0] == 0


def test_an_earlier_report(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    pair = (*PAIR, "-r", "6")
    assert bench(capsys, *pair, "-q", "--save", str(path))[0] == 0
    code, _, err = bench(capsys, *pair, "--baseline", str(path), "--max-regression", "90%")
    assert code == 0
    assert "ok   max-regression none: tokens/s" in err
    value = json.loads(path.read_text())
    for sample in value["samples"]:  # as if it had been much faster
        sample["chunks"] = [[ms / 1e6, n] for ms, n in sample["chunks"]]
    path.write_text(json.dumps(value))
    code, _, err = bench(capsys, *pair, "--baseline", str(path), "-q")
    assert code == 3
    assert err.startswith("FAIL max-regression none: tokens/s")
    value["provenance"]["cpu_info"] = "another"
    path.write_text(json.dumps(value))
    code, _, err = bench(capsys, *pair, "--baseline", str(path), "-q")
    assert code == 2
    assert "the two runs cannot be compared: the processor is" in err
    path.write_text("[]")
    code, _, err = bench(capsys, *pair, "--baseline", str(path), "-q")
    assert code == 2
    assert "this is no report of bench-spec" in err


def test_a_text_that_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from nextn.core.bench.local import LocalTarget

    original = LocalTarget._sample

    def fail(self: LocalTarget, talk: Any, concurrency: int) -> Sample:
        sample = original(self, talk, concurrency)
        sample.error = "not a number" if sample.prompt == "code-1" else ""
        return sample

    monkeypatch.setattr(LocalTarget, "_sample", fail)
    code, out, err = bench(capsys, *PAIR)
    assert code == 1
    assert "texts failed, the first by" in err
    assert "| mtp:n=3,fixed" in out


def test_an_interrupt_keeps_what_there_is(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    write = paired_run.PairedRun._write

    def interrupted(self: paired_run.PairedRun, *args: Any) -> None:
        if len(self.samples) >= 13:
            raise KeyboardInterrupt
        write(self, *args)

    monkeypatch.setattr(paired_run.PairedRun, "_write", interrupted)
    code, out, _ = bench(capsys, *PAIR, "-o", "json", "-q")
    assert code == 130
    report = BenchReport.from_json(json.loads(out))
    assert report.provenance["interrupted"]
    assert report.summaries[1].counts.n_samples == 4
    assert report.summaries[1].times.n_blocks == 6


def test_time_that_is_too_short(capsys: Capture) -> None:
    code, out, err = bench(capsys, *PAIR, "--time", "0.001")
    assert code == 0
    assert "| mtp:n=3,fixed" in out
    assert "warning: only 3 of 4 prompts were run: it is about those" in err


def test_own_prompts(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "def f(x):\\n", "category": "mine"}\n{"turns": ["Add.", "Again."]}\n')
    words = ["bench-spec", "--prompts", str(path), "-n", "8", "-r", "1", "-o", "json", "-q"]
    assert run([*words, "--vs", "mtp:n=2,fixed", "-t", "1"]) == 0
    report = BenchReport.from_json(json.loads(capsys.readouterr().out))
    assert report.prompt_set == "mine.jsonl"
    assert report.categories == ["mine", "prompts"]
    assert len(report.samples) == 6
    assert [each.name for each in report.configurations] == ["none", "mtp:n=2,fixed"]


def test_the_curve(capsys: Capture) -> None:
    code, out, _ = bench(capsys, "--vs", "mtp", "--synth", "2", "-q")
    assert code == 0
    assert "Synthetic acceptance:" in out
    rows = [line for line in out.splitlines() if line.startswith("|         2")]
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--vs", "mpt"), "did you mean mtp?"),
        (("--vs", "mtp:n=x"), "--vs mtp:n=x: n= needs a whole number"),
        (
            ("--vs", "mtp:n=0"),
            "--vs mtp:n=0: n=0 drafts nothing; for plain decoding give none, as in --vs none",
        ),
        (("--url", "http://127.0.0.1:1", "--ask", "mtp:n=0"), "'mtp:n=0': n=0 drafts nothing"),
        (("--peer", "xllamacpp:mtp:n=0"), "'mtp:n=0': n=0 drafts nothing"),
        (("--precision", "2%"), "give --time as well"),
        (("--max-regression", "5%"), "give --baseline FILE"),
        (("--baseline", "/no/such.json"), "--baseline /no/such.json: no such file"),
        (("--baseline", "/"), "--baseline /: is a directory"),
        (("--prompts", "/no/such.txt"), "--prompts /no/such.txt: no such file"),
        (("--prompts", "/"), "--prompts /: is a directory"),
        (("--api", "chat"), "--api is for servers"),
        (("--vs", "draft"), "--vs draft needs a model to draft with: give -md FILE"),
        (("--vs", "auto", "--min-acceptance", "1"), "--min-acceptance needs drafts that repeat"),
        (("--vs", "none", "--min-speedup", "1"), "--min-speedup needs two configurations"),
        (("--min-acceptance", "x"), "--min-acceptance is a share such as 10% or 0.1, got 'x'"),
        (("--time", "soon"), "--time is a time such as 90, 90s or 3m"),
        (("--concurrency", "0"), "--concurrency is a list of numbers from 1 to 64"),
        (("--save", "/no/such/x.json"), "/no/such is not a folder"),
        (("--save", "."), "--save . is a folder"),
        (("-o", "xml"), "-o is one of md, json, jsonl, csv"),
        (("--set", "x"), "--set is auto, code or chat"),
        (("--category", "cod"), "did you mean code?"),
        (("-c", "16"), "no prompt fits into the context"),
        (("--spec-fixed", "--spec-costs", "x"), "exclude each other"),
        (("--synth", "2", "--min-speedup", "1"), "--synth draws a curve"),
        (("--synth", "2", "--vs", "none"), "--synth needs a --vs that drafts"),
        (("--vs", "mtp:n=3,synth=9"), "--spec-synth-len is 9"),
        (("--speedup", "3"), "did you mean --min-speedup?"),
    ],
)
def test_usage_errors(flags: tuple[str, ...], message: str, capsys: Capture) -> None:
    code, out, err = bench(capsys, *flags, "-q")
    assert code == 2
    assert not out
    assert message in err
    assert err.count("\n") == 1


def test_tables_are_markdown() -> None:
    lines = list(TextTable("", ["a", "n"], [["x|y", "1.5"], ["z", ""]]).markdown())
    assert lines == ["| a    |   n |", "|------|----:|", "| x\\|y | 1.5 |", "| z    |     |"]


def test_a_long_run_is_announced_once(capsys: Capture) -> None:
    progress = BenchProgress(Console())
    for done, left in ((0.0, None), (0.01, 9000.0), (0.03, 9000.0), (0.04, 8000.0)):
        progress(paired_run.RunProgress("repetition 1 of 5", done, left))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("this will take about 2.5 h more; --limit")


def test_durations() -> None:
    assert [duration(s) for s in (4.4, 130, 7200)] == ["4 s", "2 min", "2.0 h"]
