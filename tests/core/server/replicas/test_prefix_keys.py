"""How requests begin, read from their bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.server.replicas.prefix_keys import (
    ANY_SLOT,
    MAX_KEYS,
    PIECE_BYTES,
    RoutingHint,
    read_hint,
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)
names = st.sampled_from(("prompt", "messages", "input", "tools", "n", "id_slot", "input_prefix"))


def hint(**body: Any) -> RoutingHint:
    return read_hint(json.dumps(body).encode())


def n_common(one: RoutingHint, other: RoutingHint) -> int:
    n = 0
    for a, b in zip(one.keys, other.keys, strict=False):
        if a != b:
            break
        n += 1
    assert not set(one.keys[n:]) & set(other.keys[n:])  # a key stands for all before it
    return n


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_growing_chat() -> None:
    history = [message("system", "Be kind."), message("user", "Hello")]
    before = hint(messages=history, temperature=0.5)
    history += [message("assistant", "Hi! " * 200), message("user", "And now?")]
    after = hint(stream=True, messages=history)
    assert n_common(before, after) == len(before.keys) == 2
    history[0]["content"] = "Be rude."
    assert n_common(after, hint(messages=history)) == 0


def test_tools_come_first() -> None:
    messages = [message("user", "Hello")]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert n_common(hint(messages=messages), hint(messages=messages, tools=tools)) == 0


@given(st.text(max_size=2000), st.text(max_size=300), st.text(max_size=300))
def test_prompts_that_begin_alike(start: str, one: str, other: str) -> None:
    a, b = hint(prompt=start + one), hint(prompt=start + other)
    assert n_common(a, b) >= len(start.encode()) // PIECE_BYTES
    assert a == hint(prompt=start + one)


def test_prompts_in_other_forms() -> None:
    ids = list(range(2000))
    assert n_common(hint(prompt=ids), hint(prompt=[*ids, 7])) > 20
    assert hint(prompt=["a", "b"]).n_sequences == 2
    assert hint(prompt=["a", 3]).n_sequences == 1
    assert hint(prompt=[[1, 2], "b", [3]], n=2).n_sequences == 6
    assert hint(prompt="a", cache_prompt=False).keys == ()
    assert hint(input="Hello" * 99).keys
    assert hint(input_prefix="def f():\n" * 99).keys


def test_slots() -> None:
    assert hint(prompt="a", id_slot=5).slot == 5
    for value in (-1, "5", None, 1.5):
        assert hint(prompt="a", id_slot=value).slot == ANY_SLOT


def test_only_so_many_keys() -> None:
    assert len(hint(prompt="x" * (PIECE_BYTES * (MAX_KEYS + 10))).keys) == MAX_KEYS


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"prompt": 1e999}', b"[" * 5000])
def test_bad_bodies_have_no_keys(body: bytes) -> None:
    assert read_hint(body).keys == ()


@given(st.dictionaries(names, anything))
def test_any_body_is_read(body: dict[str, Any]) -> None:
    found = hint(**body)
    assert found.n_sequences >= 1
    assert found.slot >= ANY_SLOT


@given(st.binary(max_size=60))
def test_any_bytes_are_read(body: bytes) -> None:
    assert read_hint(body).n_sequences >= 1
