"""Byte-pair encoding by merge rank, done by the `tokenizers` library.

Two alphabets: GPT-2's, where each byte is one printable character, and plain text with U+2581 for
the space and `<0xXX>` tokens for characters that the vocabulary lacks (gemma4 and its like).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import FileFormatError, ModelError
from .algorithm import Algorithm
from .pretokenizers import PreTokenizer
from .vocabulary import PREFIX, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Split

SPACE_MARK = "\u2581"
_LONG = 1 << 12  # characters


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where printable, else the next from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_CHARS = _byte_alphabet()
_CHAR_BYTES = {char: bytes([byte]) for byte, char in enumerate(BYTE_CHARS)}


class ByteLevelBpe(Algorithm):
    def __init__(self, vocabulary: Vocabulary, merges: list[str], rule: PreTokenizer) -> None:
        from tokenizers import pre_tokenizers

        ids = vocabulary.index
        self._n_tokens = len(ids)
        missing = [char for char in BYTE_CHARS if char not in ids]
        if missing:
            # A byte without a token yields nothing, but it keeps its neighbours apart: give it
            # an id past the end, and drop that afterwards.
            ids = {**ids, **{char: self._n_tokens + n for n, char in enumerate(missing)}}
        self._drops = bool(missing)
        self._engine = _engine(ids, merges, ignore_merges=rule.ignore_merges)
        to_chars = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._engine.pre_tokenizer = pre_tokenizers.Sequence([*_cuts(rule), to_chars])

    def encode(self, text: str, after_special: bool) -> list[int]:
        ids = _ids(self._engine, text)
        if self._drops:
            return [token_id for token_id in ids if token_id < self._n_tokens]
        return ids

    def spell(self, token: str) -> bytes:
        # A character outside the alphabet can only be meant as itself.
        return b"".join(_CHAR_BYTES.get(char) or char.encode() for char in token)


class PlainBpe(Algorithm):
    def __init__(self, vocabulary: Vocabulary, merges: list[str], rule: PreTokenizer) -> None:
        from tokenizers import pre_tokenizers

        ids = vocabulary.index
        if not all(f"<0x{byte:02X}>" in ids for byte in range(256)):
            raise ModelError(f"{PREFIX}tokens lacks some of the byte tokens <0x00> ... <0xFF>")
        self._marks_spaces = rule.marks_spaces
        self._newlines = {text: ids[text] for text in ids if rule.is_gemma and not text.strip("\n")}
        self._engine = _engine(ids, merges, byte_fallback=True)
        self._engine.pre_tokenizer = pre_tokenizers.Sequence(_cuts(rule))

    def encode(self, text: str, after_special: bool) -> list[int]:
        if self._marks_spaces:
            text = text.replace(" ", SPACE_MARK)
        if not self._newlines:
            return _ids(self._engine, text)
        ids: list[int] = []
        for piece in re.findall(r"[^\n]+|\n+", text):
            whole = self._newlines.get(piece)
            ids += _ids(self._engine, piece) if whole is None else (whole,)
        return ids

    def spell(self, token: str) -> bytes:
        return (token.replace(SPACE_MARK, " ") if self._marks_spaces else token).encode()


def _cuts(rule: PreTokenizer) -> list[Split]:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    matches = "removed" if rule.drops_spaces else "isolated"
    return [Split(Regex(pattern), matches) for pattern in rule.patterns]


def _ids(engine: Tokenizer, text: str) -> list[int]:
    if len(text) < _LONG:
        ids: list[int] = engine.encode(text, add_special_tokens=False).ids
        return ids
    # The library gives the interpreter's lock away for batches only.
    (found,) = engine.encode_batch([text], add_special_tokens=False)
    return list(found.ids)


def _engine(
    ids: dict[str, int],
    merges: list[str],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer(_model(ids, _pairs(merges), ignore_merges, byte_fallback))


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    if len(set(merges)) != len(merges):
        merges = list(dict.fromkeys(merges))  # the first of equal ones counts
    bad = next((merge for merge in merges if merge.count(" ") != 1), None)
    if bad is not None:
        raise FileFormatError(f"{PREFIX}merges: {bad[:80]!r} is not two tokens")
    words = " ".join(merges).split(" ") if merges else []  # 3x faster than merge by merge
    return list(zip(words[::2], words[1::2], strict=True))


def _model(
    ids: dict[str, int], pairs: list[tuple[str, str]], ignore_merges: bool, byte_fallback: bool
) -> BPE:
    from tokenizers.models import BPE

    try:
        return BPE(ids, pairs, ignore_merges=ignore_merges, byte_fallback=byte_fallback)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        reason = str(error).removeprefix("Error while initializing BPE: ")
        raise FileFormatError(f"{PREFIX}merges: {' '.join(reason.split())[:200]}") from None
