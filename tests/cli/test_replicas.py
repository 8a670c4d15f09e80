"""`spec serve --replicas` as its users start, hurt and end it. With the bundled model."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil
import pytest
from shim.alone import alone
from support.serving import Client
from support.thoroughness import COVERS_ALL

from nextn.cli.scale_options import (
    MAX_REPLICAS,
    ScaleOptions,
    cpus_of,
    gpus_of,
    place_in_replica,
)
from nextn.cli.shared_options import PlaceOptions

HANGS_S = 120
WAITING = "replicas load, or wait for the cluster"
REAL = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
Test = TypeVar("Test", bound=Callable[..., None])
Run = Callable[..., subprocess.CompletedProcess[str]]
LONG: dict[str, object] = {"prompt": "a = ", "ignore_eos": True, "n_predict": 1200}


@pytest.fixture
def only_cluster() -> Iterator[None]:
    """No other worker of pytest has a cluster meanwhile: `--ray-address auto` finds any."""
    with alone("ray"):
        yield


def needs_ray(test: Test) -> Test:
    lacks_ray = pytest.mark.skipif(find_spec("ray") is None, reason="an extra: nextn[ray]")
    return cast(Test, lacks_ray(pytest.mark.usefixtures("only_cluster")(test)))


@contextlib.contextmanager
def serving(
    *args: str, how: Sequence[str] = ("--replicas", "2"), env: dict[str, str] | None = None
) -> Iterator[
    tuple[subprocess.Popen[str], int]
]:  # fmt: skip
    command = [*REAL, "serve", "-m", "nano", "--port", "0", "-np", "4", *how, *args]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env=os.environ | (env or {}),
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        while WAITING in line:  # a busy machine takes long to start them
            line = process.stderr.readline()
        found = re.search(
            r"ready +http://127\.0\.0\.1:(\d+) \((2 replicas of )?4 slots of \d+ tokens[^)]*\)",
            line,
        )
        assert found, line
        yield process, int(found[1])
    finally:
        process.terminate()  # a killed one leaves Ray's folder behind
        try:
            process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()


def ask(port: int, **body: object) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request("POST", "/completion", json.dumps(body))
    return connection.getresponse()


def get(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request("GET", path)
    return connection.getresponse().read()


def replicas_of(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """Ray names them after the deployment."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since, or is a zombie
            if "ray::ServeReplica:nextn-" in " ".join(each.cmdline()):
                found.append(each)
    return found


def wait_for_the_end(processes: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(processes, HANGS_S)[1]


def wait_until_ready(port: int) -> None:
    wait_for_states(port, [["ready", "ready"]])


def check_printed_nothing(process: subprocess.Popen[str]) -> None:
    """Nothing of ours: Ray and gRPC write to the same standard error."""
    out, err = process.communicate()
    ours = [line for line in err.splitlines() if re.search(r"spec:|nextn|replica \d", line)]
    assert (out, ours) == ("", []), err


def leftovers() -> list[Path]:
    return [*Path(tempfile.gettempdir()).glob("spec-ray-*")]


def events_of(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(part[6:]) for part in raw.strip().split(b"\n\n")]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("content", "") for event in events)


