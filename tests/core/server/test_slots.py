"""Slots: saved, restored and erased; files and names that clients might try."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.serving import Server, nano_server, running, wait_until

from nextn.core.speculation.options import SpecOptions
from nextn.core.state.snapshot import SequenceSnapshot

TEXT = "def add(a, b):\n    return a + b\n\n\n" * 30
WAYS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 5, "repeat_penalty": 1.1},
    {"temperature": 0.9, "seed": 5, "speculative": {"off": True}},
    {"temperature": 0.9, "seed": 5, "speculative": {"types": "mtp", "n_max": 3}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def saving(folder: Path) -> Iterator[Server]:
    with running(nano_server(slot_folder=folder, spec=SpecOptions(fixed=True))) as server:
        yield server


def act(server: Server, action: str, slot: int = 0, **body: Any) -> Any:
    return server.post(f"/slots/{slot}?action={action}", **body)


def write(server: Server, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 40, "return_tokens": True, "n_probs": 2, **more}
    done: dict[str, Any] = server.post("/completion", **body)
    return done


def essence(done: dict[str, Any]) -> Any:
    return done["tokens"], done["content"], done["completion_probabilities"]


def test_another_server_goes_on(saving: Server, folder: Path) -> None:
    """Nothing of its text depends on it."""
    first = write(saving, TEXT, id_slot=1, **WAYS[1])
    saved = act(saving, "save", 1, filename="kept.bin")
    assert (saved["id_slot"], saved["filename"]) == (1, "kept.bin")
    assert saved["n_saved"] == first["tokens_evaluated"] + 39
    assert saved["n_written"] == (folder / "kept.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    assert (folder / "kept.bin").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["kept.bin"]
    prompt = TEXT + first["content"] + "\nx = "
    want = [write(saving, prompt, cache_prompt=False, **way) for way in WAYS]
    for way, cold in zip(WAYS, want, strict=True):
        other = nano_server(n=2, slot_folder=folder, spec=SpecOptions(fixed=True))
        with running(other) as server:
            done = act(server, "restore", 1, filename="kept.bin")
            assert done == {
                "id_slot": 1,
                "filename": "kept.bin",
                "n_restored": saved["n_saved"],
                "n_read": saved["n_written"],
                "timings": done["timings"],
            }
            warm = write(server, prompt, **way)
            assert warm["timings"]["cache_n"] > saved["n_saved"] - 8
            assert essence(warm) == essence(cold)
            again = write(server, TEXT, **WAYS[1])  # the earlier states were saved, too
            assert again["timings"]["cache_n"] >= 256
            assert essence(again) == essence(first)


def test_a_chat_goes_on_after_a_restart(folder: Path) -> None:
    def ask(server: Server, messages: list[dict[str, str]], **more: Any) -> tuple[str, int]:
        done = server.post(
            "/v1/chat/completions", messages=messages, seed=len(messages), max_tokens=50, **more
        )
        usage = done["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == done["timings"]["cache_n"]
        return done["choices"][0]["message"]["content"], done["timings"]["cache_n"]

    plain: dict[str, Any] = {"cache_prompt": False, "speculative": False}
    messages, n_cached = [{"role": "user", "content": "Write a stack."}], 0
    for turn in range(4):
        with running(nano_server(n=1, slot_folder=folder)) as server:
            if turn:
                act(server, "restore", filename="chat")
            want, _ = ask(server, messages, **plain)
            act(server, "erase")
            if turn:
                act(server, "restore", filename="chat")
            text, n = ask(server, messages)
            assert text == want
            assert (n > n_cached) == bool(turn)
            n_cached = n
            act(server, "save", filename="chat")
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]


def test_erased(saving: Server) -> None:
    prompt = TEXT[7:]
    first = write(saving, prompt, id_slot=2, ignore_eos=True)
    n = first["tokens_evaluated"] + 39
    assert act(saving, "erase", 2) == {"id_slot": 2, "n_erased": n}
    assert act(saving, "erase", 2) == {"id_slot": 2, "n_erased": 0}
    assert write(saving, prompt, id_slot=2)["timings"]["cache_n"] < 8  # tokens of other texts
    act(saving, "erase", 3)
    status, error = saving.refused("/slots/3?action=save", {"filename": "x"})
    assert (status, "holds nothing" in error["message"]) == (400, True)


def test_the_last_text_of_a_slot(saving: Server) -> None:
    """A text that goes on from one is written where that was."""
    for slot in (3, 1):
        first = write(saving, TEXT[slot:], id_slot=slot, n_predict=10)
        assert write(saving, TEXT[slot:] + first["content"], n_predict=2)["id_slot"] == slot


def test_a_busy_slot_is_waited_for(saving: Server, folder: Path) -> None:
    prompt = "class Queue:\n"
    with ThreadPoolExecutor(4) as pool:
        long = pool.submit(write, saving, prompt, id_slot=0, n_predict=600, ignore_eos=True)
        wait_until(lambda: saving.worker.slots[0] is not None)
        saved = pool.submit(act, saving, "save", 0, filename="busy")
        second = pool.submit(write, saving, "a = ", id_slot=0, n_predict=1)
        other = pool.submit(write, saving, "b = ", n_predict=1)
        assert other.result()["id_slot"] != 0
        assert not long.done()
        assert long.result()["id_slot"] == second.result()["id_slot"] == 0
        assert saved.result()["n_saved"] > 0
    assert (folder / "busy").exists()


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "x" * 129, ".hidden", "CON",
        "nul.txt", "com1", "é", "a b", "a\n", "x.", "%2e%2e", "a:b", None, 3, ["a"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("action", ["save", "restore"])
def test_names(saving: Server, folder: Path, action: str, name: Any) -> None:
    before = sorted(folder.iterdir())
    status, error = saving.refused(f"/slots/0?action={action}", {"filename": name})
    assert (status, error["param"]) == (400, "filename")
    assert sorted(folder.iterdir()) == before


def test_what_is_no_slot_and_no_action(saving: Server, server: Server) -> None:
    for path in (
        "/slots/4",
        "/slots/-1",
        "/slots/x",
        "/slots/99999999999999999999",
        "/slots/%C2%B2",
    ):
        status, error = saving.refused(f"{path}?action=erase", {})
        assert (status, error["message"]) == (400, "Invalid slot ID")
    for query in ("", "?action=", "?action=load"):
        assert saving.refused(f"/slots/0{query}", {})[0] == 400
    status, error = server.refused("/slots/0?action=save", {"filename": "x"})
    assert (status, error["type"]) == (501, "not_supported_error")
    assert "--slot-save-path" in error["message"]


def restored(server: Server, name: str) -> str:
    status, error = server.refused("/slots/0?action=restore", {"filename": name})
    assert status == 400
    assert error["param"] == "filename"
    assert "/" not in error["message"]
    assert "\n" not in error["message"]
    return str(error["message"])


def test_links_and_other_things(saving: Server, folder: Path, tmp_path: Path) -> None:
    write(saving, TEXT, id_slot=0)
    act(saving, "save", 0, filename="real")
    (folder / "link").symlink_to(folder / "real")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    assert "a link" in restored(saving, "link")
    assert "not a plain file" in restored(saving, "folder")
    assert "not a plain file" in restored(saving, "pipe")
    assert "no saved slot nowhere" in restored(saving, "nowhere")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "trap").symlink_to(victim)
    act(saving, "save", 0, filename="trap")  # takes the place of the link
    assert victim.read_text() == "precious"
    assert not (folder / "trap").is_symlink()
    status, error = saving.refused("/slots/0?action=save", {"filename": "folder"})
    assert (status, "cannot be written" in error["message"]) == (500, True)
    assert not list(folder.glob(".*"))


def test_files_that_are_not_ours(saving: Server, folder: Path) -> None:
    write(saving, TEXT, id_slot=0)
    act(saving, "save", 0, filename="good")
    good = (folder / "good").read_bytes()
    bad = {
        "is not a saved sequence": b"GGUF" * 100,
        "damaged or cut short": good[:-200],
        "checksum": good[:5000] + b"?" + good[5001:],
    }
    for said, data in bad.items():
        (folder / "bad").write_bytes(data)
        assert said in restored(saving, "bad")
    with open(folder / "bad", "wb") as file:
        file.write(good[:100])
        file.truncate(1 << 40)
    assert "larger than any" in restored(saving, "bad")
    snapshot = SequenceSnapshot.load(folder / "good")
    image = {name: array.copy() for name, array in snapshot.image.items()}
    state = next(array for name, array in image.items() if name.endswith("states"))
    state.flat[7] = np.nan
    keys = {"kv.0.keys": np.full_like(image["kv.0.keys"], 0x7C00)}
    for said, change in (
        ("another model", {"model": "other"}),
        ("another backend", {"backend": "cpu with f16 and q8_0"}),
        ("another window", {"window": 500}),
        ("shape", {"image": {}}),
        ("not finite", {"image": image}),
        ("not finite", {"image": snapshot.image | keys}),
        ("outside the vocabulary", {"tokens": snapshot.tokens + 100_000}),
        ("not one that has ended", {"blobs": {}}),
    ):
        replace(snapshot, **change).save(folder / "bad")
        assert said in restored(saving, "bad")
    assert act(saving, "restore", 0, filename="good")["n_restored"] > 0


def test_a_smaller_context(folder: Path, saving: Server) -> None:
    write(saving, TEXT, id_slot=0)
    act(saving, "save", 0, filename="long")
    with running(nano_server(n=1, slot_folder=folder, how={"n_ctx": 200})) as server:
        assert "exceeds the available context size of 200" in restored(server, "long")


def test_other_keys_and_values(folder: Path, saving: Server) -> None:
    write(saving, TEXT, id_slot=0)
    act(saving, "save", 0, filename="halves")
    how = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    with running(nano_server(n=1, slot_folder=folder, how=how)) as server:
        assert "another backend" in restored(server, "halves")
        first = write(server, TEXT, **WAYS[0])
        act(server, "save", filename="eighths")
        act(server, "erase")
        prompt = TEXT + first["content"]
        cold = write(server, prompt, cache_prompt=False, **WAYS[0])
        act(server, "erase")
        act(server, "restore", filename="eighths")
        warm = write(server, prompt, **WAYS[0])
        assert warm["timings"]["cache_n"] > 256
        assert essence(warm) == essence(cold)


def test_the_folder_is_full(saving: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(saving, TEXT, id_slot=0)
    act(saving, "save", 0, filename="old")
    before = (folder / "old").read_bytes()

    def full(_self: Any, file: Any) -> int:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SequenceSnapshot, "write", full)
        status, error = saving.refused("/slots/0?action=save", {"filename": "old"})
    assert (status, error["message"]) == (500, "old cannot be written: No space left on device")
    assert (folder / "old").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_many_at_once(folder: Path) -> None:
    """While texts are written, and nobody's changes."""
    with running(nano_server(slot_folder=folder, cache_ram=64 << 20)) as server:
        prompts = [TEXT[i:] for i in range(4)]
        want = [write(server, p, cache_prompt=False, temperature=0)["content"] for p in prompts]

        def one(i: int) -> str:
            slot = i % 4
            done = write(server, prompts[slot], id_slot=slot, temperature=0)
            assert act(server, "save", slot, filename=f"many{i}")["n_saved"] > 256
            act(server, "restore", (slot + 1) % 4, filename=f"many{i}")
            return str(done["content"])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(16))) == [want[i % 4] for i in range(16)]
        wait_until(lambda: server.worker.slots == [None] * 4)
        assert server.engine.store.pool.n_held == 0


def test_what_was_given_up_cannot_be_saved(folder: Path) -> None:
    with running(nano_server(n=2, slot_folder=folder, cache_ram=4 << 20)) as server:
        write(server, TEXT, id_slot=0)
        for i in range(8):
            write(server, TEXT[i:], id_slot=1)
        status, error = server.refused("/slots/0?action=save", {"filename": "gone"})
        assert (status, "--cache-ram" in error["message"]) == (400, True)
