"""gpt-oss by way of HTTP: grammars make the model write what gpt-oss would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from support.harmony_replies import FINAL, JSON, PREAMBLE, SAID, THOUGHT, TO
from support.harmony_template import HARMONY
from support.serving import Server, running, templated_server
from support.vocab import tokenizer_metadata

from nextn.core import load, nano
from nextn.core.generation import GenerateParams
from nextn.core.sampling.grammar import Grammars
from nextn.core.server.chat_prompt import ChatPrompt
from nextn.core.server.reply import find_call_style
from nextn.core.server.reply_rules import bind
from nextn.core.server.request_bodies import ChatBody
from nextn.core.server.request_decoding import decode
from nextn.core.server.settings import ServerSettings
from nextn.core.server.tools import read_tools
from nextn.core.tokenizer import load_tokenizer
from nextn.core.tokenizer.thinking import find_thinking_texts

MARKS = [
    f"<|{name}|>" for name in ("start", "message", "channel", "constrain", "end", "call", "return")
]
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Ulm?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "parameters": PARAMETERS}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
ANSWER = f"{THOUGHT}Hm.\nUlm.<|end|>{SAID}{FINAL}It is warm.\n"
CALL = (
    f"{THOUGHT}Where?<|end|>{SAID}{PREAMBLE}I look.<|end|>{SAID}{THOUGHT}Ulm.<|end|>{SAID}"
    f'{TO}weather{JSON}{{"city": "Ulm"}}'
)


def forced(text: str) -> dict[str, Any]:
    return {"grammar": f"root ::= {json.dumps(text)}"}


@pytest.fixture(scope="module")
def oss() -> Iterator[Server]:
    with running(templated_server(HARMONY)) as server:
        yield server


@pytest.fixture(scope="module")
def client(oss: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{oss.url}/v1", api_key="none", max_retries=0)


# Chats


def test_a_chat(oss: Server) -> None:
    done = oss.post("/v1/chat/completions", messages=ASK, max_tokens=200, **forced(ANSWER))
    (choice,) = done["choices"]
    assert choice["message"] == {
        "role": "assistant", "content": "It is warm.\n", "reasoning_content": "Hm.\nUlm.",
    }  # fmt: skip
    assert choice["finish_reason"] == "stop"
    assert done["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_chat_with_a_call_whole_and_streamed(oss: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": 300} | forced(CALL)
    (choice,) = oss.post("/v1/chat/completions", **body)["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("I look.", "Where?\n\nUlm.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert choice["finish_reason"] == "tool_calls"

    events = oss.events("/v1/chat/completions", **body)
    deltas = [event["choices"][0]["delta"] for event in events[:-1] if event["choices"]]
    for name in ("content", "reasoning_content"):
        parts = [delta[name] for delta in deltas if delta.get(name)]
        assert len(parts) > 1
        assert "".join(parts) == message[name]
    functions = [each["function"] for delta in deltas for each in delta.get("tool_calls", [])]
    assert functions[0] == {"name": "weather", "arguments": ""}
    assert "".join(each["arguments"] for each in functions) == call["function"]["arguments"]
    (reason,) = {e["choices"][0]["finish_reason"] for e in events[:-1] if e["choices"]} - {None}
    assert reason == "tool_calls"


@pytest.mark.parametrize(
    ("form", "content", "reasoning"),
    [
        ("none", f"{THOUGHT}Hm.\nUlm.<|end|>It is warm.\n", None),
        ("deepseek", "It is warm.\n", "Hm.\nUlm."),
        ("deepseek-legacy", f"{THOUGHT}Hm.\nUlm.<|end|>It is warm.\n", "Hm.\nUlm."),
    ],
)
def test_where_thoughts_go(oss: Server, form: str, content: str, reasoning: str | None) -> None:
    body = {"messages": ASK, "reasoning_format": form, "max_tokens": 200} | forced(ANSWER)
    message = oss.post("/v1/chat/completions", **body)["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)


@pytest.mark.parametrize("n", [4, 20, 40, 60])
def test_a_limit_cuts_anywhere(oss: Server, n: int) -> None:
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": n, "temperature": 0} | forced(CALL)
    (choice,) = oss.post("/v1/chat/completions", **body)["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "length"
    assert "I look.".startswith(message["content"] or "")
    assert "Where?\n\nUlm.".startswith(message.get("reasoning_content", ""))


def test_what_a_reply_said_goes_back_in(oss: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": 300}
    message = oss.post("/v1/chat/completions", **body | forced(CALL))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21"}
    history = [*ASK, message, result]
    prompt = oss.post("/apply-template", messages=history, tools=TOOLS)["prompt"]
    assert prompt.endswith(
        f"{SAID}{THOUGHT}Where?\n\nUlm.<|end|>{SAID}{PREAMBLE}I look.<|end|>{SAID} to=functions."
        'weather<|channel|>commentary json<|message|>{"city": "Ulm"}<|call|><|start|>functions.'
        f'weather to=assistant<|channel|>commentary<|message|>"21"<|end|>{SAID}'
    )
    answered = [*history, {"role": "assistant", "content": "Warm."}, *ASK]
    prompt = oss.post("/apply-template", messages=answered, tools=TOOLS)["prompt"]
    assert "Where?" not in prompt
    assert f"{SAID}{FINAL}Warm.<|end|><|start|>user" in prompt


def test_a_begun_answer_goes_on(oss: Server) -> None:
    begun = {"role": "assistant", "content": "It is", "reasoning_content": "Hm."}
    body = {"messages": [*ASK, begun], "continue_final_message": True, "max_tokens": 100}
    prompt = oss.post("/apply-template", **body)["prompt"]
    assert prompt.endswith(f"{SAID}{THOUGHT}Hm.<|end|>{SAID}{FINAL}It is")
    message = oss.post("/v1/chat/completions", **body | forced(" warm."))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": " warm."}
    called = oss.post(
        "/v1/chat/completions", **body, tools=TOOLS, tool_choice="required", temperature=0
    )["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    (call,) = called["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Ulm", "Bonn")
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": [17]}}}
    message = oss.post("/v1/chat/completions", **body, response_format=schema)["choices"][0]
    assert message["message"]["content"] == "17"


def test_effort_and_the_model_s_own_tools(oss: Server) -> None:
    more = {"builtin_tools": ["python"], "model_identity": "You are Nemo."}
    body = {"messages": ASK, "reasoning_effort": "high", "chat_template_kwargs": more}
    prompt = oss.post("/apply-template", **body)["prompt"]
    assert "Reasoning: high\n" in prompt
    assert "## python" in prompt
    assert prompt.startswith("<|start|>system<|message|>You are Nemo.\n")
    text = "<|channel|>analysis to=python code<|message|>print(1)"
    message = oss.post("/v1/chat/completions", **body | forced(text))["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "python", "arguments": "print(1)"}
    status, error = oss.refused("/v1/chat/completions", body | {"reasoning_effort": 3})
    assert (status, error["param"]) == (400, "reasoning_effort")


def test_what_the_template_refuses_is_a_bad_request(oss: Server) -> None:
    messages = [*ASK, {"role": "tool", "tool_call_id": "1", "content": "21"}]
    status, error = oss.refused("/v1/chat/completions", {"messages": messages})
    assert status == 400
    assert "a result without a call" in error["message"]


# Demands


def rules(**body: Any) -> str:
    """The forms of a reply to this request."""
    read = decode(ChatBody, {"messages": ASK} | body)
    params = GenerateParams(json_schema=body.get("json_schema"))
    marks, style = find_thinking_texts(HARMONY), find_call_style(HARMONY)
    prompt = ChatPrompt(SAID, read_tools(read), style, marks, None, [], is_harmony=True)
    bound = bind(params, prompt, read, ServerSettings())
    assert bound.forms is not None
    assert bound.json_schema is None
    return bound.forms


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(load(nano.path(), "cpu").tokenizer)


def follows(grammars: Grammars, forms: str, text: str) -> bool:
    grammar = grammars.from_forms(forms)
    tokens = grammars._tokenizer.encode(text, add_special=False)
    if grammar.validate(tokens) < len(tokens):
        return False
    for token in tokens:
        grammar.accept(token)
    return grammar.is_complete


DIRECT = f'{TO}weather{JSON}{{"city":"Ulm"}}'


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (DIRECT, True),
        (f"{THOUGHT}Hm <|b|> <|end<|end|>{SAID}{DIRECT}", True),
        (f"{THOUGHT}Hm<|end|>{SAID}{PREAMBLE}I look<|end|>{SAID}{THOUGHT}So<|end|>{SAID}{DIRECT}",
         True),
        (f"{THOUGHT}Hm<|end|>{SAID}{FINAL}No", False),
        (f"{FINAL}No", False),
        (f"{THOUGHT}Hm", False),
        (f"{PREAMBLE}I look<|end|>", False),
        (f"{THOUGHT}Hm<|end|>{DIRECT}", False),
        (DIRECT.replace("Ulm", "Rome"), False),
        (DIRECT.replace("weather", "wind"), False),
        (f"{DIRECT}<|end|>", False),
        ("Hi", False),
    ],
)  # fmt: skip
def test_a_call_can_be_demanded(grammars: Grammars, text: str, is_right: bool) -> None:
    one = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", one):
        assert follows(grammars, rules(tools=TOOLS, tool_choice=choice), text) is is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (f'{FINAL}{{"city":"Ulm"}}', True),
        (f'{THOUGHT}{{}}<|end|>{SAID}{FINAL}{{"city":"Ulm"}}', True),
        (f'{PREAMBLE}{{"city":"Ulm"}}', False),
        (f'{THOUGHT}Hm<|end|>{SAID}{FINAL}{{"city":"Rome"}}', False),
        ('{"city":"Ulm"}', False),
    ],
)
def test_an_answer_can_be_json(grammars: Grammars, text: str, is_right: bool) -> None:
    assert follows(grammars, rules(json_schema=json.dumps(PARAMETERS)), text) is is_right


def test_a_demand_is_met_with_the_vocabulary_s_own_marks() -> None:
    metadata = tokenizer_metadata()
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens[300 : 300 + len(MARKS)], kinds[300 : 300 + len(MARKS)] = MARKS, [3] * len(MARKS)
    tokenizer = load_tokenizer(metadata)
    ids = dict(zip(MARKS, range(300, 400), strict=False))
    ends = {ids["<|call|>"], ids["<|return|>"]}
    assert ends < tokenizer.eog_ids
    text = f"{THOUGHT}Hm<|end|>{SAID}{DIRECT}"
    written = tokenizer.encode(text, add_special=False)
    assert {ids["<|channel|>"], ids["<|end|>"], ids["<|constrain|>"]} < set(written)
    assert tokenizer.decode([*written, ids["<|call|>"]]) == text
    grammar = Grammars(tokenizer).from_forms(rules(tools=TOOLS, tool_choice="required"))
    for token in written:
        assert np.isfinite(grammar.mask(np.zeros(tokenizer.n_vocab, np.float32))[token])
        grammar.accept(token)
    allowed = np.flatnonzero(np.isfinite(grammar.mask(np.zeros(tokenizer.n_vocab, np.float32))))
    assert ends <= set(allowed.tolist()) <= tokenizer.eog_ids


def test_a_demand_keeps_a_small_model_in_its_channels(oss: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 40}
    for seed in range(3):
        text = oss.post("/v1/chat/completions", **body, seed=seed, temperature=1.0)["choices"][0]
        assert "<|" not in (text["message"]["content"] or "").replace("<|>", "")


# The other two


def test_messages_whole_and_streamed(oss: Server) -> None:
    tool = {"name": "weather", "description": "", "input_schema": PARAMETERS}
    body = {"messages": ASK, "tools": [tool], "max_tokens": 300} | forced(CALL)
    done = oss.post("/v1/messages", **body)
    shown = [(each["type"], each.get("thinking") or each.get("text") or each.get("input"))
             for each in done["content"]]  # fmt: skip
    assert shown == [
        ("thinking", "Where?"), ("text", "I look."), ("thinking", "Ulm."),
        ("tool_use", {"city": "Ulm"}),
    ]  # fmt: skip
    assert done["stop_reason"] == "tool_use"
    text = str(oss.request("POST", "/v1/messages", body | {"stream": True})[1])
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(each.get("thinking", "") for each in deltas) == "Where?Ulm."
    assert "".join(each.get("text", "") for each in deltas) == "I look."
    assert "".join(each.get("partial_json", "") for each in deltas) == '{"city": "Ulm"}'
    count = oss.post("/v1/messages/count_tokens", **body)["input_tokens"]
    result = {"type": "tool_result", "tool_use_id": done["content"][-1]["id"], "content": "21"}
    history = [*ASK, {"role": "assistant", "content": done["content"]},
               {"role": "user", "content": [result]}]  # fmt: skip
    more = oss.post("/v1/messages/count_tokens", **body | {"messages": history})["input_tokens"]
    thoughts = len(json.dumps(["Where?", "Ulm.", "I look."]))
    assert more > count + thoughts / 4


def test_responses_whole_and_streamed(client: openai.OpenAI, oss: Server) -> None:
    tools: Any = [FUNCTION | {"type": "function", "strict": False}]
    how: dict[str, Any] = {
        "model": "x", "input": ASK[0]["content"], "tools": tools, "max_output_tokens": 300,
        "reasoning": {"effort": "low"}, "extra_body": forced(CALL),
    }  # fmt: skip
    done = client.responses.create(**how)
    kinds = [item.type for item in done.output]
    assert kinds == ["reasoning", "message", "reasoning", "function_call"]
    assert done.output_text == "I look."
    assert done.output[-1].arguments == '{"city": "Ulm"}'
    texts: dict[str, str] = {}
    for event in client.responses.create(stream=True, **how):
        if event.type.endswith(".delta"):
            texts[event.type] = texts.get(event.type, "") + event.delta
    assert texts == {
        "response.reasoning_text.delta": "Where?Ulm.",
        "response.output_text.delta": "I look.",
        "response.function_call_arguments.delta": '{"city": "Ulm"}',
    }
    items = [item.model_dump(exclude_none=True) for item in done.output]
    output = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "21"}
    count = oss.post("/v1/responses/input_tokens", input=[*ASK, *items, output])["input_tokens"]
    without = [each for each in items if each["type"] != "reasoning"]
    less = oss.post("/v1/responses/input_tokens", input=[*ASK, *without, output])["input_tokens"]
    assert count > less
