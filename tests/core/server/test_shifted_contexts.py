"""`--context-shift`: texts of a server that are longer than their slot's context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Server, nano_server, running

TEXT: dict[str, Any] = {"prompt": "def add(a, b):\n", "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    how = {"n_ctx": 64}
    with running(nano_server(n=2, how=how, shifts_context=True)) as started:
        yield started


def test_a_text_goes_on(server: Server) -> None:
    done = server.post("/completion", **TEXT, n_predict=150)
    assert done["timings"]["predicted_n"] == 150
    assert (done["stop_type"], done["truncated"]) == ("limit", True)
    settings = done["generation_settings"]
    assert (settings["n_keep"], settings["n_discard"]) == (0, 0)
    short = server.post("/completion", **TEXT, n_predict=20)
    assert short["truncated"] is False
    assert done["content"].startswith(short["content"])
    assert done["timings"]["prompt_n"] == short["timings"]["prompt_n"]


def test_drafts_change_nothing(server: Server) -> None:
    body = TEXT | {"n_predict": 120, "return_tokens": True, "n_keep": -1}
    body |= {"temperature": 0.9, "seed": 3}
    ways = (False, {"types": "mtp", "n_max": 3, "fixed": True}, True)
    texts = [server.post("/completion", **body, speculative=how)["tokens"] for how in ways]
    assert texts[0] == texts[1] == texts[2]
    other = server.post("/completion", **body | {"n_keep": 0}, speculative=False)["tokens"]
    assert other != texts[0]


def test_streams_and_chats(server: Server) -> None:
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}
    events = server.events("/v1/chat/completions", **body, temperature=0, ignore_eos=True)
    last = [event for event in events if event != "[DONE]" and event["choices"]][-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert server.get("/health") == {"status": "ok"}


def test_a_prompt_that_does_not_fit_is_refused(server: Server) -> None:
    status, error = server.refused("/completion", TEXT | {"prompt": "x = 1\n" * 60})
    assert status == 400
    assert "exceeds the available context size" in error["message"]


@pytest.mark.parametrize("fields", [{"n_keep": -2}, {"n_discard": -1}, {"n_keep": "all"}])
def test_wrong_fields(server: Server, fields: dict[str, Any]) -> None:
    status, error = server.refused("/completion", TEXT | fields)
    assert (status, error["param"]) == (400, next(iter(fields)))


def test_without_the_flag_it_ends() -> None:
    with running(nano_server(n=1, how={"n_ctx": 64})) as plain:
        done = plain.post("/completion", **TEXT, n_predict=150, n_keep=5)
        assert done["truncated"] is True
        assert done["timings"]["predicted_n"] < 64
