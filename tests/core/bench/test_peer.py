"""llama.cpp beside us: started, measured, counted by itself and by us, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nextn.core import nano
from nextn.core.bench import peer as peer_module
from nextn.core.bench.peer import Peer, PeerSettings, peer_types
from nextn.core.bench.record import Prompt, RunSettings, Sample
from nextn.core.bench.server_probe import probe
from nextn.core.bench.servers import PeerTarget
from nextn.core.bench.wire import ServerError, Timeouts
from nextn.core.errors import ConfigError, MissingDependencyError
from nextn.core.speculation.options import NgramModSizes, SpecOptions

PROMPTS = [
    Prompt("code", "code", text="def add(a, b):\n", max_tokens=60),
    Prompt("unicode", "code", text='NAMES = ["Zoë", "Jürgen", "名前", "', max_tokens=60),
    Prompt("chat", "chat", turns=("Write a loop.", "Another."), max_tokens=30),
]


def settings(*types: str, n_max: int | None = None, n_slots: int = 1) -> PeerSettings:
    spec = SpecOptions(types=types or ("none",), draft_n_max=n_max)
    return PeerSettings(nano.path(), threads=2, n_ctx=512, n_slots=n_slots, spec=spec)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_names_and_sizes_are_those_of_llama_cpp() -> None:
    spec = SpecOptions(types=("ngram-mod", "mtp"), ngram_mod=NgramModSizes(3, 2, 5), synth_len=2.0)
    found = PeerSettings(Path("m.gguf"), 2, 512, spec=spec).to_json()
    assert found["types"] == ["ngram-mod", "draft-mtp"]
    assert found["sizes"] == {
        "draft": {"n_max": 3, "n_min": 0, "p_min": 0.0},
        "ngram_mod": {"n_match": 3, "n_min": 2, "n_max": 5},
        "": {"synth_len": 2.0},
    }
    with pytest.raises(ConfigError, match="no controller"):
        peer_types(SpecOptions())
    with pytest.raises(ConfigError, match="has no suffix, so that"):
        peer_types(SpecOptions(types=("suffix",)))


def test_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="pip install xllamacpp"):
        Peer(settings())


@pytest.mark.peer
@pytest.mark.parametrize("types", [(), ("mtp",), ("ngram-mod", "mtp")])
@pytest.mark.parametrize("users", [1, 3])
def test_it_counts_as_we_do(types: tuple[str, ...], users: int) -> None:
    target = PeerTarget("peer", settings(*types, n_max=3, n_slots=users), Timeouts())
    try:
        samples = list(target.run(PROMPTS * 2, RunSettings(), users))
        assert [sample.error for sample in samples] == [""] * 8
        details = target.describe()
        assert target.disagreements() == []
        assert details["counters_agree"] is True
        assert details["counted_here"]["predicted"] == sum(s.predicted_n for s in samples) == 360
        assert (details["counters"]["drafted"] > 0) == bool(types)
        if types == ("mtp",):
            assert details["counted_here"]["per_pos"] == details["counters"]["per_pos"]
        assert target.warnings == []
    finally:
        target.close()


@pytest.mark.peer
def test_its_drafts_repeat() -> None:
    """On servers that see the same requests in the same order: a first draft of llama.cpp depends
    on the request before, whose last hidden row it keeps. Its text never does."""

    def rounds() -> list[list[Sample]]:
        target = PeerTarget("peer", settings("mtp", n_max=3), Timeouts())
        try:
            return [list(target.run(PROMPTS, RunSettings())) for _ in range(2)]
        finally:
            target.close()

    one, other = rounds(), rounds()
    for mine, its in zip(one, other, strict=True):
        assert [(s.tokens, s.accepted_per_pos) for s in mine] == [
            (s.tokens, s.accepted_per_pos) for s in its
        ]
    first, second = one
    assert [s.tokens for s in first] == [s.tokens for s in second]


@pytest.mark.peer
@pytest.mark.parametrize("api", ["native", "completions", "chat"])
def test_all_three_ways_of_asking(api: str) -> None:
    target = PeerTarget("peer", settings("mtp", n_max=2), Timeouts())
    try:
        target.service = probe(target._wire, api=api)
        (sample,) = target.run(PROMPTS[:1], RunSettings())
        assert (sample.error, sample.predicted_n) == ("", 60)
        assert sample.draft_n
        assert sample.drafts
        assert target.disagreements() == []
    finally:
        target.close()


@pytest.mark.peer
def test_it_ends_with_us() -> None:
    with Peer(settings()) as peer:
        assert peer.is_alive
        pid = peer.pid
    assert not is_running(pid)


@pytest.mark.peer
def test_it_ends_when_we_are_killed(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import sys, time\n"
        "from nextn.core.bench.peer import Peer, PeerSettings\n"
        "from nextn.core import nano\n"
        "peer = Peer(PeerSettings(nano.path(), 2, 512))\n"
        "print(peer.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_running(pid)
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


@pytest.mark.peer
def test_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"nothing")
    wrong = PeerSettings(path, 2, 512)
    with pytest.raises(ServerError, match=r"did not start with .*failed to load model") as caught:
        Peer(wrong)
    assert "\n" not in str(caught.value)
