"""Whatever is wrong with a request gets one error object, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving import Server
from support.thoroughness import n_examples

P = {"prompt": "a = "}
DEEP = b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BODIES = [
    b"", b"   ", b"nonsense", b"[1, 2]", b'"text"', b'{"prompt": NaN}', b'{"prompt": "x"',
    b'{"prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}', b'{"temperature": 1e400, "prompt": "x"}',
    DEEP, b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
]  # fmt: skip
FIELDS: list[tuple[str, Any]] = [
    ("prompt", None), ("prompt", 5), ("prompt", True), ("prompt", []), ("prompt", [[]]),
    ("prompt", [1, -5]), ("prompt", [10**6]), ("prompt", [1.5]), ("prompt", [None]),
    ("prompt", {"a": 1}), ("prompt", [[1, "a", [2]]]), ("prompt", ["a"] * 1000),
    ("n_predict", -2), ("n_predict", 2**31), ("n_predict", 2**40), ("n_predict", "many"),
    ("n_predict", 1.5), ("n_predict", True), ("n_keep", -5), ("n_discard", -1),
    ("n", 0), ("n", 1000), ("n", 10**6), ("id_slot", 99), ("id_slot", -2),
    ("temperature", -1), ("temperature", "hot"), ("top_k", 2**40), ("top_k", "x"),
    ("top_p", 1.5), ("top_p", -1), ("min_p", 2), ("typical_p", 0), ("repeat_last_n", -5),
    ("repeat_penalty", 0), ("mirostat", 1), ("mirostat", 7), ("seed", 2**64), ("seed", -2),
    ("logit_bias", {"1000000000": 1}), ("logit_bias", [[1]]), ("logit_bias", [[1, "x"]]),
    ("logit_bias", "x"), ("logit_bias", [[[], 1]]), ("logit_bias", {"5": None}),
    ("logit_bias", [[i % 4000, 1] for i in range(70_000)]),
    ("stop", 5), ("stop", [5]), ("stop", ["x" * 5000]), ("stop", [str(i) for i in range(20_000)]),
    ("n_probs", 10**9), ("n_probs", -1), ("stream", "yes"), ("cache_prompt", 1),
    ("samplers", ["bogus"]), ("samplers", "Q"), ("dry_sequence_breakers", ["x" * 100]),
    ("grammar", "root ::= ["), ("grammar", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    ("grammar", "root ::= root"), ("grammar", 7), ("json_schema", {"type": "bogus"}),
    ("json_schema", 7), ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}), ("response_format", "json"),
    ("speculative", 3), ("speculative", {"types": "bogus"}), ("speculative", {"types": "draft"}),
    ("speculative", {"n_max": 1000}), ("speculative", {"p_min": 2}),
    ("speculative", {"n_max": 2, "n_min": 3}), ("speculative", {"accept": "anything"}),
    ("speculative.n_max", -1), ("response_fields", 5), ("t_max_predict_ms", -5),
    ("prediction", "text"), ("ignore_eos", "no"),
    ("chat_template", "{{ 9**9**9 }}"),
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:12].decode("utf-8", "replace"))
@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/tokenize"])
def test_bodies_that_are_no_object(server: Server, path: str, body: bytes) -> None:
    status, error = server.refused(path, body)
    if path == "/tokenize" and b"temperature" in body:
        assert status in (200, 400)
    else:
        assert (status, error["type"]) == (400, "invalid_request_error"), error


@pytest.mark.parametrize(("name", "value"), FIELDS, ids=lambda v: str(v)[:20])
def test_fields_that_cannot_be(server: Server, name: str, value: Any) -> None:
    status, error = server.refused("/completion", {**P, name: value})
    assert (status, error["type"]) == (400, "invalid_request_error"), error
    words = name.replace(".", " ").replace("_", " ").split()
    told = f"{error['param']} {error['message']}".lower()
    assert any(word in told for word in words), error
    assert len(error["message"]) <= 1000


LENIENT: list[tuple[str, Any]] = [
    ("unknown", {"x": [1]}), ("temperature", None), ("top_k", -1), ("top_k", 10**9),
    ("temperature", 1e308), ("stop", [""]), ("stop", None), ("seed", -1), ("seed", 2**64 - 1),
    ("max_tokens", 2.0), ("top_p", 0), ("dry_allowed_length", 0), ("grammar", ""),
    ("model", "gpt-4"), ("user", "me"), ("n_probs", 0),
    ("logit_bias", {}), ("logit_bias", [[5, False], ["abc", 1.5]]), ("samplers", ["top-k", "temp"]),
    ("samplers", "kt"), ("speculative", {}), ("speculative", False), ("lora", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), LENIENT, ids=lambda v: str(v)[:20])
def test_fields_that_may_be(server: Server, name: str, value: Any) -> None:
    status, told, _ = server.request("POST", "/completion", {**P, "n_predict": 2, name: value})
    assert status == 200, told
    assert told["tokens_predicted"] <= 2


CHATS: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "messages"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": ["hi"]}, 400, "messages[0]"),
    ({"messages": [{"content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [5]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": 5, "content": "x"}]}, 400, "messages[0].role"),
]
HELLO = [{"role": "user", "content": "x"}]
CHATS += [
    ({"messages": HELLO, "top_logprobs": 3}, 400, "top_logprobs"),
    ({"messages": HELLO, "logprobs": True, "top_logprobs": 10**6}, 400, "top_logprobs"),
    ({"messages": HELLO, "chat_template_kwargs": {"messages": []}}, 400, "messages"),
    ({"messages": HELLO, "chat_template_kwargs": {"tokenize": True}}, 400, "tokenize"),
    ({"messages": HELLO, "chat_template_kwargs": [1]}, 400, "chat_template_kwargs"),
    ({"messages": HELLO, "stream_options": 1}, 400, "stream_options"),
]
PICTURE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
CHATS += [({"messages": [{"role": "user", "content": [PICTURE]}]}, 400, "image_url")]


@pytest.mark.parametrize(("body", "status", "said"), CHATS, ids=lambda v: str(v)[:40])
def test_chats_that_cannot_be(server: Server, body: Any, status: int, said: str) -> None:
    found, error = server.refused("/v1/chat/completions", body)
    assert found == status, error
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/tokenize", {"content": 5}),
        ("/apply-template", {"messages": 5}),
        ("/v1/completions", {"prompt": "x", "echo": True}),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}),
        ("/v1/completions", {"prompt": "x", "best_of": 3}),
    ],
)
def test_the_other_endpoints(server: Server, path: str, body: Any) -> None:
    assert server.refused(path, body)[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404), ("POST", "/v1", 404), ("GET", "/completion", 405),
        ("DELETE", "/health", 405), ("PATCH", "/v1/models", 405), ("GET", "/v1/models/other", 404),
        ("POST", "/v1/rerank", 501), ("POST", "/rerank", 501), ("GET", "/../etc/passwd", 404),
    ],
)  # fmt: skip
def test_paths_and_methods(server: Server, method: str, path: str, status: int) -> None:
    found, told, _ = server.request(method, path, b"{}" if method == "POST" else None)
    assert found == status
    assert told["error"]["code"] == status


def test_any_content_type_will_do(server: Server) -> None:
    body = json.dumps({**P, "n_predict": 1}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert server.request("POST", "/completion", body, Content_Type=kind)[0] == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAMES = [*sorted({name for name, _ in FIELDS} - {"prompt", "n_predict"}), "messages"]


@settings(max_examples=n_examples(120), deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, min_size=1, max_size=3))
def test_no_value_of_any_field_is_a_bug(server: Server, body: dict[str, Any]) -> None:
    status, told, _ = server.request("POST", "/completion", {**P, **body, "n_predict": 1})
    assert status in (200, 400), told


def test_the_server_still_works(server: Server) -> None:
    assert server.get("/health") == {"status": "ok"}
    done = server.post("/completion", prompt="a = ", n_predict=3, ignore_eos=True)
    assert done["tokens_predicted"] == 3
