"""What `vllm bench serve` sends and reads, by hand: the tool itself needs a GPU's packages."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.hostile_rules import Stream
from support.serving import Server

COMPLETION: dict[str, Any] = {
    "prompt": "def add(a, b):", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 12,
    "logprobs": None, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
}  # fmt: skip
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    "temperature": 0.0, "max_completion_tokens": 12, "stream": True,
    "stream_options": {"include_usage": True}, "ignore_eos": True,
}  # fmt: skip


def model_of(server: Server) -> str:
    first = server.get("/v1/models")["data"][0]
    assert first["root"] == first["id"]
    return str(first["id"])


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)]
)
def test_a_measured_request(server: Server, path: str, body: dict[str, Any]) -> None:
    events = server.events(path, **body, model=model_of(server))
    assert events[-1] == "[DONE]"
    texts = [event["choices"][0] for event in events[:-1] if event["choices"]]
    assert any(each.get("text") or each.get("delta", {}).get("content") for each in texts)
    (usage,) = (event["usage"] for event in events[:-1] if event.get("usage"))
    assert usage["completion_tokens"] == 12


def test_its_counters(eager: Server) -> None:
    before = _spec_counters(eager)
    eager.post("/v1/completions", **{**COMPLETION, "max_tokens": 60, "stream": False})
    after = _spec_counters(eager)
    gained = {name: after[name] - before.get(name, 0.0) for name in after}
    drafts, drafted = (
        gained["vllm:spec_decode_num_drafts"],
        gained["vllm:spec_decode_num_draft_tokens"],
    )
    accepted = gained["vllm:spec_decode_num_accepted_tokens"]
    assert 0 < drafts <= drafted
    assert 0 < accepted <= drafted
    places = {n: v for n, v in gained.items() if n.startswith("place ")}
    assert sum(places.values()) == accepted


def _spec_counters(server: Server) -> dict[str, float]:
    text = server.request("GET", "/metrics")[1]
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("vllm:spec_decode_num_"):
            for sample in family.samples:
                if "position" in sample.labels:
                    found[f"place {sample.labels['position']}"] = sample.value
                elif sample.name.endswith("_total"):
                    found[family.name] = sample.value
    return found


def test_its_probes(server: Server) -> None:
    assert server.get("/ping") == {"status": "ok"}
    assert server.get("/version")["version"] in server.get("/props")["build_info"]
    assert server.get("/load") == {"server_load": 0}
    with Stream(server):
        assert server.get("/load") == {"server_load": 1}


def test_its_tokenizer_calls(server: Server) -> None:
    model = model_of(server)
    told = server.post("/tokenize", model=model, prompt="def add", add_special_tokens=False)
    assert told["count"] == len(told["tokens"]) > 0
    back = server.post("/detokenize", model=model, tokens=told["tokens"])
    assert back["prompt"] == "def add"
