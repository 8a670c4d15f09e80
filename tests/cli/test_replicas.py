"""`spec serve --replicas 2` as people start, hurt and end it. With the bundled model."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import typer

from nextn.cli.options import PlaceOptions
from nextn.cli.scale_options import place_of, place_on_ray, read_ray
from nextn.core.server.replicas.ray_fleet import RayPlan

REAL = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
Run = Callable[..., subprocess.CompletedProcess[str]]
LONG: dict[str, object] = {"prompt": "a = ", "ignore_eos": True, "n_predict": 1200}


@contextlib.contextmanager
def serving(*args: str, how: tuple[str, ...] = ("--replicas", "2")) -> Iterator[
    tuple[subprocess.Popen[str], int]
]:  # fmt: skip
    command = [*REAL, "serve", "--port", "0", "-np", "4", *how, *args]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"ready +http://127\.0\.0\.1:(\d+) \(2 replicas of 4 slots\)", line)
        assert found, line
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, **body: object) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/completion", json.dumps(body))
    return connection.getresponse()


def replicas_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [each for each in children if "cli.replica" in " ".join(each.cmdline())]


def health(port: int) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/health")
    found: list[str] = json.loads(connection.getresponse().read())["replicas"]
    return found


def test_one_is_killed_under_load() -> None:
    with serving() as (process, port):
        alone = json.loads(ask(port, **LONG, temperature=0).read())["content"]
        statuses: list[int] = []

        def stream(_: int) -> str:
            response = ask(port, **LONG, temperature=0, stream=True)
            statuses.append(response.status)
            events = [json.loads(part[6:]) for part in response.read().strip().split(b"\n\n")]
            text = "".join(event.get("content", "") for event in events)
            assert alone.startswith(text)
            if "error" in events[-1]:
                assert "gone away" in events[-1]["error"]["message"]
                return "told"
            assert text == alone
            return "whole"

        def tell(_: int) -> str:
            """Nothing of it has been sent when the replica dies: another one is asked."""
            response = ask(port, **LONG, temperature=0)
            statuses.append(response.status)
            assert json.loads(response.read())["content"] == alone
            return "whole"

        with ThreadPoolExecutor(10) as pool:
            streams = [pool.submit(stream, n) for n in range(6)]
            wholes = [pool.submit(tell, n) for n in range(4)]
            time.sleep(0.4)
            replicas_of(process)[0].send_signal(signal.SIGKILL)
            found = [each.result() for each in streams + wholes]
        assert set(statuses) == {200}
        assert "whole" in found
        end = time.perf_counter() + 15
        while health(port) != ["ready", "ready"]:
            assert time.perf_counter() < end
            time.sleep(0.05)
        assert json.loads(ask(port, **LONG, temperature=0).read())["content"] == alone
        assert process.stderr is not None
        assert re.match(r"replica \d: it has ended \(Killed\); starting", process.stderr.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_of_busy_replicas(number: int) -> None:
    with serving("--spec-type", "none", "-c", "100000") as (process, port):
        body = LONG | {"n_predict": 90000}
        responses = [ask(port, **body, stream=True, id_slot=slot) for slot in (0, 1, 4)]
        told: list[bytes] = []
        for response in responses:
            assert response.readline()
        readers = [
            threading.Thread(target=lambda each=each: told.append(each.read()))
            for each in responses
        ]
        for reader in readers:
            reader.start()
        children, began = replicas_of(process), time.perf_counter()
        process.send_signal(number)
        assert process.wait(10) == 0
        assert time.perf_counter() - began < 5.5
        for reader in readers:
            reader.join(5)
        for text in told:
            last = json.loads(text.strip().split(b"\n\n")[-1][6:])
            assert last.get("stop") or last["error"]["code"] == 503
        assert not psutil.wait_procs(children, 3)[1]
        assert process.communicate() == ("", "")


def test_two_interrupts_end_them_at_once() -> None:
    with serving("--spec-type", "none") as (process, port):
        response = ask(port, **LONG, stream=True)
        assert response.readline()
        children, began = replicas_of(process), time.perf_counter()
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert time.perf_counter() - began < 3
        assert not psutil.wait_procs(children, 8)[1]


def test_what_is_wrong_is_said_once(real_spec: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    for args, code, said in (
        (["-m", str(bad)], 1, "bad.gguf"),
        (["--chat-template", "none_of_it"], 2, "none_of_it"),
        (["-c", "100000000", "-np", "200"], 2, "smaller -c"),
        (["--ray", "replicas=2"], 2, "--replicas and --ray exclude each other"),
        (["--device", "cuda:0,1"], 2, "--replicas and --device cuda:0,1 exclude each other"),
        (["--device", "cuda:0-3"], 2, "--replicas and --device cuda:0-3 exclude each other"),
        (["--device", "cuda:0-x"], 2, "several GPUs are called cuda:0,1 or cuda:0-3"),
    ):
        done = real_spec("serve", "--port", "0", "--replicas", "2", *args)
        assert (done.returncode, done.stdout) == (code, ""), (args, done.stderr)
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert said in lines[0]


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", RayPlan()),
        ("replicas=3", RayPlan(3)),
        (" replicas = 4 , cpus=2.5,gpus=1,address=auto", RayPlan(4, 2.5, 1.0, "auto")),
        ("address=ray://head:10001", RayPlan(address="ray://head:10001")),
    ],
)
def test_what_ray_is_told(text: str, plan: RayPlan) -> None:
    assert read_ray(text) == plan


@pytest.mark.parametrize(
    "text", ["replicas", "replicas=x", "replicas=0", "cpus=-1", "cpus=nan", "nodes=3", "=3"]
)
def test_bad_plans_for_ray(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--ray"):
        read_ray(text)


def test_ray_is_asked_for_by_name(real_spec: Run, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = real_spec("serve", "--ray", "replicas=2", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "spec: error: --ray needs Ray Serve: pip install 'nextn[ray]'\n"


def test_where_replicas_compute() -> None:
    assert place_of(PlaceOptions(threads=3), 1, 2).threads == 3
    assert (place_of(PlaceOptions(), 1, 1000).threads or 0) == 1
    assert place_of(PlaceOptions(device="torch:cuda"), 1, 2).device == "torch:cuda:1"
    assert place_of(PlaceOptions(device="cuda"), 1, 2).device == "cuda:1"
    assert place_of(PlaceOptions(device="torch:cuda:0"), 1, 2).device == "torch:cuda:0"
    assert place_on_ray(PlaceOptions(), 2.5).threads == 3
    assert place_on_ray(PlaceOptions(device="torch:cuda"), 1).device == "torch:cuda"
