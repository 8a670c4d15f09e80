"""Reads the rule that a text has to follow, under the names of llama.cpp, OpenAI and vLLM."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from .body_parts import ResponseFormat, StructuredOutputs
from .request_bodies import GenerationBody
from .request_decoding import refuse

GRAMMAR: Final = "grammar"
SCHEMA: Final = "json_schema"
REGEX: Final = "regex"
_ANY_OBJECT: Final = {"type": "object"}
_QUOTED: Final = re.compile(r'["\\\x00-\x1f\x7f]')


def read_rule(body: GenerationBody) -> dict[str, str]:
    """Returns at most one of `grammar`, `json_schema` and `regex`, as `GenerateParams` has it."""
    found = [(name, kind, rule) for name, kind, rule in _rules(body) if rule is not None]
    if len(found) > 1:
        (first, *_), (second, *_), *_ = found
        refuse(second, f"and {first} cannot both be followed; give one")
    for _, kind, rule in found:
        if kind == SCHEMA and not isinstance(rule, str):
            rule = msgspec.json.encode(rule).decode()
        return {kind: rule}
    return {}


def _rules(body: GenerationBody) -> list[tuple[str, str, Any]]:
    """The field, the parameter, and its value."""
    outputs = body.structured_outputs or StructuredOutputs()
    for name in ("whitespace_pattern", "structural_tag"):
        if getattr(outputs, name) is not None:
            refuse(f"structured_outputs.{name}", "is not supported: leave it out")
    place = "structured_outputs"
    asked = _response_schema(body.response_format or ResponseFormat())
    # OpenAI's clients send `response_format` beside a schema of the same.
    schema = body.json_schema if asked is None else asked
    return [
        ("json_schema", SCHEMA, schema),
        ("grammar", GRAMMAR, body.grammar or None),
        ("guided_json", SCHEMA, body.guided_json),
        ("guided_grammar", GRAMMAR, body.guided_grammar or None),
        ("guided_regex", REGEX, body.guided_regex),
        ("guided_choice", GRAMMAR, _grammar_of(body.guided_choice)),
        (f"{place}.json", SCHEMA, outputs.json),
        (f"{place}.json_object", SCHEMA, _ANY_OBJECT if outputs.json_object else None),
        (f"{place}.grammar", GRAMMAR, outputs.grammar or None),
        (f"{place}.regex", REGEX, outputs.regex),
        (f"{place}.choice", GRAMMAR, _grammar_of(outputs.choice)),
    ]


def _response_schema(form: ResponseFormat) -> Any:
    if form.type == "json_object":
        return _ANY_OBJECT if form.schema is None else form.schema
    if form.type != "json_schema":
        return None
    if form.json_schema is not None and form.json_schema.schema is not None:
        return form.json_schema.schema
    if form.schema is None:
        refuse("response_format.json_schema.schema", "is missing")
    return form.schema


def _grammar_of(choices: list[str] | None) -> str | None:
    if choices is None:
        return None
    return "root ::= " + " | ".join(f'"{_QUOTED.sub(_escaped, each)}"' for each in choices)


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"
