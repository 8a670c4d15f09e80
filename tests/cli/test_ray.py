"""`spec serve --ray`, where Ray is installed: two replicas on a cluster of this machine alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from .test_replicas import LONG, REAL, ask, health, serving

pytest.importorskip("ray", reason="an extra: nextn[ray]")
pytestmark = pytest.mark.slow
RAY = ("--ray", "replicas=2,cpus=1")


def all_replicas() -> list[psutil.Process]:
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if any("cli.replica import" in part for part in each.info["cmdline"] or ())
    ]


def leftovers() -> list[Path]:
    return [*Path(tempfile.gettempdir()).glob("spec-ray-*")]


def test_two_replicas() -> None:
    before = leftovers()
    with serving(how=RAY) as (process, port):
        alone = json.loads(ask(port, **LONG, temperature=0).read())["content"]

        def stream(slot: int) -> str:
            raw = ask(port, **LONG, temperature=0, stream=True, id_slot=slot).read()
            events = [json.loads(part[6:]) for part in raw.strip().split(b"\n\n")]
            if "error" in events[-1]:
                return "told"
            assert "".join(event["content"] for event in events) == alone
            return "whole"

        with ThreadPoolExecutor(6) as pool:
            assert set(pool.map(stream, range(6))) == {"whole"}
            streams = [pool.submit(stream, n) for n in range(6)]
            time.sleep(0.3)
            all_replicas()[0].send_signal(signal.SIGKILL)
            assert "whole" in {each.result() for each in streams}
        assert process.stderr is not None
        assert re.match(r"replica \d is lost; Ray starts another one", process.stderr.readline())
        end = time.perf_counter() + 60
        while health(port) != ["ready", "ready"]:
            assert time.perf_counter() < end
            time.sleep(0.1)
        assert {stream(0), stream(5)} == {"whole"}
        long = ask(port, **LONG | {"n_predict": 3900}, stream=True)
        assert long.readline()
        process.send_signal(signal.SIGTERM)
        last = json.loads(long.read().strip().split(b"\n\n")[-1][6:])
        assert last.get("stop") or last["error"]["code"] == 503
        assert process.wait(30) == 0
        out, err = process.communicate()
        assert (out, err) == ("", "")
    assert not all_replicas()
    assert leftovers() == before


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto", "ray://no.such.host.invalid:1"])
def test_a_cluster_that_is_not_there(address: str) -> None:
    command = [*REAL, "serve", "--port", "0", "--ray", f"replicas=2,address={address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"no cluster at {address}: " in line
