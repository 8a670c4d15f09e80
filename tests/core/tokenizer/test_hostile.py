"""Metadata that no converter would write: one line that names the key, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import n_examples

from nextn.core.errors import FileFormatError, ModelError, NextnError
from nextn.core.tokenizer import load_chat_template, load_tokenizer

from .vocabularies import Metadata, byte_bpe, gemma4, spm

GOOD: dict[str, Metadata] = {
    "gpt2": byte_bpe(merges=("a b",)),
    "llama": spm({"▁": -1.0, "a": -2.0, "▁a": -3.0}),
    "gemma4": gemma4(),
}
KEYS = (
    "model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "eos_token_id",
    "eot_token_id", "eom_token_id", "unknown_token_id", "fim_pad_token_id", "add_bos_token",
    "add_eos_token", "add_space_prefix",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    "x", "", 7, -1, 10**12, 2**64, 1.5, float("nan"), True, [], ["a"], ["a", "a"], ["a", 7], [1, 2],
    [[1], [2, 3]], ["\ud800"] * 3, np.zeros(3), np.zeros((2, 2)), np.zeros(300, np.int32),
    [""] * 300, np.array([], np.float32), b"x", {"a": 1},
)  # fmt: skip


@pytest.mark.parametrize("model", GOOD)
@pytest.mark.parametrize("key", KEYS)
def test_wrong_values_never_crash(model: str, key: str) -> None:
    messages = [refusal(GOOD[model] | {f"tokenizer.ggml.{key}": value}) for value in VALUES]
    refused = [message for message in messages if message is not None]
    assert all("tokenizer.ggml." in message and len(message) < 700 for message in refused)
    assert not any("\n" in message for message in refused)
    if key in ("model", "tokens", "bos_token_id", "eos_token_id", "add_bos_token", "token_type"):
        assert len(refused) >= len(VALUES) - 6


def refusal(metadata: Metadata) -> str | None:
    """The refusal; None when it loads, and then it also works."""
    try:
        tokenizer = load_tokenizer(metadata)
    except NextnError as error:
        return str(error)
    tokenizer.decode(tokenizer.encode("a b<s>é\n"), show_special=True)
    return None


@pytest.mark.parametrize("model", GOOD)
@pytest.mark.parametrize("key", ["model", "tokens"])
def test_missing_keys_are_named(model: str, key: str) -> None:
    metadata = dict(GOOD[model])
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises((FileFormatError, ModelError), match=rf"tokenizer\.ggml\.{key} is missing"):
        load_tokenizer(metadata)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bos_token_id": 259}, r"bos_token_id is 259, but the vocabulary has 259 tokens"),
        ({"eos_token_id": "2"}, r"eos_token_id: expected a token id, got '2'"),
        ({"eot_token_id": True}, r"eot_token_id: expected a token id, got True"),
        ({"token_type": [1, 2, 3]}, r"token_type has 3 entries for 259 tokens"),
        ({"token_type": [1.0] * 259}, r"token_type: expected an array of numbers"),
        ({"add_bos_token": 1}, r"add_bos_token: expected true or false, got 1"),
        ({"tokens": ["a", "b", "a"], "token_type": [1] * 3}, r"ids 0 and 2 are both 'a'"),
        ({"tokens": []}, r"tokens is empty"),
        ({"tokens": ["x" * 70000]}, r"a token has 70000 characters"),
        ({"token_type": [6] * 259}, r"id 0 is of kind byte, but is"),
        ({"merges": 5}, r"merges: expected an array of texts"),
        ({"pre": 5}, r"pre: expected a text, got 5"),
    ],
)
def test_messages(changes: dict[str, object], message: str) -> None:
    metadata = byte_bpe() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises((FileFormatError, ModelError), match=message):
        load_tokenizer(metadata)


def test_empty_tokens_get_names() -> None:
    metadata = byte_bpe(more=("", ""))
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.token(256) == "[EMPTY_256]"
    assert tokenizer.find_token("[EMPTY_257]") == 257


def test_unknown_kinds_spell_nothing() -> None:
    metadata = byte_bpe()
    kinds = metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, list)
    kinds[0], kinds[1] = 77, -3
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.decode([0, 1, 65]) == BYTE_65


BYTE_65 = "A"

_texts = st.text(st.characters(codec="utf-8"), max_size=6)
_scalars = st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.floats(), _texts)
_arrays = st.one_of(
    st.lists(_texts, max_size=12),
    st.lists(st.integers(-2, 300), max_size=12),
    st.lists(st.floats()),
)


@settings(max_examples=n_examples(150))
@given(
    model=st.sampled_from(sorted(GOOD)),
    changes=st.dictionaries(
        st.sampled_from(KEYS).map("tokenizer.ggml.{}".format), st.one_of(_scalars, _arrays)
    ),
    text=_texts,
)
def test_any_metadata_loads_or_is_refused(
    model: str, changes: dict[str, object], text: str
) -> None:
    try:
        tokenizer = load_tokenizer(GOOD[model] | changes)
    except NextnError:
        return
    tokenizer.decode(tokenizer.encode(text), show_special=True)


@settings(max_examples=n_examples(80))
@given(tokens=st.lists(_texts, min_size=1, max_size=12, unique=True), data=st.data())
def test_any_small_vocabulary_works_or_is_refused(tokens: list[str], data: st.DataObject) -> None:
    n = len(tokens)
    metadata: Metadata = {
        "tokenizer.ggml.model": data.draw(st.sampled_from(["gpt2", "llama", "gemma4"])),
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": data.draw(st.lists(st.integers(0, 7), min_size=n, max_size=n)),
        "tokenizer.ggml.scores": data.draw(
            st.lists(st.floats(allow_nan=False, width=32), min_size=n, max_size=n)
        ),
        "tokenizer.ggml.merges": data.draw(st.lists(_texts, max_size=4)),
        "tokenizer.ggml.add_bos_token": False,
    }
    try:
        tokenizer = load_tokenizer(metadata)
    except NextnError:
        return
    ids = tokenizer.encode("".join(tokens))
    assert all(0 <= token_id < n for token_id in ids)
    tokenizer.decode(range(n), show_special=True)


@pytest.mark.parametrize("value", [7, ["a"], b"x", True])
def test_chat_template_must_be_text(value: object) -> None:
    with pytest.raises(FileFormatError, match=r"tokenizer\.chat_template: expected a text"):
        load_chat_template({"tokenizer.chat_template": value})
