"""SmolLM2 behind the server: documents, calls, full contexts, saved slots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.real_model import as_chat, smollm2
from support.serving import SETTINGS, Server, running
from support.thoroughness import share

from nextn.core import load
from nextn.core.bench.prompts import counted_texts
from nextn.core.server.loading import prepare
from nextn.core.speculation.options import SpecOptions
from nextn.core.tokenizer import load_chat_template
from nextn.core.worker.worker import Loaded

pytestmark = pytest.mark.real

PERSON = {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0,
                                                               "maximum": 120}}  # fmt: skip
SCHEMAS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "integer", "minimum": -5, "maximum": 70},
    {"type": "string", "minLength": 3, "maxLength": 12},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
    {"type": "string", "format": "date"},
    {"enum": ["red", "green", 3, None]},
    {"const": {"a": [1, 2]}},
    {"type": "array", "items": {"type": "integer", "maximum": 99}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["x", "y"]}], "items": False,
     "minItems": 2},
    {"type": "object", "properties": PERSON, "required": ["name", "age"],
     "additionalProperties": False},
    {"type": "object", "properties": PERSON, "required": ["age"], "additionalProperties": False},
    {"type": "object", "properties": {"who": {"$ref": "#/$defs/person"}}, "required": ["who"],
     "additionalProperties": False,
     "$defs": {"person": {"type": "object", "properties": PERSON, "required": ["name"],
                          "additionalProperties": False}}},
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    {"oneOf": [{"const": "yes"}, {"const": "no"}]},
    {"type": ["boolean", "null"]},
    {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]},
                                               "maxItems": 3}},
     "required": ["tags"], "additionalProperties": False},
    {"type": "object", "properties": {"x": {"type": "number", "minimum": 0, "maximum": 1}},
     "required": ["x"], "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2,
     "properties": {}},
    {"allOf": [{"type": "object", "properties": PERSON, "required": ["name"],
                "additionalProperties": False}]},
    {"type": "array", "items": {"type": "object", "properties": PERSON,
                                "required": ["name", "age"], "additionalProperties": False},
     "minItems": 1, "maxItems": 2},
]  # fmt: skip
TOWN = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 30}},
    "required": ["town"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town now",
        "parameters": TOWN,
    },
}


def load_smollm2() -> Loaded:
    runtime = load(smollm2(), "cpu", threads=1, spec=SpecOptions(fixed=True))
    return prepare(runtime, 2, load_chat_template(runtime.file.metadata), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    smollm2()
    with running(Server(load_smollm2, SETTINGS, slot_folder=folder, writes_text=False)) as server:
        yield server


def ask(server: Server, question: str, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 120, **more}
    choice: dict[str, Any] = server.post("/v1/chat/completions", **body)["choices"][0]
    return choice


@pytest.mark.parametrize("schema", share(SCHEMAS, 6), ids=json.dumps)
def test_a_document_follows_its_schema(server: Server, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for temperature in (0, 1.0):
        choice = ask(
            server, "Invent an answer.", temperature=temperature, seed=3, response_format=form,
        )  # fmt: skip
        assert choice["finish_reason"] == "stop", choice
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_a_call_that_is_required(server: Server) -> None:
    more = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0}
    choice = ask(server, "What is the weather in Oslo?", **more)
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]["function"]
    assert call["name"] == "get_weather"
    jsonschema.validate(json.loads(call["arguments"]), TOWN)
    assert "Oslo" in call["arguments"]


def test_an_answer_to_a_question(server: Server) -> None:
    choice = ask(server, "Why is the sky blue?", temperature=0, max_tokens=40)
    assert "light" in choice["message"]["content"]
    assert "reasoning_content" not in choice["message"]


def essence(done: dict[str, Any]) -> Any:
    return done["tokens"], done["completion_probabilities"]


def test_a_saved_slot_goes_on_as_if_it_had_never_left(server: Server) -> None:
    text = as_chat(f"Repeat:\n\n{counted_texts.order_lines(12)}")
    body: dict[str, Any] = {
        "n_predict": 40, "return_tokens": True, "n_probs": 2, "temperature": 0.7, "seed": 5,
    }  # fmt: skip
    first = server.post("/completion", prompt=text, id_slot=0, **body)
    server.post("/slots/0?action=save", filename="kept.bin")
    longer = text + first["content"] + "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n"
    cold = server.post("/completion", prompt=longer, cache_prompt=False, **body)
    server.post("/slots/0?action=erase")
    server.post("/slots/0?action=restore", filename="kept.bin")
    warm = server.post("/completion", prompt=longer, id_slot=0, **body)
    assert warm["timings"]["cache_n"] > 300
    assert essence(warm) == essence(cold)


@pytest.mark.exhaustive
def test_a_full_context(server: Server) -> None:
    """8,192 tokens: the text goes to the last one and ends there, the same with drafts and not."""
    tokens = server.post("/tokenize", content=counted_texts.report(400))["tokens"][: 8192 - 64]
    body: dict[str, Any] = {"prompt": tokens, "n_predict": 200, "ignore_eos": True,
                            "temperature": 0, "return_tokens": True}  # fmt: skip
    drafted = server.post("/completion", **body)
    assert drafted["tokens_evaluated"] + len(drafted["tokens"]) == 8192
    assert drafted["stop_type"] == "limit"
    plain = server.post("/completion", **body, speculative={"off": True}, cache_prompt=False)
    assert plain["tokens"] == drafted["tokens"]
    status, error = server.refused("/completion", {"prompt": tokens * 2})
    assert status == 400
    assert "8192" in error["message"]
