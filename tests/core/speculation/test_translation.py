"""Between two vocabularies not a byte is lost or made up, whatever the tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import n_examples
from support.vocab import byte_characters, tokenizer_metadata

from nextn.core.errors import ConfigError
from nextn.core.speculation.drafters.translation import (
    MAX_OPEN,
    NO_TOKEN,
    DraftedPiece,
    Speller,
    Translation,
    Translator,
)
from nextn.core.speculation.drafters.vocabulary_difference import find_difference
from nextn.core.tokenizer import Tokenizer, load_tokenizer

WORDS = ("then", "hello", "other", "ing", "isle")
SPM_PIECES = ("▁", "▁the", "the", "▁o", "th", "e", "o", "r", "▁hello", "hel", "lo", "é", "▁é", "\n")


def spm() -> dict[str, Any]:
    """SentencePiece: bytes as tokens of a kind of their own, a space before each text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(SPM_PIECES)],
    }


@cache
def tokenizer(name: str) -> Tokenizer:
    made = {
        "common": tokenizer_metadata,
        "words": lambda: tokenizer_metadata(WORDS),
        "bytes": lambda: tokenizer_metadata(()),
        "spm": spm,
    }
    return load_tokenizer(made[name]())


NAMES = ("common", "words", "bytes", "spm")
PAIRS = [(a, b) for a in NAMES for b in NAMES if a != b]


@cache
def translator(target: str, draft: str) -> Translator:
    return Translator(tokenizer(target), tokenizer(draft))


@cache
def plain_tokens(name: str) -> list[int]:
    """Those that spell something."""
    found = tokenizer(name)
    return [token for token in range(found.n_vocab) if found.piece(token)]


def bytes_of(name: str, ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer(name).piece(token) for token in ids)


PIECES_OF_TEXT = st.sampled_from(
    ["the", " the", "hello ", "\n\n  ", "é", "漢字", "🙂", " other", "x" * 70, "'s", "1234", " "]
)
TEXTS = st.lists(PIECES_OF_TEXT, max_size=12).map("".join)


@settings(max_examples=n_examples(150), deadline=None)
@given(st.sampled_from(PAIRS), st.data())
def test_what_the_draft_model_reads_is_the_text(pair: tuple[str, str], data: st.DataObject) -> None:
    """Any tokens, in any portions, broken characters included."""
    target, draft = pair
    known = plain_tokens(target)
    text = data.draw(TEXTS)
    canonical = tokenizer(target).encode(text, add_special=False, continues=True)
    wild = data.draw(st.lists(st.integers(0, len(known) - 1), max_size=25))
    ids = canonical + [known[i] for i in wild] + canonical
    # What stands for a space that encoding puts in front is not of the text.
    ids = [7 if target != "spm" else plain_tokens("spm")[80], *ids]
    reader, sure = Translation(translator(*pair)), list[int]()
    ends = sorted({*data.draw(st.lists(st.integers(1, len(ids)), max_size=6)), len(ids)})
    for end in ends:
        reader.follow(ids[:end])
        read = bytes_of(draft, reader.ids)
        want = bytes_of(target, ids[:end])
        assert read.removeprefix(b" ") == want.removeprefix(b" ")
        assert reader.ids[: len(sure)] == sure
        sure = reader.ids[: reader.n_final]
        assert len(bytes_of(draft, reader.ids[reader.n_final :])) <= MAX_OPEN + 4


@settings(max_examples=n_examples(150), deadline=None)
@given(st.sampled_from(PAIRS), st.data())
def test_a_draft_comes_back_as_whole_tokens_of_its_bytes(
    pair: tuple[str, str], data: st.DataObject
) -> None:
    target, draft = pair
    known = plain_tokens(draft)
    wild = st.lists(st.integers(0, len(known) - 1).map(known.__getitem__), max_size=12)
    text = TEXTS.map(lambda text: tokenizer(draft).encode(text, add_special=False, continues=True))
    drafted = data.draw(st.one_of(wild, text))
    found = translator(*pair)
    pieces = [piece for t in drafted if (piece := found.piece(t, 0.5)) is not None]
    assert len(pieces) == len(drafted)
    ids, chances = found.back(pieces)
    whole = bytes_of(draft, drafted)
    spelled = bytes_of(target, ids)
    assert whole.startswith(spelled)
    assert len(chances) == len(ids)
    assert all(0 < chance <= 1 for chance in chances)
    try:
        whole.decode()
    except UnicodeDecodeError:
        return
    assert spelled == whole


@pytest.mark.parametrize("pair", PAIRS)
def test_only_what_is_new_is_looked_at(pair: tuple[str, str], monkeypatch: Any) -> None:
    """D11, without its price: a long text is not cut again for each token."""
    target, _ = pair
    reader = Translation(translator(*pair))
    ids = tokenizer(target).encode("the other " * 400, add_special=False)
    reader.follow(ids)
    seen: list[int] = []
    encode = Speller.encode

    def count(self: Speller, data: bytes, *, continues: bool) -> list[int]:
        seen.append(len(data))
        return encode(self, data, continues=continues)

    monkeypatch.setattr(Speller, "encode", count)
    for _ in range(20):
        ids = [*ids, ids[5]]
        reader.follow(ids)
    assert sum(seen) < 20 * 3 * MAX_OPEN


