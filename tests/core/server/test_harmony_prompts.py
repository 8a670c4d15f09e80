"""Prompts of gpt-oss from the three kinds of chats, as its own template writes them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.harmony_cases import (
    CLOCK,
    CONVERSATIONS,
    DICE,
    Conversation,
    answer,
    as_messages,
    as_responses,
    call,
    calling,
    result,
    system,
    user,
)
from support.harmony_template import HARMONY

from nextn.core.errors import TemplateError
from nextn.core.server import anthropic, responses
from nextn.core.server.chat_prompt import switches_of
from nextn.core.server.messages import read_messages
from nextn.core.server.request_bodies import ChatBody, MessagesBody, ResponsesBody
from nextn.core.server.request_decoding import decode
from nextn.core.tokenizer import ChatTemplate

PROMPTS = json.loads((Path(__file__).parents[2] / "data" / "harmony.json").read_text("utf-8"))[
    "prompts"
]
TEMPLATE = ChatTemplate(HARMONY)
Body = dict[str, Any]


def prompt_of(body: ChatBody) -> str:
    text = TEMPLATE.render(
        read_messages(body),
        tools=body.given.get("tools"),
        add_generation_prompt=body.add_generation_prompt is not False,
        switches=switches_of(body, {}),
    )
    return re.sub(r"Current date: \d{4}-\d\d-\d\d", "Current date: 2025-06-28", text)


def of_chat(body: Body) -> ChatBody:
    return decode(ChatBody, body)


def of_messages(body: Body) -> ChatBody:
    return decode(ChatBody, anthropic.as_chat(decode(MessagesBody, as_messages(body))))


def of_responses(body: Body) -> ChatBody:
    return decode(ChatBody, responses.as_chat(decode(ResponsesBody, as_responses(body)), []))


@pytest.mark.parametrize("kind", [of_chat, of_messages, of_responses])
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.name)
def test_a_conversation_is_written_as_by_gpt_oss(
    conversation: Conversation, kind: Callable[[Body], ChatBody]
) -> None:
    if "add_generation_prompt" in conversation.body and kind is not of_chat:
        pytest.skip("only chats can do without a new answer")
    assert prompt_of(kind(conversation.body)) == PROMPTS[conversation.name]


def test_there_are_twenty() -> None:
    assert len(PROMPTS) == len(CONVERSATIONS) == 20


def test_results_without_ids_stay_with_their_calls() -> None:
    with_ids = [
        user("?"), calling(call("roll", 1), call("now", 2)), result("a", 1), result("b", 2),
    ]  # fmt: skip
    without = [{k: v for k, v in each.items() if k != "tool_call_id"} for each in with_ids]
    prompts = [prompt_of(of_chat({"messages": each})) for each in (with_ids, without)]
    assert prompts[0] == prompts[1]
    assert prompts[0].index("functions.now to=assistant") > prompts[0].index('"a"')


def test_a_call_without_a_result_and_results_too_many() -> None:
    messages = [user("?"), calling(call("roll", 1), call("now", 2)), result("b", 2)]
    text = prompt_of(of_chat({"messages": messages}))
    assert text.index("to=functions.roll") < text.index("to=functions.now") < text.index('"b"')
    text = prompt_of(of_chat({"messages": [*messages, result("c", 2), result("d", 7)]}))
    assert (
        text.index('"d"') < text.index('"b"') < text.index('"c"')
    )  # `d` has no call but the first


@pytest.mark.parametrize("name", ["thinking", "reasoning_content", "reasoning"])
def test_thoughts_have_many_names(name: str) -> None:
    called = calling(call("now")) | {name: "Hm.", "content": ""}
    text = prompt_of(of_chat({"messages": [user("?"), called]}))
    assert "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now" in text


@pytest.mark.parametrize("thoughts", [None, "", 7, ["Hm."]])
def test_odd_thoughts_are_left_out(thoughts: object) -> None:
    called = calling(call("now")) | {"reasoning_content": thoughts, "content": ""}
    assert "analysis<|message|>" not in prompt_of(of_chat({"messages": [user("?"), called]}))


def test_the_template_gets_what_it_cannot_do_without() -> None:
    body = {"messages": [user("?")], "tools": [CLOCK, DICE]}
    text = prompt_of(of_chat(body))
    assert "// \ntype now = () => any;" in text
    assert "sides?: number, // default: 6," in text
    builtin = {"chat_template_kwargs": {"builtin_tools": ["browser"], "model_identity": "I."}}
    text = prompt_of(of_chat({"messages": [user("?")]} | builtin))
    assert "<|message|>I.\n" in text
    assert "# Tools\n\n## browser" in text


def test_what_the_template_refuses_is_an_error_of_one_line() -> None:
    for messages in (
        [user("?"), result("b")],
        [user("?"), answer("<|channel|>final<|message|>Hi"), user("?")],
    ):
        with pytest.raises(TemplateError, match=r"^chat template: .+"):
            prompt_of(of_chat({"messages": messages}))


@pytest.mark.parametrize(
    "messages",
    [
        [system("x"), {"role": "system", "content": [{"type": "text"}]}],
        [{"role": "assistant", "tool_calls": ["x"]}, {"role": "tool", "content": None}],
        [{"role": "assistant", "tool_calls": "x", "content": 7, "thinking": "Hm"}],
        [{"role": "assistant", "tool_calls": [{"id": {}, "function": {"arguments": "{x"}}]},
         {"role": "tool", "tool_call_id": {}}],
        [{"content": "no role"}],
        [],
    ],
)  # fmt: skip
def test_messages_of_a_library_that_are_odd_fail_in_the_template_at_most(messages: Any) -> None:
    with contextlib.suppress(TemplateError):
        assert TEMPLATE.render(messages).startswith("<|start|>")


def test_effort_is_a_variable_of_any_template() -> None:
    shown = ChatTemplate("{{ reasoning_effort }} {{ enable_thinking }}")

    def shown_for(**body: Any) -> str:
        read = of_chat({"messages": [user("?")]} | body)
        return shown.render(
            read_messages(read), switches=switches_of(read, {"reasoning_effort": "x"})
        )

    assert shown_for() == "x True"
    assert shown_for(reasoning_effort="high") == "high True"
    assert shown_for(reasoning_effort="none") == "x False"
    more = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    assert shown_for(reasoning_effort="high", **more) == "low True"
