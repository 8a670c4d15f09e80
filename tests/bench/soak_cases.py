"""What a soak asks for: texts whose answer is known, requests that are wrong, and clients that
leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from support.served import Reply

PROMPTS = (
    "def add(a, b):\n", "import os\n\ndef read(path):\n", "class Stack:\n", "x = [1, 2, 3]\ny = [",
    "for i in range(10):\n    print(", "def fibonacci(n):\n    if n", "# größer als ß\n", "",
    "try:\n    value = int(text)\nexcept", "a = 1\n" * 60, "def f(x):\n    return x\n" * 25,
)  # fmt: skip
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.3, "seed": 3, "top_k": 0, "min_p": 0},
)
SPECULATION: tuple[dict[str, Any], ...] = (
    {}, {}, {"speculative": False}, {"speculative": {"types": "mtp", "n_max": 4}},
    {"speculative": {"types": "ngram-mod"}}, {"cache_prompt": False},
)  # fmt: skip
SCHEMA = {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
    "additionalProperties": False,
}  # fmt: skip
TextOf = Callable[[Reply, bool], str]


@dataclass(frozen=True)
class Case:
    """One of few requests, whose text is always the same."""

    path: str
    body: str  # JSON
    text_of: TextOf


def _native(reply: Reply, streams: bool) -> str:
    events = reply.events() if streams else [reply.json()]
    assert events[-1]["stop"] is True
    return "".join(event["content"] for event in events)


def _completion(reply: Reply, streams: bool) -> str:
    events = reply.events() if streams else [reply.json()]
    assert any(c["finish_reason"] for event in events for c in event["choices"])
    return "".join(c["text"] for event in events for c in event["choices"])


def _chat(reply: Reply, streams: bool) -> str:
    if not streams:
        return str(reply.json()["choices"][0]["message"]["content"])
    choices = [c for event in reply.events() for c in event["choices"]]
    assert choices[-1]["finish_reason"]
    return "".join(c["delta"].get("content") or "" for c in choices)


def _responses(reply: Reply, streams: bool) -> str:
    if streams:
        events = reply.events()
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    return "".join(c["text"] for o in reply.json()["output"] for c in o["content"])


def _messages(reply: Reply, streams: bool) -> str:
    if streams:
        events = reply.events()
        assert events[-1]["type"] == "message_stop"
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas)
    return "".join(part["text"] for part in reply.json()["content"])


def cases(*, begins_alone: bool, n_tokens: tuple[int, ...] = (1, 8, 24)) -> list[Case]:
    """`begins_alone`: the model has a token to begin an empty prompt with."""
    found = []
    for i, prompt in enumerate(PROMPTS):
        for j, way in enumerate(WAYS):
            n = n_tokens[(i + j) % len(n_tokens)]
            talk = {"messages": [{"role": "user", "content": prompt or "x"}]}
            if prompt or begins_alone:
                found += [
                    Case("/completion", _body(way, prompt=prompt, n_predict=n), _native),
                    Case("/v1/completions", _body(way, prompt=prompt, max_tokens=n), _completion),
                ]
            found += [
                Case("/v1/chat/completions", _body(way | talk, max_tokens=n), _chat),
                Case("/v1/messages", _body(way | talk, max_tokens=n), _messages),
                Case("/v1/responses", _body(way, input=prompt, max_output_tokens=n), _responses),
            ]
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    talk = {"messages": [{"role": "user", "content": "JSON"}]}
    grammar = 'root ::= "yes" | "no"'
    return [
        *found,
        Case("/v1/chat/completions", _body(WAYS[1] | talk | form, max_tokens=60), _chat),
        Case("/completion", _body(WAYS[0], prompt="a", n_predict=9, grammar=grammar), _native),
        Case("/completion", _body(WAYS[1], prompt=[5, 9, 11], n_predict=9, n_probs=3), _native),
    ]


def _body(way: dict[str, Any], **more: Any) -> str:
    return json.dumps(way | more)


# Method, path, body, status.
Wrong = tuple[str, str, Any, int]
WRONG: tuple[Wrong, ...] = (
    ("POST", "/completion", b"nonsense", 400),
    ("POST", "/completion", b'{"prompt":' + b"[" * 5000, 400),
    ("POST", "/completion", {"prompt": "a", "n_predict": "many"}, 400),
    ("POST", "/completion", {"prompt": [10**6]}, 400),
    ("POST", "/completion", {"prompt": "a", "grammar": "root ::= ["}, 400),
    ("POST", "/completion", {"prompt": "a", "grammar": "root ::= " + "(" * 9000}, 400),
    ("POST", "/completion", {"prompt": "word " * 9000}, 400),
    ("POST", "/v1/chat/completions", {"messages": "x"}, 400),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
        400,
    ),
    ("POST", "/v1/messages", {"messages": []}, 400),
    ("POST", "/v1/responses", {"input": 5}, 400),
    ("POST", "/rerank", {"query": "x", "documents": ["y"]}, 501),
    ("GET", "/completion", None, 405),
    ("GET", "/nothing", None, 404),
    ("POST", "/detokenize", {"tokens": [-1]}, 400),
)
FINE: tuple[Wrong, ...] = (
    ("GET", "/health", None, 200),
    ("GET", "/v1/models", None, 200),
    ("GET", "/props", None, 200),
    ("GET", "/slots", None, 200),
    ("GET", "/metrics", None, 200),
    ("POST", "/tokenize", {"content": "def f(x):"}, 200),
    ("POST", "/detokenize", {"tokens": [5, 6, 7]}, 200),
    ("POST", "/apply-template", {"messages": [{"role": "user", "content": "x"}]}, 200),
    ("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}, 200),
    ("POST", "/v1/responses/input_tokens", {"input": "x"}, 200),
    ("POST", "/v1/embeddings", {"input": "x"}, 200),
)


@dataclass(frozen=True)
class Leaver:
    """A client that goes away: after so many bytes of its request, or of the answer."""

    path: str
    body: dict[str, Any]
    n_sent: int | None  # None: all of it
    n_read: int
    resets: bool


def leaver(rng: Random) -> Leaver:
    prompt = rng.choice(PROMPTS) if rng.random() < 0.7 else [300 + i % 50 for i in range(1500)]
    body = {
        "prompt": prompt, "n_predict": 500, "ignore_eos": True, "stream": rng.random() < 0.7,
        "cache_prompt": rng.random() < 0.5,
    }  # fmt: skip
    n_sent = rng.choice((None, None, None, 0, 20, 120))
    n_read = 0 if n_sent is not None else rng.choice((0, 0, 1, 200, 3000))
    path = rng.choice(("/completion", "/v1/completions"))
    return Leaver(path, body, n_sent, n_read, rng.random() < 0.3)
