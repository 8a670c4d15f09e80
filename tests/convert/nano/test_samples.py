"""Documents, epochs and batches: what they hold, and that a seed repeats them."""

from __future__ import annotations

import ast
import random

import numpy as np
import pytest

from nextn.convert.nano import samples
from nextn.convert.nano.nano_vocabulary import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, NanoVocabulary
from nextn.convert.nano.samples import SampleLibrary
from nextn.convert.nano.training_data import Batches, Position
from nextn.core.errors import ConfigError

FILE = '''"""A module."""

class A:
    def method(self, value):
        """Return the value, doubled."""
        return value + value + self.offset


def plain(first, second):
    """Add two numbers.

    Nothing else.
    """
    return first + second + 0 + 0 + 0 + 0
'''


@pytest.fixture(scope="module")
def library() -> SampleLibrary:
    return SampleLibrary.of([FILE, FILE.replace("value", "number")], ["A topic.\n"])


@pytest.fixture(scope="module")
def vocabulary(library: SampleLibrary) -> NanoVocabulary:
    return NanoVocabulary.train(library.files, 320)


def test_definitions_stand_at_the_margin(library: SampleLibrary) -> None:
    assert {d.name for d in library.definitions} == {"A", "method", "plain"}
    assert len(library.definitions) == 5  # `plain` is in both files
    for definition in library.definitions:
        (node,) = ast.parse(definition.source).body
        assert isinstance(node, ast.FunctionDef) is definition.is_function
        assert definition.source.endswith("\n")
    assert {d.summary for d in library.explained} >= {"Add two numbers."}
    assert "A" not in {d.name for d in library.explained}


def test_methods_are_fewer_than_functions(library: SampleLibrary) -> None:
    weights = {d.name: d.weight for d in library.definitions}
    assert weights["method"] < weights["plain"]
    assert weights["A"] < weights["plain"]  # it has no docstring of its own


def test_documents_have_short_docstrings(library: SampleLibrary) -> None:
    (plain, *_) = [d for d in library.definitions if d.name == "plain"]
    assert '    """Add two numbers."""\n    return first' in plain.source


def test_a_decorator_is_part_of_a_definition() -> None:
    (found,) = samples.definitions_of(f"@cached\n@again(1)\n{FILE[FILE.index('def plain') :]}")
    assert found.source.startswith("@cached\n@again(1)\ndef plain")


def test_texts_that_spell_control_tokens_are_left_out() -> None:
    assert SampleLibrary.of([FILE + "x = '<|im_end|>'\n"]).files == []


def test_fill_in_can_be_put_together_again(library: SampleLibrary) -> None:
    rng = random.Random(0)
    for _ in range(50):
        made = samples.fill_in(rng, library)
        prefix, _, rest = made.removeprefix(FIM_PREFIX).partition("<|fim_suffix|>")
        suffix, _, middle = rest.partition(FIM_MIDDLE)
        assert any(prefix + middle + suffix in text for text in library.files)


def test_chat_is_what_the_template_makes(library: SampleLibrary) -> None:
    from nextn.convert.nano.nano_vocabulary import CHAT_TEMPLATE
    from nextn.core.tokenizer.chat_template import ChatTemplate

    made = samples.as_chat("Why?", "Because.")
    template = ChatTemplate(CHAT_TEMPLATE)
    messages = [{"role": "user", "content": "Why?"}]
    prompt = template.render(messages, add_generation_prompt=True)
    assert made == prompt + "Because.<|im_end|>\n"


def test_an_epoch_repeats_and_the_next_differs(
    library: SampleLibrary, vocabulary: NanoVocabulary
) -> None:
    files = samples.encode(vocabulary, library.files)
    first = samples.epoch(library, vocabulary, files, "1 0")
    assert np.array_equal(first, samples.epoch(library, vocabulary, files, "1 0"))
    other = samples.epoch(library, vocabulary, files, "1 1")
    assert len(first) != len(other) or (first != other).any()
    assert first[-1] == vocabulary.id_of(END_OF_TEXT)
    text = vocabulary.engine.decode(first.tolist(), skip_special_tokens=False)
    assert all(part in text for part in (*library.files, "A topic."))


def test_batches_cover_an_epoch_once_and_continue_anywhere() -> None:
    def make(number: int) -> samples.Tokens:
        return np.arange(103, dtype=np.uint16) + 1000 * number

    def batches(position: Position | None = None) -> Batches:
        return Batches(make, length=10, ahead=3, rows=2, seed=7, position=position)

    one = batches()
    rows = iter(one)
    epoch = [next(rows) for _ in range(5)]
    firsts = sorted(int(row[0]) for batch in epoch for row in batch)
    assert firsts == list(range(0, 100, 10))
    assert all(row.tolist() == list(range(row[0], row[0] + 13)) for batch in epoch for row in batch)
    following = [next(rows).tolist() for _ in range(3)]
    assert following[0][0][0] >= 1000
    again = iter(batches(Position(0, 8)))
    assert next(again).tolist() == epoch[4].tolist()
    assert [next(again).tolist() for _ in range(3)] == following


def test_too_little_text_is_refused() -> None:
    small = Batches(lambda _: np.zeros(20, np.uint16), length=10, ahead=3, rows=2, seed=0)
    with pytest.raises(ConfigError, match="too few"):
        next(iter(small))


def test_cut_documents_are_the_same_text(
    library: SampleLibrary, vocabulary: NanoVocabulary
) -> None:
    """Their tokens differ where a prompt would end."""
    rng = random.Random(0)
    texts = [definition.source for definition in library.definitions] * 20
    cuts = [samples.cut_of(rng, text) for text in texts]
    for text, n, tokens in zip(
        texts, cuts, samples.encode_cut(vocabulary, texts, cuts), strict=True
    ):
        assert vocabulary.engine.decode(tokens.tolist()) == text
        assert not n or text[:n].rstrip(" ").endswith("\n")
    assert all(cuts)
    assert samples.cut_of(rng, "pass\n") == 0
    plain, (cut,) = (
        next(iter(vocabulary.encode(["x:\n    y\n"]))),
        samples.encode_cut(vocabulary, ["x:\n    y\n"], [3]),
    )
    assert plain != cut.tolist()
