"""Forms: fixed text around JSON, one of several, after thoughts of any length."""

from __future__ import annotations

import pytest

from nextn.core import load, nano
from nextn.core.errors import ConfigError
from nextn.core.sampling.forms import write_forms
from nextn.core.sampling.grammar import Grammars
from nextn.core.tokenizer import Tokenizer

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORMS = [('<call>"a": ', NUMBER, "</call>"), ("[B]", {"enum": ["x", "y"]}, "")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load(nano.path(), "cpu").tokenizer


def is_whole(tokenizer: Tokenizer, source: str, text: str) -> bool:
    grammar = Grammars(tokenizer).from_forms(source)
    tokens = tokenizer.encode(text, add_special=False)
    if grammar.validate(tokens) < len(tokens):
        return False
    for token in tokens:
        grammar.accept(token)
    return grammar.is_complete


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ('<call>"a": {"n": 3}</call>', True),
        ('[B]"y"', True),
        ('[B]"z"', False),
        ('<call>"a": {"n": "3"}</call>', False),
        ('<call>"a": {"n": 3}', False),
        ('hm <call>"a": {"n": 3}</call>', False),
        ("", False),
    ],
)
def test_one_of_the_forms(tokenizer: Tokenizer, text: str, follows: bool) -> None:
    assert is_whole(tokenizer, write_forms(FORMS), text) is follows
    after = write_forms(FORMS, thought_end="</think>")
    assert is_whole(tokenizer, after, f"hm [B] <x>\n</think>{text}") is follows
    assert not is_whole(tokenizer, after, text)


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ('[B]"y"', True),
        ('<a>hm <x></x>-[B]"y"', True),
        ('<a></x>-<b>[B]"y"</x>-<a>hm</x>-[B]"y"', True),
        ('<a>hm</x>[B]"y"', False),
        ('<c>hm</x>-[B]"y"', False),
        ("<a>hm</x>-", False),
        ('-[B]"y"', False),
    ],
)
def test_any_number_of_thoughts(tokenizer: Tokenizer, text: str, follows: bool) -> None:
    source = write_forms(
        FORMS, thought_starts=["<a>", "<b>"], thought_end="</x>", behind_thought="-"
    )
    assert is_whole(tokenizer, source, text) is follows


def test_too_many_forms_are_refused() -> None:
    for n in (0, 129):
        with pytest.raises(ConfigError, match="1 to 128"):
            write_forms(FORMS[:1] * n)


def test_large_schemas_are_refused(tokenizer: Tokenizer) -> None:
    large = write_forms([("", {"enum": ["x" * 1_000_000]}, "")])
    with pytest.raises(ConfigError, match="at most"):
        Grammars(tokenizer).from_forms(large)
