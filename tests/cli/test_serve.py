"""`spec serve` as people start and end it. With the bundled model."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HANGS_S = 120
REAL = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@contextlib.contextmanager
def serving(*args: str, wait: bool = True) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [*REAL, "serve", "--port", "0", "-np", "2", *args]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        port = 0
        while wait and not port:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line, process.wait()
            found = re.search(r"ready +https?://127\.0\.0\.1:(\d+)", line)
            port = int(found[1]) if found else 0
        yield process, port
    finally:
        process.kill()
        process.communicate()


def ask(port: int, body: dict[str, object]) -> http.client.HTTPResponse:
    return ask_later(port, body).getresponse()


def ask_later(port: int, body: dict[str, object]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request("POST", "/completion", json.dumps(body))
    return connection


LONG: dict[str, object] = {"prompt": "a = ", "ignore_eos": True, "stream": True}


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(HANGS_S)


def test_the_ready_line_a_line_for_the_request_and_the_end() -> None:
    with serving("--spec-type", "none") as (process, port):
        assert json.loads(ask(port, {"prompt": "a", "n_predict": 3}).read())["stop"]
        assert end(process) == 0
        out, err = process.communicate()
        assert out == ""
        (line,) = err.splitlines()
        time_, rest = line.split(" ", 1)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time_)
        known, counts = rest.split(" model=nano.gguf ")
        shown = r"info    POST /completion 200 id=\w+ client=127\.0\.0\.1:\d+ seconds=[\d.]+"
        assert re.fullmatch(shown, known)
        counts = re.sub(r"_s=[\d.]+", "_s=#", counts)
        assert counts == "prompt=2 cached=0 new=3 first_s=# per_s=# drafted=0 accepted=0 end=limit"


@pytest.mark.parametrize(
    ("level", "statuses"),
    [("debug", [200, 200, 400]), ("info", [200, 400]), ("warning", [400]), ("error", [])],
)
def test_levels_and_json(level: str, statuses: list[int], tmp_path: Path) -> None:
    log = tmp_path / "log"
    more = ("--log-format", "json", "--log-file", str(log), "--spec-type", "none")
    with serving("--log-level", level, *more) as (process, port):
        assert get_health(port)
        ask(port, {"prompt": "a", "n_predict": 1}).read()
        ask(port, {"prompt": 5}).read()
        assert end(process) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(each.keys() >= {"time", "level", "message"} for each in lines)
    assert any(each["message"].startswith("ready ") for each in lines)
    assert [each["status"] for each in lines if "status" in each] == statuses
    assert statuses != [400] or lines[-1]["reason"].startswith("prompt must be")


def test_the_ready_line_says_what_there_is_and_could_be() -> None:
    trained = "; the model was trained for 4096: --ctx-size raises it"
    for args, size in (((), ""), (("-c", "1024", "-kvu"), trained)):
        with serving(*args, wait=False) as (process, _):
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            line = next(each for each in lines if each.startswith("ready "))
            n = 1024 if args else 4096
            assert line.rstrip().endswith(f"(2 slots of {n} tokens{size})")


def get_health(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    connection.request("GET", "/health")
    return connection.getresponse().read()


@pytest.mark.slow
def test_the_end_of_a_busy_server() -> None:
    """What is short is drained, what is long ends with an error event."""
    with serving("--spec-type", "none", "--drain-seconds", "2") as (process, port):
        long, short = ask(port, LONG), ask(port, {**LONG, "n_predict": 300})
        assert long.readline()
        assert short.readline()
        told: dict[str, bytes] = {}
        readers = [
            threading.Thread(target=lambda n=name, r=each: told.update({n: r.read()}))
            for name, each in (("long", long), ("short", short))
        ]
        for each in readers:
            each.start()
        assert end(process) == 0
        for each in readers:
            each.join(HANGS_S)
        assert json.loads(told["short"].strip().split(b"\n\n")[-1][6:])["stop"] is True
        last = json.loads(told["long"].strip().split(b"\n\n")[-1][6:])
        assert last["error"]["code"] == 503 if "error" in last else last["stop"]


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    """A pipe holds 64 KiB."""
    with serving() as (process, port):
        for _ in range(500):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
            connection.request("GET", "/" + 190 * "x")
            assert connection.getresponse().status == 404
            connection.close()
        assert ask(port, {"prompt": "a = ", "n_predict": 4}).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == 0


def test_two_interrupts_end_it_at_once() -> None:
    with serving("--spec-type", "none") as (process, port):
        streams = [ask_later(port, LONG) for _ in range(6)]  # two are written, four wait
        assert streams[0].getresponse().readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert end(process, signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("number", "codes"), [(signal.SIGTERM, (0, -15)), (signal.SIGINT, (0, 130))]
)
@pytest.mark.parametrize("pause", [0.0, 0.1, 0.2, 0.4])
def test_signals_while_it_loads(number: int, codes: tuple[int, ...], pause: float) -> None:
    with serving("-m", "nano", "-v", wait=False) as (process, _):
        assert process.stderr is not None
        assert process.stderr.readline().startswith("loading ")
        time.sleep(pause)
        assert end(process, number) in codes
        assert "Traceback" not in process.communicate()[1]


def test_what_is_wrong_is_said_before_the_model_loads(real_spec: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for args, code, said in (
            (["--port", port], 1, f"cannot listen on http://127.0.0.1:{port}: address already"),
            (["--host", "no.such.host.invalid", "--insecure"], 1, "is no address"),
            (["--host", "0.0.0.0"], 2, "--api-key, or --insecure"),
            (["-m", str(tmp_path / "none.gguf")], 1, "no such file"),
            (["-md", str(tmp_path / "none.gguf")], 1, "no such file"),
            (["--api-key-file", str(tmp_path / "none")], 1, "no such file"),
            (["--ssl-key-file", __file__], 2, "need each other"),
            (["--ssl-key-file", __file__, "--ssl-cert-file", __file__], 1, "no certificate"),
            (["--port", "70000"], 2, "--port"),
            (["-np", "0"], 2, "--parallel must be"),
            (["-np", "4", "-c", "3"], 2, "is shared by --parallel 4 sequences"),
            (["--host", ","], 2, "--host must name an address"),
            (["--bogus"], 2, "--bogus"),
            (["--log-level", "loud"], 2, "--log-level must be one of debug, info, warning"),
            (["--log-format", "xml"], 2, "--log-format must be one of text, json"),
            (["--chat-template-kwargs", "[]"], 2, "must be a JSON object"),
        ):
            done = real_spec("serve", *args)
            assert (done.returncode, done.stdout) == (code, ""), args
            (line,) = done.stderr.splitlines()
            assert said in line


@pytest.mark.slow
def test_what_is_wrong_with_the_model(real_spec: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    for args, code in (
        (["-m", str(bad)], 1),
        (["-m", "nano", "--chat-template", "none_of_it"], 2),
        (["-m", "nano", "-c", "100000000", "-np", "200"], 2),
    ):
        done = real_spec("serve", "--port", "0", *args)
        assert done.returncode == code, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_keys_from_files_and_the_environment(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of us\none\n\n two \n  #three\n")
    with serving("--api-key-file", str(keys), "--alias", "other,mine") as (_, port):
        for key, status in (
            ("one", 200),
            ("two", 200),
            ("", 401),
            ("#three", 401),
            ("# of us", 401),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            response = connection.getresponse()
            assert response.status == status
            if status == 200:
                assert json.loads(response.read())["data"][0]["id"] == "mine"


def test_a_corpus_survives_the_server_and_is_shared_by_its_keys(tmp_path: Path) -> None:
    """One key's request writes a text; after a restart another key's gets it in few steps, as
    the metrics say; a request with a salt leaves nothing."""
    corpus, keys = tmp_path / "corpus", tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    args = ("--spec-type", "suffix,mtp", "--spec-fixed", "--spec-corpus", str(corpus), "--metrics")
    body = {"prompt": "def hello(self):", "n_predict": 60, "ignore_eos": True, "seed": 5}
    texts, accepted, sizes = [], [], []
    for key, salt, types in (("one", None, "none"), ("two", "secret", "suffix")):
        with serving(*args, "--api-key-file", str(keys)) as (process, port):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
            headers = {"Authorization": f"Bearer {key}"}
            more = {"cache_salt": salt, "speculative": {"types": types}}
            connection.request("POST", "/completion", json.dumps(body | more), headers)
            done = json.loads(connection.getresponse().read())
            texts.append(done["content"])
            accepted.append(done["timings"].get("draft_n_accepted", 0))
            connection.request("GET", "/metrics", headers=headers)
            metrics = connection.getresponse().read().decode()
            found = re.findall(r'nextn:accepted_tokens_total{.*source="suffix".*} (\d+)', metrics)
            assert sum(map(int, found)) == accepted[-1]
            assert end(process) == 0
        sizes.append(corpus.stat().st_size)
    assert texts[0] == texts[1]
    assert accepted[0] == 0
    assert accepted[1] >= 50
    assert sizes[0] == sizes[1] > 60 * 4


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with it")
def test_https(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    with serving("--ssl-key-file", key, "--ssl-cert-file", certificate) as (_, port):
        trusted = ssl.create_default_context(cafile=certificate)
        trusted.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted)
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}


@pytest.mark.parametrize(("flags", "n_ctx"), [((), 256), (("-kvu",), 512)])
def test_slots_share_the_context(flags: tuple[str, ...], n_ctx: int) -> None:
    with serving("-m", "nano", "-c", "512", *flags) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
        connection.request("GET", "/slots")
        slots = json.load(connection.getresponse())
        assert [slot["n_ctx"] for slot in slots] == [n_ctx, n_ctx]
        assert end(process) == 0


def test_several_addresses() -> None:
    with serving("-m", "nano", "--host", "127.0.0.1,127.0.0.2") as (process, port):
        for host in ("127.0.0.1", "127.0.0.2"):
            connection = http.client.HTTPConnection(host, port, timeout=HANGS_S)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
        assert end(process) == 0
