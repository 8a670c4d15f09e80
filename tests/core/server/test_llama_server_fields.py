"""What clients of llama-server look for beside OpenAI's fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Server, nano_server, running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Book"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def chatty() -> Iterator[Server]:
    with running(nano_server(verbose=True, tags=("chat", "small"), max_tokens=5)) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_native_response_comes_with_verbose(server: Server, path: str) -> None:
    body = {**CHAT, "prompt": "Book"}
    assert "__verbose" not in server.post(path, **body)
    shown = server.post(path, verbose=True, **body)["__verbose"]
    assert "Book" in shown["prompt"]
    assert shown["generation_settings"]["n_predict"] == 3
    last = server.events(path, verbose=True, **body)[-2]  # before [DONE]
    assert "Book" in last["__verbose"]["prompt"]


def test_a_verbose_server_sends_it_to_all(chatty: Server) -> None:
    assert "__verbose" in chatty.post("/v1/chat/completions", **CHAT)
    assert "__verbose" not in chatty.post("/v1/chat/completions", verbose=False, **CHAT)


def test_the_limit_of_the_server_is_a_default(chatty: Server) -> None:
    how: dict[str, Any] = {"prompt": "a", "ignore_eos": True}
    assert chatty.post("/completion", **how)["tokens_predicted"] == 5
    assert chatty.post("/completion", n_predict=-1, **how)["tokens_predicted"] == 5
    assert chatty.post("/completion", n_predict=9, **how)["tokens_predicted"] == 9


def test_tags_are_listed(chatty: Server) -> None:
    _, body, _ = chatty.request("GET", "/v1/models")
    assert body["data"][0]["tags"] == ["chat", "small"]


def test_the_length_of_a_chat(server: Server) -> None:
    counted = server.post("/chat/completions/input_tokens", **CHAT)["input_tokens"]
    assert counted == server.post("/chat/completions", **CHAT)["usage"]["prompt_tokens"]


def test_metrics_say_when_the_server_was_started(server: Server) -> None:
    _, _, response = server.request("GET", "/metrics")
    assert int(response.getheader("Process-Start-Time-Unix") or 0) > 1_700_000_000


def test_images_in_a_prompt_are_refused(server: Server) -> None:
    prompt = {"prompt_string": "what <__media__>", "multimodal_data": ["aGk="]}
    status, error = server.refused("/completion", {"prompt": prompt})
    assert status == 400
    assert "multimodal_data" in error["message"]