def check_one_killed_under_load(
    process: subprocess.Popen[str], port: int, replicas: list[psutil.Process]
) -> None:
    """Two streams on each replica, and answers of which nothing has been sent yet."""
    assert len(replicas) == 2
    body = LONG | {"n_predict": 2500, "temperature": 0}
    alone = json.loads(ask(port, **body).read())["content"]
    streams = [ask(port, **body, stream=True, id_slot=slot) for slot in (0, 1, 4, 5)]
    first = [stream.readline() + stream.readline() for stream in streams]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(lambda: ask(port, **body).read()) for _ in range(4)]
        rests = [pool.submit(stream.read) for stream in streams]
        time.sleep(0.1)
        replicas[0].send_signal(signal.SIGKILL)
        found = [events_of(a + b.result()) for a, b in zip(first, rests, strict=True)]
        assert {json.loads(each.result())["content"] for each in answers} == {alone}
    broken = ["error" in events[-1] for events in found]
    assert broken in ([True, True, False, False], [False, False, True, True])
    for events in found:
        assert alone.startswith(text_of(events))
        if "error" in events[-1]:
            assert "gone away" in events[-1]["error"]["message"]
        else:
            assert text_of(events) == alone
    assert process.stderr is not None
    lost = re.compile(r"Z info +replica \d has been started again")
    assert any(lost.search(line) for line in iter(process.stderr.readline, ""))
    wait_until_ready(port)
    for slot in (0, 4):
        assert json.loads(ask(port, **body, id_slot=slot).read())["content"] == alone


def check_as_a_single_server(client: Client) -> None:
    body = {"prompt": "def add(a, b):", "n_predict": 40, "temperature": 0.8, "seed": 7}
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 1}
    with serving("-c", "8000", how=()) as (_, port):
        server = Client(port)
        for path, asked in (
            ("/completion", body),
            ("/completion", body | {"stream": True, "n_probs": 2}),
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", chat | {"stream": True}),
            ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "seed": 3, "max_tokens": 9}),
            ("/tokenize", {"content": "def add"}),
            ("/completion", {"prompt": 5}),
            ("/nowhere", {}),
        ):
            found = [each.request("POST", path, asked) for each in (client, server)]
            assert lasting(found[0]) == lasting(found[1])


MOMENTARY = re.compile(
    r'"(id|created|id_slot)": ?("[^"]*"|\d+)|"timings": ?\{[^}]*\}|"[a-z_]*_details": ?\{[^}]*\}'
)


def lasting(reply: tuple[int, Any, http.client.HTTPResponse]) -> tuple[int, str | None, str]:
    """Status, content type and text, without what depends on the moment."""
    status, value, response = reply
    text = value if isinstance(value, str) else json.dumps(value)
    return status, response.getheader("content-type"), MOMENTARY.sub("", text)


