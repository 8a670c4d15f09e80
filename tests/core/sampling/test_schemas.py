"""Closed schemas: what they allow is what the schema allows, and no further members."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nextn.core import load, nano
from nextn.core.sampling.grammar import Grammars
from nextn.core.sampling.schemas import closed
from nextn.core.tokenizer import Tokenizer

NAME: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load(nano.path(), "cpu").tokenizer


def follows(tokenizer: Tokenizer, schema: Any, value: Any) -> bool:
    grammar = Grammars(tokenizer).from_json_schema(json.dumps(schema))
    tokens = tokenizer.encode(json.dumps(value), add_special=False)
    if grammar.validate(tokens) < len(tokens):
        return False
    for token in tokens:
        grammar.accept(token)
    return grammar.is_complete


@pytest.mark.parametrize(
    ("schema", "value", "is_allowed"),
    [
        (NAME, {"a": 1}, True),
        (NAME, {"a": 1, "b": 2}, False),
        (NAME | {"additionalProperties": True}, {"a": 1, "b": 2}, True),
        (NAME | {"additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2}, True),
        ({"type": "object"}, {"b": 2}, True),
        ({"type": "array", "items": NAME}, [{"a": 1}], True),
        ({"type": "array", "items": NAME}, [{"b": 1}], False),
        ({"anyOf": [NAME, {"type": "integer"}]}, {"b": 1}, False),
        ({"anyOf": [NAME, {"type": "integer"}]}, 3, True),
        ({"allOf": [NAME, {"properties": {"b": {"type": "integer"}}}]}, {"a": 1, "b": 2}, True),
        ({"$defs": {"n": NAME}, "$ref": "#/$defs/n"}, {"a": 1}, True),
        ({"$defs": {"n": NAME}, "$ref": "#/$defs/n"}, {"a": 1, "b": 1}, False),
    ],
)
def test_silence_means_no_further_members(
    tokenizer: Tokenizer, schema: Any, value: Any, is_allowed: bool
) -> None:
    assert follows(tokenizer, schema, value) is is_allowed


@pytest.mark.parametrize(
    "schema", [True, {"type": "object", "properties": {}}, NAME | {"required": ["b"]}]
)
def test_what_says_nothing_of_its_members_stays_open(schema: Any) -> None:
    assert closed(schema) == schema


def test_the_schema_itself_is_not_changed() -> None:
    before = json.dumps(NAME)
    assert closed(NAME)["additionalProperties"] is False
    assert json.dumps(NAME) == before
