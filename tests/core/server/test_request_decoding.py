"""Requests become structs; what is wrong with a value is described in terms of JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields
from support.thoroughness import n_examples

from nextn.core.sampling.params import SamplingParams
from nextn.core.server.api_errors import ApiError
from nextn.core.server.body_parts import Speculative
from nextn.core.server.request_bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    InfillBody,
    MessagesBody,
    ResponsesBody,
)
from nextn.core.server.request_decoding import decode

USER = {"role": "user", "content": "x"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "x"}, "temperature must be a number of at least 0, got a string: 'x'"),
    ({"top_p": 1.5}, "top_p must be a number between 0 and 1, got 1.5"),
    ({"top_k": 1.5}, "top_k must be a whole number between -1 and 2147483647, got a number: 1.5"),
    ({"temperature": 10**400}, "temperature is too large a number"),
    ({"stream": 1}, "stream must be true or false, got a number: 1"),
    ({"grammar": {"a": 1}}, "grammar must be a string, got an object: {...}"),
    ({"response_format": {"type": "xml"}},
     "response_format.type must be one of json_object, json_schema, text, got 'xml'"),
    ({"stop": ["a", None]}, "stop[1] must be a string of at most 4096 characters, got null"),
    ({"stop": ["a"] * 300}, "stop must be a list of at most 256 items, got 300"),
    ({"logit_bias": [[1]]}, "logit_bias[0] must be a list of 2 items, got 1"),
    ({"logit_bias": {"1": "x"}},
     "logit_bias must be an object whose values are a number or true or false"),
    ({"speculative.n_max": 99},
     "speculative.n_max must be a whole number between 0 and 64, got 99"),
    ({"speculative": {"answer": {"n_min": "x"}}},
     "speculative.answer.n_min must be a whole number between 0 and 64, got a string: 'x'"),
    ({"messages": None}, "messages is missing"),
    ({"messages": []}, "messages must be a list of 1 to 10000 items, got 0"),
    ({"messages": [{}]}, "messages[0].role is missing"),
    ({"messages": [USER, {"role": "user", "content": [5]}]},
     "messages[1].content[0] must be a string or an object, got a number: 5"),
    ({"tools": [{"function": {"name": ""}}]},
     "tools[0].function.name must be a string of 1 to 256 characters, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), WRONG, ids=lambda each: str(each)[:30])
def test_a_message_names_the_field_what_is_expected_and_the_value(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        decode(ChatBody, {"messages": [USER]} | values)
    assert refusal.value.message == message
    assert refusal.value.param == message.split()[0]


def test_null_is_absent_whole_floats_are_integers_and_unknown_fields_are_kept() -> None:
    given = {"top_k": 7.0, "top_p": None, "temperature": 1e308, "other": 2.0, "seed": 2.0**63}
    body = decode(GenerationBody, given, 5)
    assert (body.top_k, body.top_p, body.temperature, body.seed) == (7, None, 1e308, 2**63)
    assert (body.given, body.size) == (given, 5)


def test_names_with_a_dot_are_members_that_the_object_overrides() -> None:
    dotted = {"speculative.n_max": 4.0, "speculative.n_min": 1}
    assert decode(GenerationBody, dotted).speculative == Speculative(n_max=4, n_min=1)
    both = dotted | {"speculative": {"n_min": 2, "thinking": {"n_max": 3.0}}}
    found = decode(GenerationBody, both).speculative
    assert isinstance(found, Speculative)
    assert (found.n_max, found.n_min) == (4, 2)
    assert found.thinking is not None
    assert found.thinking.n_max == 3
    assert decode(GenerationBody, dotted | {"speculative": False}).speculative is False


def test_every_sampling_parameter_is_a_field() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert names <= set(GenerationBody.__struct_fields__)


BODIES = (ChatBody, CompletionBody, InfillBody, MessagesBody, ResponsesBody)
NAMES = sorted(
    {name for body in BODIES for name in body.__struct_fields__}
    | {"content", "role", "type", "function", "name", "n_max", "schema", "speculative.n_max"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=8,
)


@settings(max_examples=n_examples(300), deadline=None)
@given(st.sampled_from(BODIES), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_any_json_is_decoded_or_refused(body: type[Any], values: dict[str, Any]) -> None:
    refusal = None
    try:
        decode(body, values)
    except ApiError as error:
        refusal = error
    if refusal is not None:
        assert refusal.message.startswith(f"{refusal.param} ")
        assert len(refusal.message) < 300
