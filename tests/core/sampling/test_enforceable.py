"""Valid schemas are followed as far as a grammar can, with a note for each keyword that it cannot
express; what is wrong with the others is said with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nextn.core import load, nano
from nextn.core.errors import ConfigError
from nextn.core.sampling.forms import PLACE, write_forms
from nextn.core.sampling.grammar import MAX_NOTES, Grammar, Grammars
from nextn.core.tokenizer import Tokenizer

TEXT: dict[str, Any] = {"type": "string"}
LIST: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
OBJECT: dict[str, Any] = {"type": "object"}
NOT = "is not enforced"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load(nano.path(), "cpu").tokenizer


def follows(tokenizer: Tokenizer, grammar: Grammar, value: Any) -> bool:
    grammar = grammar.copy()
    tokens = tokenizer.encode(json.dumps(value), add_special=False)
    if grammar.validate(tokens) < len(tokens):
        return False
    for token in tokens:
        grammar.accept(token)
    return grammar.is_complete


# A schema, what follows it, what the rest of it still refuses, and the notes.
CASES: list[tuple[dict[str, Any], list[Any], list[Any], list[str]]] = [
    (LIST | {"uniqueItems": True}, [[1, 1]], ["a", ["a"]], [f"#/uniqueItems {NOT}"]),
    (LIST | {"uniqueItems": False}, [[1, 1]], [["a"]], []),
    (TEXT | {"not": {"const": "a"}}, ["b"], [1], [f"#/not {NOT}"]),
    (LIST | {"contains": {"const": 5}, "minContains": 2}, [[1]], [["a"]], [f"#/contains {NOT}"]),
    (OBJECT | {"propertyNames": {"maxLength": 2}}, [{"a": 1}], [[]], [f"#/propertyNames {NOT}"]),
    (OBJECT | {"propertyNames": True}, [{"a": 1}], [[]], []),
    (OBJECT | {"dependentRequired": {"a": ["b"]}}, [{}], [1], [f"#/dependentRequired {NOT}"]),
    (OBJECT | {"dependentSchemas": {"a": {}}}, [{}], [1], [f"#/dependentSchemas {NOT}"]),
    (TEXT | {"if": {"const": "a"}, "then": {}, "else": {}}, ["b"], [1], [f"#/if {NOT}"]),
    (TEXT | {"if": {"const": "a"}}, ["b"], [1], []),
    (TEXT | {"pattern": "^(?=a)a$"}, ["a"], [1], [f"#/pattern {NOT}"]),
    (TEXT | {"pattern": r"^(a)\1$"}, ["aa"], [1], [f"#/pattern {NOT}"]),
    (TEXT | {"pattern": "^a+$"}, ["aa"], ["b"], []),
    (TEXT | {"format": "phone"}, ["x"], [1], [f"#/format {NOT}"]),
    (TEXT | {"format": "date"}, ["2026-11-28"], ["x"], []),
    ({"type": "number", "maximum": 2**64}, [1], ["a"], [f"#/maximum {NOT}"]),
    ({"type": "integer", "maximum": 2**63 - 1}, [1], ["a", 2**64], []),
    (OBJECT | {"patternProperties": {"a": TEXT, "aa": {"type": "integer"}}}, [{"b": 1}], [1],
     [f"#/patternProperties {NOT}: several expressions match one name"]),
    (OBJECT | {"patternProperties": {"^(?!a)": TEXT}}, [{"b": 1}], [1],
     [f"#/patternProperties/%5E(%3F!a) {NOT}"]),
    (OBJECT | {"properties": {"a": TEXT}, "unevaluatedProperties": False}, [{"a": "b"}],
     [{"b": 1}], []),
    ({"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False}, [["a"]], [["a", 1]], []),
    (OBJECT | {"anyOf": [{}], "unevaluatedProperties": False}, [{}], [1],
     [f"#/unevaluatedProperties {NOT}"]),
    ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, [7, 3], [], ["#/oneOf is enforced as anyOf"]),
    ({"oneOf": [TEXT, {"type": "integer"}]}, [7, "a"], [[]], []),
    ({"$ref": "http://example.org/a.json", "type": "string"}, ["a"], [1],
     [f"#/$ref {NOT}: it refers to another document"]),
    ({"$ref": "file:///etc/passwd", "type": "string"}, ["a"], [1],
     [f"#/$ref {NOT}: it refers to another document"]),
    ({"$id": "http://a.b/c", "$ref": "d", "$defs": {"x": {"$id": "d", **TEXT}}}, ["a"], [1], []),
    ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", **TEXT}}}, ["a"], [1], []),
    (TEXT | {"maxLength": 2.0, "description": "a", "x-own": 1}, ["aa"], ["aaa"], []),
    (TEXT | {"$schema": "http://example.org/our-own-dialect"}, ["a"], [1], []),
    ({"const": {"uniqueItems": True}}, [{"uniqueItems": True}], [1], []),
    (OBJECT | {"properties": {"a/b": LIST | {"uniqueItems": True}}, "required": ["a/b"]},
     [{"a/b": [1, 1]}], [{"a/b": ["a"]}, {}], [f"#/properties/a~1b/uniqueItems {NOT}"]),
    ({"type": "array", "prefixItems": [{"$ref": "#/$defs/x"}],
      "$defs": {"x": {"allOf": [TEXT, {"not": {}}]}}}, [["a"]], [[1]],
     [f"#/$defs/x/allOf/1/not {NOT}"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong", "notes"), CASES)
def test_what_can_be_enforced_is(
    tokenizer: Tokenizer, schema: dict[str, Any], right: list[Any], wrong: list[Any],
    notes: list[str],
) -> None:  # fmt: skip
    grammars = Grammars(tokenizer)
    grammar = grammars.from_json_schema(schema)
    assert list(grammar.notes) == list(grammar.copy().notes) == notes
    assert all(follows(tokenizer, grammar, value) for value in right)
    assert not any(follows(tokenizer, grammar, value) for value in wrong)
    form = grammars.from_forms(write_forms([("", schema | {PLACE: "tool a: "}, "")]))
    assert list(form.notes) == [f"tool a: {note}" for note in notes]
    assert all(follows(tokenizer, form, value) for value in right)
    assert not any(follows(tokenizer, form, value) for value in wrong)


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        ({"type": "strin"}, "#", "Invalid type: strin"),
        (OBJECT | {"properties": {"a": {"type": "strin"}}}, "#/properties/a", "Invalid type"),
        (OBJECT | {"properties": {"a": LIST | {"items": {"minLength": "x"}}}},
         "#/properties/a/items", "minLength"),
        ({"anyOf": [TEXT, {"pattern": "(a"}]}, "#/anyOf/1/pattern", "unclosed group"),
        (OBJECT | {"patternProperties": {"[": {}}}, "#/patternProperties/%5B", "unclosed"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"}, "#/$defs/a", "/$defs/b"),
        ({"type": "array", "items": {"allOf": [TEXT, {"type": "integer"}]}, "minItems": 1},
         "#/items", "Unsatisfiable"),
    ],
)  # fmt: skip
def test_errors_name_the_place(
    tokenizer: Tokenizer, schema: dict[str, Any], place: str, reason: str
) -> None:
    grammars = Grammars(tokenizer)
    with pytest.raises(ConfigError) as refusal:
        grammars.from_json_schema(schema)
    text = str(refusal.value)
    assert text.startswith(f"the JSON schema cannot be followed at {place}: ")
    assert reason in text
    assert "\n" not in text
    with pytest.raises(ConfigError) as refusal:
        grammars.from_forms(write_forms([("", schema | {PLACE: "tool a: "}, "")]))
    assert place in str(refusal.value)


def test_notes_are_limited_and_in_the_log(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    members = {f"m{i}": LIST | {"uniqueItems": True} for i in range(MAX_NOTES + 5)}
    grammars = Grammars(tokenizer)
    for _ in range(2):
        grammar = grammars.from_json_schema(OBJECT | {"properties": members})
        assert len(grammar.notes) == MAX_NOTES + 1
        assert grammar.notes[-1] == "5 more keywords are not enforced"
    (record,) = caplog.records  # the second time it was known
    assert "#/properties/m0/uniqueItems is not enforced; #/properties/m1" in record.getMessage()