@needs_ray
@pytest.mark.slow
def test_two_replicas_of_which_one_is_killed() -> None:
    before = leftovers()
    with serving("-c", "8000", "--metrics") as (process, port):
        check_as_a_single_server(Client(port))
        check_one_killed_under_load(process, port, replicas_of(process))
        metrics = get(port, "/metrics").decode()
        assert 'nextn:replica_up{replica="1"} 1' in metrics
        assert "nextn:replica_restarts_total 1" in metrics
        replicas = replicas_of(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == 0
        check_printed_nothing(process)
    wait_for_the_end(replicas)
    assert leftovers() == before


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_replica_that_hangs(goes_on: bool) -> None:
    """Requests that it has not answered go to the other. It comes back when it goes on, or another
    in its place, which Ray starts after a minute."""
    with serving("--spec-type", "none", "-c", "100000") as (process, port):
        body = LONG | {"n_predict": 300, "temperature": 0}
        alone = json.loads(ask(port, **body).read())["content"]
        by_slot = {slot: ask(port, **LONG, stream=True, id_slot=slot) for slot in (0, 4)}
        assert all(stream.readline() for stream in by_slot.values())
        hung = replicas_of(process)[0]
        hung.suspend()
        try:
            with ThreadPoolExecutor(4) as pool:
                answers = [pool.submit(lambda: ask(port, **body).read()) for _ in range(4)]
                assert {json.loads(each.result())["content"] for each in answers} == {alone}
            wait_for_states(port, [["silent", "ready"], ["ready", "silent"]])
            ends = [events_of(stream.read())[-1] for stream in by_slot.values()]
            assert sorted("error" in end for end in ends) == [False, True]
        finally:
            if goes_on:
                hung.resume()
        wait_for_states(port, [["ready", "ready"]])


def wait_for_states(port: int, wanted: list[list[str]]) -> None:
    end = time.perf_counter() + HANGS_S
    while json.loads(get(port, "/health")).get("replicas") not in wanted:
        assert time.perf_counter() < end
        time.sleep(0.1)


def check_clients_that_leave(port: int) -> None:
    """Their slots are free within a step."""
    for streams in (True, False):
        connections = []
        for slot in (1, 6):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
            body = LONG | {"n_predict": 90000, "id_slot": slot, "stream": streams}
            connection.request("POST", "/completion", json.dumps(body))
            connections.append(connection)
        wait_for_busy(port, {1, 6})
        for connection in connections:
            connection.close()
        wait_for_busy(port, set())


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)]
)
def test_clients_that_leave_and_the_end_of_busy_replicas(number: int) -> None:
    args = ("--spec-type", "none", "-c", "100000", "--drain-seconds", "2")
    with serving(*args) as (process, port):
        check_clients_that_leave(port)
        body = LONG | {"n_predict": 90000}
        responses = [ask(port, **body, stream=True, id_slot=slot) for slot in (0, 1, 4)]
        rests: list[bytes] = []
        for response in responses:
            assert response.readline()
        readers = [
            threading.Thread(target=lambda each=each: rests.append(each.read()))
            for each in responses
        ]
        for reader in readers:
            reader.start()
        replicas = replicas_of(process)
        assert {each.nice() for each in replicas} == {psutil.Process(process.pid).nice()}
        process.send_signal(number)
        assert process.wait(HANGS_S) == 0
        for reader in readers:
            reader.join(HANGS_S)
        assert len(rests) == 3
        for rest in rests:
            last = json.loads(rest.strip().split(b"\n\n")[-1][6:])
            assert last.get("stop") or last["error"]["code"] == 503
        wait_for_the_end(replicas)
        check_printed_nothing(process)


@needs_ray
@pytest.mark.exhaustive
def test_two_interrupts_end_them_at_once() -> None:
    with serving("--spec-type", "none", "-c", "100000") as (process, port):
        response = ask(port, **LONG | {"n_predict": 90000}, stream=True)
        assert response.readline()
        replicas = replicas_of(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS_S) == 130
        wait_for_the_end(replicas)


def wait_for_busy(port: int, wanted: set[int]) -> None:
    end = time.perf_counter() + HANGS_S
    while {s["id"] for s in json.loads(get(port, "/slots")) if s["is_processing"]} != wanted:
        assert time.perf_counter() < end
        time.sleep(0.05)


@needs_ray
@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_one_line(real_spec: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    cases = [
        (["-m", str(bad)], 1, "bad.gguf"),
        (["--chat-template", "none_of_it"], 2, "none_of_it"),
        (["-c", "100000000", "-np", "200"], 2, "smaller -c"),
    ]
    for args, code, said in cases if COVERS_ALL else cases[:1]:  # each makes a cluster
        done = real_spec("serve", "-m", "nano", "--port", "0", "--replicas", "2", *args)
        assert (done.returncode, done.stdout) == (code, ""), (args, done.stderr)
        lines = [line for line in done.stderr.splitlines() if WAITING not in line]
        assert len(lines) == 1, done.stderr
        assert said in lines[0]


@needs_ray
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:1",
        *(
            pytest.param(address, marks=pytest.mark.exhaustive)
            for address in ("auto", "ray://no.such.host.invalid:1")
        ),
    ],
)
@pytest.mark.slow
def test_a_cluster_that_is_not_there(real_spec: Run, address: str) -> None:
    done = real_spec("serve", "-m", "nano", "--port", "0", "--ray-address", address)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"no Ray cluster at {address}: " in line


