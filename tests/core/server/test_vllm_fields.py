"""Fields of vLLM and others that change the text: followed, or refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.serving import Server

from nextn.core.server.refused_fields import _REFUSED

TEXT: dict[str, Any] = {"prompt": "def add(a, b):", "max_tokens": 24, "seed": 3}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
}
RULES: dict[str, tuple[dict[str, Any], str]] = {
    "guided_json": ({"guided_json": SCHEMA}, r'\{\s*"a"\s*:\s*\d\s*\}'),
    "guided_json as text": ({"guided_json": json.dumps(SCHEMA)}, r'\{\s*"a"\s*:\s*\d\s*\}'),
    "guided_regex": ({"guided_regex": "[a-c]{3}/[0-9]"}, "[a-c]{3}/[0-9]"),
    "guided_choice": ({"guided_choice": ['"one"\n', "tw\\o", "d\x7f"]}, '"one"\n|tw\\\\o|d\x7f'),
    "guided_grammar": ({"guided_grammar": 'root ::= "x" | "yy"'}, "x|yy"),
    "json": ({"structured_outputs": {"json": SCHEMA}}, r'\{\s*"a"\s*:\s*\d\s*\}'),
    "regex": ({"structured_outputs": {"regex": "^(no|yes)!$"}}, "(no|yes)!"),
    "choice": ({"structured_outputs": {"choice": ["no", "yes"]}}, "no|yes"),
    "grammar": ({"structured_outputs": {"grammar": 'root ::= "x"'}}, "x"),
    "nothing": ({"structured_outputs": {}, "guided_json": None}, "(?s).*"),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_rules(server: Server, path: str, name: str) -> None:
    rule, pattern = RULES[name]
    done = server.post(path, **(TEXT if path == "/v1/completions" else CHAT), **rule)
    if path == "/v1/messages":
        text = "".join(block["text"] for block in done["content"])
    else:
        (choice,) = done["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert re.fullmatch(pattern, text), text


def test_a_rule_is_the_same_with_drafts_and_without(eager: Server) -> None:
    for rule in ({"guided_regex": "(ab|cd){8,30}"}, {"min_tokens": 20}, {"stop_token_ids": [10]}):
        plain, drafted = (
            eager.post("/v1/completions", **TEXT, **rule, speculative=types)["choices"]
            for types in (False, True)
        )
        assert plain == drafted


@pytest.mark.parametrize(
    "rules",
    [
        {"guided_json": SCHEMA, "guided_regex": "a"},
        {"grammar": 'root ::= "a"', "json_schema": {}},
        {"structured_outputs": {"choice": ["a"], "regex": "a"}},
        {"guided_choice": ["a"], "min_tokens": 3},
        {"guided_regex": "("},
        {"guided_choice": []},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"stop_token_ids": [10**6]},
        {"stop_token_ids": [-1]},
        {"repetition_penalty": 1.1, "repeat_penalty": 1.2},
        {"best_of": 3},
    ],
)
def test_rules_that_cannot_be(server: Server, rules: dict[str, Any]) -> None:
    status, error = server.refused("/v1/completions", TEXT | rules)
    assert (status, error["type"]) == (400, "invalid_request_error")


def test_repetition_penalty_is_over_the_whole_text(server: Server) -> None:
    ours = {"repeat_penalty": 1.5, "repeat_last_n": -1}
    for path in ("/v1/completions", "/completion"):
        wanted, found = (
            server.post(path, **TEXT, **each) for each in (ours, {"repetition_penalty": 1.5})
        )
        if path == "/completion":
            assert wanted["content"] == found["content"]
            settings = found["generation_settings"]
            assert (settings["repeat_penalty"], settings["repeat_last_n"]) == (1.5, -1)
        else:
            assert wanted["choices"] == found["choices"]


def test_tokens_that_end_a_text(server: Server) -> None:
    body = TEXT | {"ignore_eos": True, "return_tokens": True, "prompt": "import os\n"}
    whole = server.post("/completion", **body)
    stop = whole["tokens"][9]
    first = whole["tokens"].index(stop)
    cut = server.post("/completion", **body, stop_token_ids=[stop])
    assert cut["tokens"] == whole["tokens"][: first + 1]
    assert whole["content"].startswith(cut["content"])
    (choice,) = server.post("/v1/completions", **body, stop_token_ids=[stop])["choices"]
    assert (choice["finish_reason"], choice["text"]) == ("stop", cut["content"])
    longer = server.post("/completion", **body, stop_token_ids=[stop], min_tokens=first + 3)
    assert len(longer["tokens"]) > first + 3


def test_nothing_ends_a_text_too_early(server: Server) -> None:
    """What the model would end at once."""
    ends = {"logit_bias": [[token, 100] for token in server.runtime.tokenizer.eog_ids]}
    for n, wanted in ((0, 1), (7, 8)):
        done = server.post("/v1/completions", **TEXT, **ends, min_tokens=n)
        assert done["usage"]["completion_tokens"] == wanted
        assert done["choices"][0]["finish_reason"] == "stop"
    stops = {"stop": ["a", "e", "s", " "], "ignore_eos": True}
    done = server.post("/completion", **TEXT, **stops, min_tokens=12)
    assert done["tokens_predicted"] >= 12


ASKING: dict[str, Any] = {
    "allowed_token_ids": [1], "bad_words": ["a"], "bad_words_ids": [[1]], "length_penalty": 1.5,
    "prompt_logprobs": 3,
    "truncate_prompt_tokens": 8, "vllm_xargs": {"a": 1}, "modalities": ["text", "audio"],
    "tfs_z": 0.5, "functions": [{"name": "f"}], "function_call": {"name": "f"},
}  # fmt: skip


@pytest.mark.parametrize("name", _REFUSED)
def test_what_cannot_be_followed(server: Server, name: str) -> None:
    value = ASKING.get(name, True)
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        status, error = server.refused(path, body | {name: value})
        assert (status, error["param"]) == (400, name)
        assert error["message"].startswith(f"{name} is not supported: ")
    status, error = server.refused("/v1/messages", CHAT | {name: value})
    assert status == 400
    assert error["message"].startswith(f"{name} is not supported")


def test_values_that_ask_for_nothing(server: Server) -> None:
    """Clients send the defaults of vLLM and llama.cpp."""
    for name, (_, harmless) in _REFUSED.items():
        values = [None, False, "", [], {}, *harmless]
        for value in values[:: len(values) - 1]:
            server.post("/v1/completions", **TEXT | {"max_tokens": 1, name: value})
    server.post("/v1/completions", **TEXT, lora=[{"id": 0, "scale": 0.0}])
    server.post(
        "/v1/completions", **TEXT, add_special_tokens=True, best_of=1, skip_special_tokens=True
    )
    server.post("/v1/chat/completions", **CHAT, add_special_tokens=False, repetition_penalty=1)
    assert server.refused("/v1/completions", TEXT | {"add_special_tokens": False})[0] == 400
    assert server.refused("/v1/completions", TEXT | {"skip_special_tokens": False})[0] == 400
    assert server.refused("/v1/messages", CHAT | {"n": 2})[0] == 400


def test_speculation_as_the_server_does(server: Server) -> None:
    texts = {
        server.post("/completion", **TEXT, speculative=each)["content"] for each in (True, False)
    }
    assert len(texts) == 1
    status, _, _ = server.request("POST", "/v1/chat/completions", CHAT | {"speculative": True})
    assert status == 200
