"""The tokens of a GGUF, checked: texts, kinds, special ids, and which ids end a generation.

Kinds and special ids are corrected by the texts of well-known tokens, as llama.cpp does, because
many files have them wrong. Nothing here knows how text becomes tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from ..errors import FileFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFIX = "tokenizer.ggml."
_MAX_TOKEN_CHARS = 1 << 16
_NO_ID = 0xFFFFFFFF  # -1 in an unsigned key: some converters write it for "none"


class Kind(IntEnum):
    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


HIDDEN = frozenset((Kind.UNKNOWN, Kind.CONTROL))

# Texts that llama.cpp (src/llama-vocab.cpp) treats as special tokens, whatever kind the file gives
# them.
_EOG_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "[e~[",
    "<|ifm|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
_FIM_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>",
        "<PRE>", "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>",
        "<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>",
        "<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
_ENDING_FIM = ("fim_pad", "fim_rep", "fim_sep")
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss


class Vocabulary(Struct, frozen=True):
    tokens: list[str]
    index: dict[str, int]
    kinds: bytearray  # one Kind per token
    eog_ids: frozenset[int]
    fim_ids: Mapping[str, int]  # by what they stand for: "pre", "suf", "mid", "pad", "rep", "sep"

    def special_ids(self) -> list[int]:
        """Tokens found in text before anything else, in order of id."""
        return self.ids_of(Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED)

    def ids_of(self, *kinds: Kind) -> list[int]:
        array = np.frombuffer(self.kinds, np.uint8)
        found: list[int] = np.flatnonzero(np.isin(array, kinds)).tolist()
        return found


def load_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    tokens = _read_tokens(metadata)
    index = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(index) != len(tokens):
        _refuse_duplicates(tokens)
    kinds = _read_kinds(metadata, len(tokens))
    fim = _mark_fim(metadata, index, kinds)
    ending = {fim[name] for name in _ENDING_FIM if name in fim}
    for text in _EOG_TEXTS:
        if text in index:
            kinds[index[text]] = Kind.CONTROL
            ending.add(index[text])
    for text in _ALWAYS_SHOWN:
        if text in index:
            kinds[index[text]] = Kind.USER_DEFINED
    for name in ("eos", "eot", "eom"):
        token_id = find_id(metadata, name, len(tokens))
        if token_id is not None:
            ending.add(token_id)
    _drop_false_endings(index, kinds, ending)
    fim_ids = {name.removeprefix("fim_"): token_id for name, token_id in fim.items()}
    return Vocabulary(tokens, index, kinds, frozenset(ending), fim_ids)


def find_id(metadata: Mapping[str, object], name: str, n_tokens: int) -> int | None:
    """The token id under `<name>_token_id`; None when absent."""
    key = f"{PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise FileFormatError(f"{key}: expected a token id, got {_shown(value)}")
    if value in (_NO_ID, -1):
        return None
    if not 0 <= value < n_tokens:
        raise FileFormatError(f"{key} is {value}, but the vocabulary has {n_tokens} tokens")
    return value


def find_flag(metadata: Mapping[str, object], name: str) -> bool | None:
    value = metadata.get(PREFIX + name)
    if value is None or isinstance(value, bool):
        return value
    raise FileFormatError(f"{PREFIX}{name}: expected true or false, got {_shown(value)}")


def find_text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise FileFormatError(f"{key}: expected a text, got {_shown(value)}")


def read_texts(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise FileFormatError(f"{key} is missing")
    # An empty array has no element type worth the name: a reader may give it as numbers.
    if not isinstance(value, list) and _is_empty(value):
        return []
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise FileFormatError(f"{key}: expected an array of texts")
    return value


def read_numbers(
    metadata: Mapping[str, object], key: str, length: int, kinds: str
) -> NDArray[Any] | None:
    """The array under `key`, of a numpy dtype kind in `kinds`; None when absent."""
    value = metadata.get(key)
    if value is None:
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise FileFormatError(f"{key}: expected an array of numbers") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise FileFormatError(f"{key}: expected an array of numbers")
    if len(array) != length:
        raise FileFormatError(f"{key} has {len(array)} entries for {length} tokens")
    return array


def _is_empty(value: object) -> bool:
    return isinstance(value, np.ndarray | tuple) and len(value) == 0


def _read_tokens(metadata: Mapping[str, object]) -> list[str]:
    key = PREFIX + "tokens"
    tokens = read_texts(metadata, key)
    if not tokens:
        raise FileFormatError(f"{key} is empty")
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN_CHARS:
        raise FileFormatError(f"{key}: a token has {longest} characters, at most 65536 can be")
    if "" in tokens:  # llama.cpp's spelling, so that ids found by text agree
        tokens = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(tokens)]
    return tokens


def _refuse_duplicates(tokens: list[str]) -> None:
    seen: dict[str, int] = {}
    for token_id, text in enumerate(tokens):
        if text in seen:
            raise FileFormatError(
                f"{PREFIX}tokens: ids {seen[text]} and {token_id} are both {_shown(text)}"
            )
        seen[text] = token_id


def _read_kinds(metadata: Mapping[str, object], n_tokens: int) -> bytearray:
    array = read_numbers(metadata, PREFIX + "token_type", n_tokens, "iu")
    if array is None:
        return bytearray([Kind.NORMAL]) * n_tokens
    return bytearray(np.where(np.isin(array, list(Kind)), array, 0).astype(np.uint8).tobytes())


def _mark_fim(
    metadata: Mapping[str, object], index: Mapping[str, int], kinds: bytearray
) -> dict[str, int]:
    """Fill-in-the-middle tokens, by key or else by text."""
    found = {}
    for name, texts in _FIM_TEXTS.items():
        token_id = find_id(metadata, name, len(kinds))
        if token_id is None:
            token_id = next((index[text] for text in texts if text in index), None)
            if token_id is None:
                continue
            kinds[token_id] = Kind.CONTROL
        found[name] = token_id
    return found


def _drop_false_endings(index: Mapping[str, int], kinds: bytearray, ending: set[int]) -> None:
    """Two families have an ending text in their vocabulary that does not end anything."""

    def ends(*texts: str) -> bool:
        return any(index.get(text) in ending for text in texts)

    def drop(text: str, kind: Kind) -> None:
        ending.discard(index[text])
        kinds[index[text]] = kind

    # gpt-oss closes each channel with <|end|>, solar-open each thought.
    if ends("<|end|>") and ends("<|call|>", "<|calls|>") and ends("<|return|>", "<|flush|>"):
        drop("<|end|>", Kind.USER_DEFINED)
    if ends("<|tool_response>") and ends("</s>"):  # gemma4
        drop("</s>", Kind.NORMAL)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."
