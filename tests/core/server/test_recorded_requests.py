"""`spec serve --record`: whose tokens are kept, how much, and that a training reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.network_drafts import N_CTX, Tiny
from support.serving import nano_server, running, wait_until

from nextn.convert.train.own_texts import store_texts
from nextn.convert.train.text_store import TextStore
from nextn.core.errors import ConfigError
from nextn.core.load_runtime import load_runtime
from nextn.core.server.request_recorder import RequestRecorder
from nextn.core.server.settings import ServerSettings
from nextn.core.speculation.options import NO_SPECULATION

PROMPT = "def add(a, b):\n"


def recorded(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("records_all", [False, True])
def test_requests_say_whether_they_are_kept(tmp_path: Path, records_all: bool) -> None:
    folder = tmp_path / "kept"
    settings = ServerSettings(record_folder=folder, record_bytes=1 << 20, records_all=records_all)
    message = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    with running(nano_server(settings)) as server:
        post = server.post
        yes = post("/completion", prompt=PROMPT, n_predict=9, return_tokens=True, store=True)
        post("/completion", prompt=PROMPT, n_predict=9, store=False)
        post("/completion", prompt=PROMPT, n_predict=9)
        post("/v1/chat/completions", store=True, **message)
        post("/v1/messages", store=True, **message)
        post("/v1/responses", input="hello", max_output_tokens=4, store=True)
        server.events("/completion", prompt=PROMPT, n_predict=9, store=True)
        fingerprint, tokenizer = server.runtime.fingerprint, server.runtime.tokenizer
    found = recorded(folder)
    assert len(found) == 5 + records_all
    assert {each["model"] for each in found} == {fingerprint}
    first = found[0]
    assert first["tokens"][first["n_prompt"] :] == yes["tokens"]
    assert tokenizer.decode(first["tokens"][: first["n_prompt"]]) == PROMPT
    assert {oct(file.stat().st_mode & 0o777) for file in folder.iterdir()} == {"0o600"}


def test_the_oldest_files_leave(tmp_path: Path) -> None:
    recorder = RequestRecorder(tmp_path, 8000)
    for i in range(200):
        recorder.add([i] * 100, 10, "model")
    recorder.close()
    found = recorded(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 8000
    kept = [each["tokens"][0] for each in found]
    assert kept == list(range(200 - len(kept), 200))
    assert len(kept) > 10


def test_files_that_others_remove_are_begun_anew(tmp_path: Path) -> None:
    """Several servers may share a folder."""
    recorder = RequestRecorder(tmp_path, 1 << 20)
    recorder.add([1] * 9, 3, "model")
    wait_until(lambda: bool(recorded(tmp_path)))
    for file in tmp_path.iterdir():
        file.unlink()
    recorder.add([2] * 9, 3, "model")
    recorder.close()
    assert [each["tokens"][0] for each in recorded(tmp_path)] == [2]


def test_a_training_reads_them(tiny: Tiny, tmp_path: Path) -> None:
    """An answer far behind the beginning of its prompt keeps some of it before itself."""
    with load_runtime(tiny("llama").path, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        folder, work = tmp_path / "kept", tmp_path / "work"
        work.mkdir()
        recorder = RequestRecorder(folder, 1 << 20)
        prompt, answer = [5 + i % 40 for i in range(900)], [7] * 50
        recorder.add(prompt + answer, len(prompt), runtime.fingerprint)
        recorder.close()
        store = TextStore(work)
        assert store_texts(folder, runtime, store, 0) == 0
        (text,) = store.texts
        assert store.read()[text.first :].tolist() == answer
        assert store.read()[: text.first].tolist() == prompt[-text.first :]
        assert text.first > 100
        recorder = RequestRecorder(folder, 1 << 20)
        recorder.add([5] * 40, 20, "another model")
        recorder.close()
        with pytest.raises(ConfigError, match=r"line 1: .*another model than"):
            store_texts(folder, runtime, TextStore(work), 0)


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--record .*file: this is not a folder"):
        RequestRecorder(tmp_path / "file", 1000)
