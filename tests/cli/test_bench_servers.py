"""`spec bench-spec --url`, `--peer`, its other forms, and `compare`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.bench_reports import report
from support.fake_server import VLLM, FakeServer, Script

from nextn.cli.app import run

SMALL = ["bench-spec", "-n", "20", "-r", "3", "--set", "code", "--category", "code,edit", "--limit",
         "2", "-q"]  # fmt: skip


def test_one_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, charts, saved = tmp_path / "r.html", tmp_path / "c.json", tmp_path / "r.json"
    with FakeServer(Script(key="sk-9")) as server:
        argv = [*SMALL, "--url", f"it={server.url}", "--api-key", "sk-9", "--html", str(page)]
        assert run([*argv, "--gha-json", str(charts), "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "llama.cpp at http://127.0.0.1" in out
    streams, counters = (line for line in out.splitlines() if "streams" in line or "/met" in line)
    assert streams.split("|")[3:] == counters.split("|")[3:]
    for path in (page, charts, saved):
        assert "sk-9" not in path.read_text()
    assert json.loads(saved.read_text())["configurations"][0]["details"]["counters_agree"] is True
    assert page.read_text().startswith("<!doctype html>")
    assert "/metrics" in page.read_text()
    assert json.loads(charts.read_text())


def test_two_configurations_of_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Script(VLLM, pause=0.001)) as server:
        argv = [*SMALL, "--url", server.url, "--ask", "a={}", "--ask", 'b={"top_k": 5}']
        assert run([*argv, "-o", "jsonl", "--no-expect-identical"]) == 0
        assert {body.get("top_k") for body in server.script.requests} == {None, 5}
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(row["configuration"], row["server"]) for row in rows} == {("a", "vLLM"), ("b", "vLLM")}
    assert rows[1]["speedup"] is not None


def test_a_server_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        assert run([*SMALL, "--vs", "none", "--url", f"other={server.url}", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["configurations"]] == ["none", "other"]
    assert found["baseline"] == "none"
    assert found["summaries"][1]["times"]["speedup"]


def test_a_server_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Script(fault="error")) as server:
        assert run([*SMALL, "--url", server.url]) == 1
    with FakeServer() as server:
        url = server.url
    assert run([*SMALL, "--url", url]) == 1
    assert "connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--url", "localhost:80"], "begins with http://"),
        (["--url", "http://a", "--api-key", "a", "--api-key", "b"], "--api-key: 2 keys for 1"),
        (["--ask", "none"], "--ask is for servers"),
        (["--body", "{}"], "--body is for servers"),
        (["--url", "http://a", "--body", "[]"], "--body: must be a JSON object"),
        (["--url", "http://a", "--timeout", "soon"], "--timeout is a time"),
        (["--peer", "ollama"], "--peer: the only one is xllamacpp"),
        (["--url", "http://a", "--synth", "3", "--vs", "mtp"], "leave --url and --peer out"),
        (["-o", "xml"], "-o is one of md, json, jsonl, csv, sql"),
    ],
)
def test_wrong_usage(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench-spec", *argv]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


def saved(folder: Path, name: str, **changes: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(report(**changes).to_json()), encoding="utf-8")
    return str(path)


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = saved(tmp_path, "a.json"), saved(tmp_path, "b.json", slower=1.2, seed=1)
    assert run(["bench-spec", "compare", a, b]) == 0
    assert "0.83" in capsys.readouterr().out
    assert run(["bench-spec", "compare", a, b, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.8 < found["rows"][0]["change"][1] < 0.87


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "missing argument"),
        (["no.json", "no.json"], "report no.json: no such file"),
        (["{a}", "{text}"], "not JSON"),
        (["{a}", "{object}"], "this is no report of bench-spec"),
        (["{a}", "{a}", "-o", "xml"], "-o is one of md, json"),
    ],
)
def test_compare_of_something_else(
    argv: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "object").write_text("{}")
    names = {"a": saved(tmp_path, "a"), "text": tmp_path / "text", "object": tmp_path / "object"}
    assert run(["bench-spec", "compare", *(word.format(**names) for word in argv)]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.peer
def test_llama_cpp_in_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SMALL, "--vs", "none", "--peer", "xllamacpp", "--peer", "xllamacpp:mtp:n=3"]
    assert run([*argv, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    peers = found["configurations"][1:]
    assert [each["name"] for each in peers] == ["xllamacpp:none", "xllamacpp:mtp:n=3"]
    assert all(each["details"]["counters_agree"] for each in peers)
    prompts = {(s["configuration"], s["prompt"]): s["prompt_n"] for s in found["samples"]}
    for (_, prompt), n in prompts.items():
        assert n == prompts["none", prompt]  # the same tokens were read
