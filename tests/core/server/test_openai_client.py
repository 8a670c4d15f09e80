"""The client that most people use, unchanged."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from support.serving import Server

TASK: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
GREEDY: dict[str, Any] = {"model": "nano", "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object) == ("nano.gguf", "model")
    assert client.models.retrieve("nano.gguf").created == model.created


def test_chat(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(messages=TASK, **GREEDY)
    (choice,) = done.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 24
    assert done.usage.total_tokens == 24 + done.usage.prompt_tokens
    details = done.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens is not None
    assert details.rejected_prediction_tokens is not None


def test_a_streamed_chat_is_the_same_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=TASK, **GREEDY)
    stream = client.chat.completions.create(
        messages=TASK, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content is None
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_without_a_usage_each_chunk_has_a_choice(client: openai.OpenAI, options: Any) -> None:
    stream = client.chat.completions.create(messages=TASK, stream=True, **options, **GREEDY)
    chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].to_dict()["timings"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool) -> None:
    how: Any = {"logprobs": True, "top_logprobs": 3, "stream": stream}
    done: Any = client.chat.completions.create(messages=TASK, **GREEDY, **how)
    if stream:
        choices = [chunk.choices[0] for chunk in done if chunk.choices]
        entries = [entry for c in choices if c.logprobs for entry in c.logprobs.content]
        text = "".join(choice.delta.content or "" for choice in choices)
    else:
        entries = done.choices[0].logprobs.content
        text = done.choices[0].message.content
    assert len(entries) == 24
    assert "".join(entry.token for entry in entries) == text
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == max(t.logprob for t in entry.top_logprobs)
        assert entry.logprob == entry.top_logprobs[0].logprob < 0  # greedy, and never quite sure


def test_several_answers(client: openai.OpenAI) -> None:
    how: Any = {"model": "m", "temperature": 1.0, "max_tokens": 16, "seed": 7}
    done = client.chat.completions.create(messages=TASK, n=3, **how)
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in done.choices]
    assert len(set(texts)) == 3
    one = client.chat.completions.create(messages=TASK, **how)
    assert one.choices[0].message.content == texts[0]
    more = client.chat.completions.create(messages=TASK, n=9, **how)  # than there are slots
    assert [choice.index for choice in more.choices] == list(range(9))
    assert [choice.message.content for choice in more.choices[:3]] == texts
    streamed: dict[int, str] = dict.fromkeys(range(3), "")
    for chunk in client.chat.completions.create(messages=TASK, n=3, stream=True, **how):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == texts


def test_a_stop_string(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt="def add(a, b):", **GREEDY).choices[0].text
    stop = whole[5:8]
    done = client.completions.create(prompt="def add(a, b):", stop=[stop], **GREEDY)
    assert done.choices[0].text == whole[: whole.index(stop)]
    assert done.choices[0].finish_reason == "stop"


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    done = client.completions.create(prompt=["a = 1\n", "import os\n"], logprobs=2, **GREEDY)
    assert [choice.index for choice in done.choices] == [0, 1]
    for prompt, choice in zip(["a = 1\n", "import os\n"], done.choices, strict=True):
        alone = client.completions.create(prompt=prompt, **GREEDY)
        assert alone.choices[0].text == choice.text
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert "".join(logprobs.tokens) == choice.text
        assert logprobs.text_offset is not None
        assert choice.text[logprobs.text_offset[3] :].startswith(logprobs.tokens[3])


def test_a_json_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"enum": [3, 40]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    done = client.chat.completions.create(
        messages=TASK, response_format=form, **GREEDY | {"max_tokens": 100}
    )
    found = json.loads(done.choices[0].message.content or "")
    assert found["name"] in ("ann", "bob")
    assert found["age"] in (3, 40)
    assert done.choices[0].finish_reason == "stop"


def test_a_bias_bans(client: openai.OpenAI) -> None:
    whole: dict[str, Any] = {"prompt": "def add(a, b):", "logprobs": 1, **GREEDY}
    first = client.completions.create(**whole).choices[0]
    entry = first.logprobs.content[0]
    banned = client.completions.create(**whole, logit_bias={str(entry["id"]): -100}).choices[0]
    assert banned.text != first.text
    assert entry["id"] not in [other["id"] for other in banned.logprobs.content]


def test_a_prediction_is_drafted_from(eager: Server) -> None:
    client = openai.OpenAI(base_url=f"{eager.url}/v1", api_key="none", max_retries=0)
    how = GREEDY | {"max_tokens": 60}
    off: Any = {"speculative": {"off": True}}
    plain = client.chat.completions.create(messages=TASK, extra_body=off, **how)
    text = plain.choices[0].message.content or ""
    for expected in (text, text[20:], "nothing of the sort " * 9):
        done = client.chat.completions.create(
            messages=TASK, prediction={"type": "content", "content": expected},
            **how,
        )  # fmt: skip
        assert done.choices[0].message.content == text
        details = done.usage and done.usage.completion_tokens_details
        assert details
        if expected == text:
            assert (details.accepted_prediction_tokens or 0) >= 40


@pytest.mark.parametrize(
    ("body", "kind"),
    [({"max_tokens": -5}, openai.BadRequestError), ({"messages": []}, openai.BadRequestError)],
)
def test_errors_have_their_classes(client: openai.OpenAI, body: Any, kind: Any) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"messages": TASK, **GREEDY, **body})
    assert caught.value.body["type"] == "invalid_request_error"
    assert caught.value.body["param"] == next(iter(body))
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    with pytest.raises(openai.InternalServerError, match="not supported"):
        client.moderations.create(model="m", input="x")
