"""How many threads: what affinity and quotas leave."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nextn.core.backend.cpu import threads
from nextn.core.backend.cpu.threads import default_threads, spread

pytestmark = pytest.mark.threads


def test_default_threads_fit_the_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


def test_no_more_threads_than_processors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: 6)
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: 4)
    assert [threads.usable_threads(n) for n in (None, 1, 4)] == [None, 1, 4]
    assert not caplog.messages
    assert threads.usable_threads(2000) == 4
    (line,) = caplog.messages
    assert line == "2000 threads: this process may use 4 processors; it runs 4 threads"
    assert threads.usable_threads(0) == 0  # refused later, with the flag's name


@pytest.mark.parametrize(
    ("own", "files", "n"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "250000 100000"}, 2),
        ("0::/\n", {"cpu.max": "5000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/not/here\n", {"cpu.max": "400000 100000"}, 4),
        ("2:cpu,cpuacct:/c\n", {"cpu/c/cpu.cfs_quota_us": "-1",
                                "cpu/c/cpu.cfs_period_us": "100000"}, None),
        ("2:cpu:/c\n1:name=x:/\n", {"cpu/c/cpu.cfs_quota_us": "200000",
                                    "cpu/c/cpu.cfs_period_us": "100000"}, 2),
        ("not a list", {"cpu.max": "nothing"}, None),
    ],
)  # fmt: skip
def test_quotas_of_all_groups_hold(
    own: str, files: dict[str, str], n: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(threads, "_OWN_CGROUPS", tmp_path / "own")
    assert threads._cgroup_quota() == n


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_threads_that_are_spread_may_move_again() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    before = os.sched_getaffinity(thread.native_id)
    with spread([thread.native_id, None]):
        assert len(os.sched_getaffinity(thread.native_id)) == 1
    assert os.sched_getaffinity(thread.native_id) == before
    done.set()
    thread.join()
    with spread([thread.native_id]):  # it has ended
        pass