@pytest.mark.parametrize("pair", PAIRS)
def test_canonical_text_is_read_canonically(pair: tuple[str, str]) -> None:
    """Cutting it in portions costs nothing."""
    target, draft = pair
    text = "the other hello\n  then it is the end of it all"
    reader = Translation(translator(*pair))
    ids = tokenizer(target).encode(text)
    for end in range(1, len(ids) + 1):
        reader.follow(ids[:end])
    assert reader.ids == tokenizer(draft).encode(text)


def test_special_tokens_are_themselves() -> None:
    """`<|im_end|>` is the same token under another id, and no text."""
    other = tokenizer_metadata(WORDS)
    tokens = other["tokenizer.ggml.tokens"]
    tokens[-3], tokens[-2] = tokens[-2], tokens[-3]
    target, draft = tokenizer("common"), load_tokenizer(other)
    ids = target.encode("<|im_start|>the<|im_end|> the")
    reader = Translation(Translator(target, draft))
    reader.follow(ids)
    assert reader.ids == draft.encode("<|im_start|>the<|im_end|> the")
    start, end = (draft.find_token(f"<|im_{name}|>") for name in ("start", "end"))
    assert start is not None
    assert end is not None
    found = Translator(target, draft)
    pieces = [found.piece(token, 1.0) for token in (start, *draft.encode("the"), end)]
    known = [piece for piece in pieces if piece is not None]
    assert found.back(known)[0] == target.encode("<|im_start|>the<|im_end|>")


def test_a_special_token_that_the_draft_model_lacks_is_text() -> None:
    reader = Translation(translator("common", "spm"))
    reader.follow(tokenizer("common").encode("the<|im_end|>"))
    assert bytes_of("spm", reader.ids).removeprefix(b" ") == b"the<|im_end|>"


def test_chances_of_joined_and_split_tokens() -> None:
    """A token is as sure as all that was drafted for it; its parts share what they came from."""
    found = translator("common", "bytes")
    draft = tokenizer("bytes")
    pieces = [DraftedPiece(draft.piece(token), NO_TOKEN, 0.5) for token in draft.encode("the x")]
    ids, chances = found.back(pieces)
    assert [tokenizer("common").piece(token) for token in ids] == [b"the", b" ", b"x"]
    assert chances == [0.125, 0.5, 0.5]


def test_a_character_that_has_only_begun_is_left_out() -> None:
    found, draft = translator("common", "words"), tokenizer("words")
    euro = draft.encode("x€")
    for n, want in ((1, "x"), (2, "x"), (3, "x"), (4, "x€")):
        pieces = [p for token in euro[:n] if (p := found.piece(token, 1.0)) is not None]
        assert found.back(pieces)[0] == tokenizer("common").encode(want)


def test_a_vocabulary_without_bytes_is_refused() -> None:
    metadata = tokenizer_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[byte_characters().index("a")] = "[gone]"
    metadata["tokenizer.ggml.merges"] = []
    with pytest.raises(ConfigError, match=r"no token for 1 of the 256 bytes \(0x61 for one\)"):
        Translator(tokenizer("common"), load_tokenizer(metadata))


# The rules for sharing ids --------------------------------------------------------------------


def changed(**keys: Any) -> Tokenizer:
    metadata = tokenizer_metadata()
    return load_tokenizer(metadata | {f"tokenizer.ggml.{key}": v for key, v in keys.items()})


def tokens_with(place: int, text: str) -> list[str]:
    tokens: list[str] = list(tokenizer_metadata()["tokenizer.ggml.tokens"])
    tokens[place] = text
    return tokens


def longer(n: int) -> Tokenizer:
    metadata = tokenizer_metadata()
    metadata["tokenizer.ggml.tokens"] += [f"[more{i}]" for i in range(n)]
    metadata["tokenizer.ggml.token_type"] += [5] * n
    return load_tokenizer(metadata)


SAME = [changed(), changed(pre="gpt-2"), longer(128), changed(bos_token_id=3)]
OTHER = [
    (tokenizer("spm"), "of type llama, the target's of type gpt2"),
    (changed(add_bos_token=True, bos_token_id=3), "its BOS token is another"),
    (changed(add_eos_token=True), "its EOS token is another"),
    (longer(129), "641 tokens, the target's 512"),
    (changed(tokens=tokens_with(400, "\x1b[31m")), r"its token 400 is '\\x1b\[31m', the target's"),
]


@pytest.mark.parametrize("draft", SAME)
def test_the_same_vocabulary(draft: Tokenizer) -> None:
    assert find_difference(changed(), draft) is None
    assert find_difference(draft, changed()) is None


@pytest.mark.parametrize(("draft", "said"), OTHER)
def test_another_vocabulary(draft: Tokenizer, said: str) -> None:
    difference = find_difference(changed(), draft)
    assert difference is not None
    assert re.search(said, difference)
