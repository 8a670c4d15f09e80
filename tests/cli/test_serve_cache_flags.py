"""Flags of `spec serve` about slots and the cache."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HANGS_S = 120
SPEC = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
SERVE = [*SPEC, "serve", "-m", "nano", "--port", "0"]


@contextlib.contextmanager
def serving(*args: str) -> Iterator[tuple[int, list[str]]]:
    """Its port, and what it said before it was ready."""
    process = subprocess.Popen(
        [*SERVE, "-np", "2", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        said, found = list[str](), None
        assert process.stderr is not None
        while found is None:
            line = process.stderr.readline()
            assert line, (process.wait(), said)
            said.append(line)
            found = re.search(r"ready +http://127\.0\.0\.1:(\d+)", line)
        yield int(found[1]), said
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == 0
    finally:
        process.kill()
        process.communicate()


def ask(port: int, method: str, path: str, **body: Any) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request(method, path, json.dumps(body))
    response = connection.getresponse()
    told: dict[str, Any] = json.loads(response.read())
    assert response.status == 200, told
    return told


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--slot-save-path", "nowhere"], "--slot-save-path nowhere: there is no such folder"),
        (["--slot-save-path", "{file}"], "there is no such folder"),
        (["--slot-save-path", "{folder}", "--cache-ram", "0"], "--cache-ram 0 does not keep"),
        (["--cache-ram", "-2"], "--cache-ram"),
        (["--cache-ram", "1"], "--cache-ram 1 is too little.*give at least 3"),
        (["--cache-ram", "99999999"], "--cache-ram 99999999 does not fit.*MiB are left after"),
        (["--record", "{folder}", "--no-store-responses"], "--record stores what --no-store-resp"),
        (["--sleep-idle-seconds", "0"], "--sleep-idle-seconds must be at least 1"),
        (["--sleep-idle-seconds", "soon"], "--sleep-idle-seconds"),
    ],
)
def test_what_cannot_be(args: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = [arg.format(file=tmp_path / "file", folder=tmp_path) for arg in args]
    done = subprocess.run([*SERVE, *args], capture_output=True, text=True, timeout=HANGS_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert re.search(said, done.stderr)


def test_the_line_about_memory_counts_all_slots() -> None:
    def memory(n_slots: int, n_tokens: int) -> str:
        with serving("-v", "-np", str(n_slots), "-c", str(n_tokens)) as (_, said):
            (line,) = (each for each in said if each.startswith("memory"))
            return line

    assert "(512 tokens)" in memory(1, 512)
    assert "(1536 tokens)" in memory(3, 1536)


def test_a_restart_between_two_questions(tmp_path: Path) -> None:
    prompt = "# a stack\nclass Stack:\n" * 80
    body = {"n_predict": 30, "seed": 3, "return_tokens": True}
    with serving("--slot-save-path", str(tmp_path), "--context-shift") as (port, said):
        first = ask(port, "POST", "/completion", prompt=prompt, **body)
        prompt += first["content"] + "\n\n"
        lane = first["id_slot"]
        alone = {"prompt": prompt, "cache_prompt": False, "id_slot": lane}
        want = ask(port, "POST", "/completion", **alone, **body)
        assert want["id_slot"] == lane
        saved = ask(port, "POST", f"/slots/{lane}?action=save", filename="stack")
    flags = ("--slot-save-path", str(tmp_path), "--no-context-shift", "--spec-type", "mtp")
    with serving(*flags, "--cache-ram", "32", "--spec-draft-n-max", "2") as (port, said):
        assert len(said) == 1
        done = ask(port, "POST", "/slots/0?action=restore", filename="stack")
        assert done["n_restored"] == saved["n_saved"] > 300
        again = ask(port, "POST", "/completion", prompt=prompt, **body)
        assert again["timings"]["cache_n"] > 300
        assert again["tokens"] == want["tokens"]


@pytest.mark.slow
def test_the_cache_switched_off() -> None:
    with serving("--no-cache-prompt") as (port, _):
        for _ in range(2):
            done = ask(port, "POST", "/completion", prompt="a = 1\n" * 200, n_predict=1)
            assert done["timings"]["cache_n"] == 0
    with serving("--cache-ram", "0") as (port, _):
        assert ask(port, "GET", "/props")["cache"]["limit_bytes"] == 0


@pytest.mark.slow
def test_asleep() -> None:
    body = {"prompt": "def f(x):", "n_predict": 20, "temperature": 0}
    with serving("--sleep-idle-seconds", "1") as (port, _):
        first = ask(port, "POST", "/completion", **body)["content"]
        for _ in range(2):
            end = time.perf_counter() + HANGS_S
            while not ask(port, "GET", "/props")["is_sleeping"]:
                assert time.perf_counter() < end
                time.sleep(0.1)
            assert ask(port, "GET", "/health") == {"status": "ok"}
            assert ask(port, "POST", "/completion", **body)["content"] == first
        while not ask(port, "GET", "/props")["is_sleeping"]:
            time.sleep(0.1)