def test_ray_is_not_installed(real_spec: Run, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = real_spec("serve", "-m", "nano", "--replicas", "2", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "spec: error: --replicas needs Ray Serve: pip install 'nextn[ray]'\n"


def test_flags_that_are_wrong(real_spec_here: Run) -> None:
    for args, said in (
        (["--replicas", "0"], "--replicas"),
        (["--replicas", "2", "--replica-cpus", "nan"], "--replica-cpus"),
        (["--replicas", "2", "--replica-gpus", "-1"], "--replica-gpus"),
        (["--replicas", "2", "--device", "cuda:0-x"], "several GPUs are called cuda:0,1"),
    ):
        done = real_spec_here("serve", *args)
        assert (done.returncode, done.stdout) == (2, ""), (args, done.stderr)
        (line,) = done.stderr.splitlines()
        assert said in line


def test_what_each_replica_gets() -> None:
    many = ScaleOptions(replicas=MAX_REPLICAS)
    assert not ScaleOptions().uses_ray
    assert many.uses_ray
    assert ScaleOptions(ray_address="auto").uses_ray
    assert cpus_of(many) >= 1
    assert cpus_of(ScaleOptions(replicas=2, ray_address="auto")) == 1
    assert cpus_of(ScaleOptions(replicas=2, replica_cpus=2.5)) == 2.5
    assert [gpus_of(many, name) for name in ("cpu", "cuda", "torch:cuda")] == [0, 1, 1]
    assert gpus_of(many, "cuda:0-3") == 4
    assert gpus_of(ScaleOptions(replicas=2, replica_gpus=0.5), "cuda") == 0.5


def test_the_threads_of_a_replica() -> None:
    assert place_in_replica(PlaceOptions(), 2.5).threads == 3
    assert place_in_replica(PlaceOptions(), 0).threads == 1
    assert place_in_replica(PlaceOptions(threads=7), 2).threads == 7
    assert place_in_replica(PlaceOptions(device="cuda"), 2) == PlaceOptions(device="cuda")


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[tuple[str, list[psutil.Process]]]:
    """The address of a Ray cluster of two nodes on this machine."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    common = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--block"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    head = ["--head", f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"]
    folder = tempfile.mkdtemp(prefix="two-nodes-")  # a short path: Ray makes sockets in it
    starts = [
        [*head, "--include-dashboard=false", f"--temp-dir={folder}"],
        [f"--address={address}", "--node-ip-address=127.0.0.1"],
    ]
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for args in starts:
            command = [*ray, "start", *args, *common]
            log = (tmp_path / f"node{len(nodes)}").open("wb")
            nodes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            wait_for_line(tmp_path / f"node{len(nodes) - 1}", b"Ray runtime started")
        yield address, [psutil.Process(node.pid) for node in nodes]
    finally:
        for node in reversed(nodes):
            for each in [*psutil.Process(node.pid).children(recursive=True), node]:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    each.kill()
            node.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_line(log: Path, line: bytes) -> None:
    end = time.perf_counter() + HANGS_S
    while line not in log.read_bytes():
        assert time.perf_counter() < end, log.read_text()
        time.sleep(0.1)


@needs_ray
@pytest.mark.exhaustive
def test_a_cluster_of_two_nodes(two_nodes: tuple[str, list[psutil.Process]]) -> None:
    """One CPU a node, so that each has a replica; the server process has none of them."""
    address, nodes = two_nodes
    env = {"RAY_AUTH_MODE": "disabled"}
    with serving("-c", "8000", "--ray-address", address, env=env) as (process, port):
        replicas = [each for node in nodes for each in replicas_of(node)]
        assert [len(replicas_of(node)) for node in nodes] == [1, 1]
        check_one_killed_under_load(process, port, replicas)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == 0
        check_printed_nothing(process)
    wait_for_the_end([each for node in nodes for each in replicas_of(node)])
    with serving("--ray-address", address, env=env) as (process, port):
        process.kill()  # its replicas notice it
        process.wait()
        wait_for_the_end([each for node in nodes for each in replicas_of(node)])
