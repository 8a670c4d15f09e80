"""The life of the process that renders: limits, interruption, and no orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nextn.core.errors import TemplateError
from nextn.core.tokenizer import template_client
from nextn.core.tokenizer.template_client import TemplateWorker

psutil = pytest.importorskip("psutil")

LOOPS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")


@pytest.fixture
def worker() -> Iterator[TemplateWorker]:
    worker = TemplateWorker()
    yield worker
    worker.stop()


def process_id(worker: TemplateWorker) -> int:
    process = worker._process
    assert process is not None
    return process.pid


def run(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


START = """
from nextn.core.tokenizer.template_client import WORKER
WORKER.render("{{ a }}", {"a": 1})
print(WORKER._process.pid, flush=True)
"""

HANGS_S = 120


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + HANGS_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.02)


def test_one_process_serves_many_renders(worker: TemplateWorker) -> None:
    first = worker.render("{{ x }}", {"x": 1})
    pid = process_id(worker)
    assert [worker.render("{{ x }}", {"x": i}) for i in range(20)] == [str(i) for i in range(20)]
    assert (first, process_id(worker)) == ("1", pid)


def test_the_process_knows_jinja_and_little_else(worker: TemplateWorker) -> None:
    worker.render("", {})
    maps = psutil.Process(process_id(worker)).memory_maps()
    names = " ".join(region.path for region in maps)
    assert "numpy" not in names
    assert "torch" not in names
    assert "tokenizers" not in names


@posix
def test_memory_is_bounded(worker: TemplateWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_client, "RENDER_LIMIT_S", 30.0)  # time is not what ends it
    worker.render("", {})
    process = psutil.Process(process_id(worker))
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    grow = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    with pytest.raises(TemplateError, match="too much memory"):
        worker.render(grow + "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}", {})
    stop.set()
    thread.join()
    assert 50e6 < peak[0] < 900e6


def test_a_killed_process_is_replaced(worker: TemplateWorker) -> None:
    worker.render("", {})
    pid = process_id(worker)
    psutil.Process(pid).kill()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=HANGS_S)
    assert worker.render("{{ x }}", {"x": 2}) == "2"
    assert process_id(worker) != pid


def test_the_time_limit_holds_for_compiling_too(worker: TemplateWorker) -> None:
    worker.render("", {})
    with pytest.raises(TemplateError):
        worker.render("{{ " + "+".join(["[1]"] * 300_000) + " }}", {})
    assert worker.render("a", {}) == "a"


@posix
def test_time_in_which_the_process_does_not_run_is_not_counted(
    worker: TemplateWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside busy processes."""
    worker.render("", {})
    monkeypatch.setattr(template_client, "RENDER_LIMIT_S", 0.1)
    process = psutil.Process(process_id(worker))
    process.suspend()
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(worker.render, "{{ x }}", {"x": 1})
        time.sleep(0.4)
        assert not text.done()
        process.resume()
        assert text.result() == "1"
    assert process_id(worker) == process.pid


def test_renders_from_many_threads_take_turns(worker: TemplateWorker) -> None:
    def render(i: int) -> str:
        return worker.render("{{ x * 2 }}", {"x": i})

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(render, range(100))) == [str(2 * i) for i in range(100)]


def test_interruption_leaves_no_worker_out_of_step(
    worker: TemplateWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.render("", {})
    pid = process_id(worker)

    def interrupted(stream: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(template_client, "read_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.render("old answer", {})
    wait_until_gone(pid)
    assert worker.render("new answer", {}) == "new answer"


@posix
def test_ctrl_c_ends_a_render_at_once() -> None:
    script = START + f"import sys\nWORKER.render({LOOPS!r}, {{}})\n"
    process = run(script)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=HANGS_S)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    wait_until_gone(pid)


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(3)", "raise ValueError"])
def test_no_orphan_and_no_wait_at_exit(ending: str) -> None:
    process = run(START + ending)
    out, _ = process.communicate(timeout=HANGS_S)
    wait_until_gone(int(out))


def kill_parent(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    wait_until_gone(pid)


@posix
def test_no_orphan_when_the_parent_is_killed() -> None:
    kill_parent(run(START + "import time; time.sleep(1000)"))


@posix
@pytest.mark.slow
def test_no_orphan_when_the_parent_is_killed_during_a_render() -> None:
    kill_parent(run(START + f"WORKER.render({LOOPS!r}, {{}})"))


def test_secrets_of_the_environment_stay_outside(
    worker: TemplateWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    worker.render("", {})
    assert "SECRET_TOKEN" not in psutil.Process(process_id(worker)).environ()


def test_a_module_called_jinja2_where_the_user_stands_is_not_taken(
    worker: TemplateWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    (tmp_path / "jinja2.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert worker.render("a", {}) == "a"
