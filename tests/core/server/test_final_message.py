"""Replies that go on with a message which the client began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Server, nano_server, running

from nextn.core import load, nano
from nextn.core.server.loading import prepare
from nextn.core.tokenizer import ChatTemplate
from nextn.core.worker.worker import Loaded

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Write a loop."}]
BEGUN = [*ASK, {"role": "assistant", "content": "for i in "}]


def prompt_of(server: Server, **body: Any) -> str:
    return str(server.post("/apply-template", **body)["prompt"])


def test_the_prompt_ends_where_the_message_does(server: Server) -> None:
    begun = prompt_of(server, messages=BEGUN, continue_final_message=True)
    parsed = prompt_of(server, messages=ASK)
    assert begun == parsed + "for i in "
    assert prompt_of(server, messages=BEGUN) == begun  # as in llama-server
    closed = prompt_of(server, messages=BEGUN, add_generation_prompt=False)
    assert closed.startswith(begun)
    assert len(closed) > len(begun)


def test_the_reply_is_what_comes_after_it(server: Server) -> None:
    parsed = {"temperature": 0.0, "max_tokens": 12}
    prompt = prompt_of(server, messages=BEGUN, continue_final_message=True)
    plain = server.post("/v1/completions", prompt=prompt, **parsed)["choices"][0]["text"]
    chat = server.post(
        "/v1/chat/completions", messages=BEGUN, continue_final_message=True, **parsed
    )
    assert chat["choices"][0]["message"]["content"] == plain
    other = server.post("/v1/messages", messages=BEGUN, **parsed)
    assert other["content"][0]["text"] == plain


def test_parts_and_many_replies(server: Server) -> None:
    parts = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "for i in "}]}]
    same = prompt_of(server, messages=parts, continue_final_message=True)
    assert same == prompt_of(server, messages=BEGUN, continue_final_message=True)
    empty = [*ASK, {"role": "assistant", "content": ""}]
    assert prompt_of(server, messages=empty, continue_final_message=True) == prompt_of(
        server, messages=ASK
    )


@pytest.fixture(scope="module")
def loud() -> Iterator[Server]:
    """Its template changes what it is given."""

    def make() -> Loaded:
        template = "{% for m in messages %}{{ m.content | upper }}|{% endfor %}"
        return prepare(load(nano.path(), "cpu"), 2, ChatTemplate(template))

    server = nano_server()
    server.worker._load = make
    with running(server):
        yield server


def test_a_message_that_the_template_changes_is_continued_on_demand_alone(loud: Server) -> None:
    assert prompt_of(loud, messages=BEGUN) == "WRITE A LOOP.|FOR I IN |"
    body = {"messages": BEGUN, "continue_final_message": True}
    status, error = loud.refused("/apply-template", body)
    assert status == 400
    assert "its template changes the message" in error["message"]


def test_one_message_of_the_assistant_is_continued(server: Server) -> None:
    status, error = server.refused("/v1/chat/completions", {"messages": [*BEGUN, BEGUN[-1]]})
    assert status == 400
    assert "may end with one message of the assistant" in error["message"]


CALLED = {
    "role": "assistant", "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"messages": ASK}, "'user'"),
        ({"messages": BEGUN, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": [*ASK, CALLED]}, "tools"),
    ],
)
def test_what_cannot_be_gone_on_with(server: Server, body: dict[str, Any], word: str) -> None:
    status, error = server.refused("/v1/chat/completions", {**body, "continue_final_message": True})
    assert status == 400
    assert "continue_final_message" in error["message"]
    assert word in error["message"]
