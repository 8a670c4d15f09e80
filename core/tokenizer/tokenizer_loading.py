"""From GGUF metadata to a tokenizer.

Takes any mapping of full keys. Every fault of a hostile file raises one line that names the key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Mapping

from ..errors import FileFormatError, ModelError
from .algorithm import Algorithm
from .bpe import ByteLevelBpe, PlainBpe
from .pretokenizers import find_pre_tokenizer
from .special import SpecialTokens
from .spm import SentencePiece
from .tokenizer import Tokenizer, TokenizerInfo
from .vocabulary import (
    PREFIX,
    Kind,
    Vocabulary,
    find_flag,
    find_id,
    find_text,
    load_vocabulary,
    read_numbers,
    read_texts,
)

_log = logging.getLogger(__name__)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")  # phi-3's special tokens that strip nothing
_SUPPORTED = "gpt2 (byte-level BPE), llama (SentencePiece), gemma4"


def load_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    model = find_text(metadata, PREFIX + "model")
    if model is None:
        raise ModelError(f"{PREFIX}model is missing: the file holds no tokenizer")
    if model not in ("gpt2", "llama", "gemma4"):
        raise ModelError(f"{PREFIX}model is {model[:60]!r}; supported are {_SUPPORTED}")
    pre = _find_pre(metadata, model)
    vocabulary = load_vocabulary(metadata)
    _check_text(vocabulary)
    specials = SpecialTokens(vocabulary, _strips_right(metadata, vocabulary))
    info = _read_info(metadata, model, pre, len(vocabulary.tokens))
    return Tokenizer(info, vocabulary, specials, _algorithm(metadata, info, vocabulary))


def _find_pre(metadata: Mapping[str, object], model: str) -> str:
    """Only BPE of model gpt2 has a choice; a SentencePiece file may name anything."""
    pre = find_text(metadata, PREFIX + "pre")
    if model == "llama":
        return "default"
    if model == "gemma4":
        return "gemma4"
    if pre is None:
        _log.warning("%spre is missing: an old file; text may be split differently", PREFIX)
        return "default"
    find_pre_tokenizer(pre)
    return pre


def _check_text(vocabulary: Vocabulary) -> None:
    """Raises if a byte token names no byte or a text is not valid Unicode."""
    for token_id in vocabulary.ids_of(Kind.BYTE):
        text = vocabulary.tokens[token_id]
        if not _BYTE_TOKEN.fullmatch(text):
            raise FileFormatError(
                f"{PREFIX}tokens: id {token_id} is of kind byte, but is {text[:40]!r}"
            )
    try:
        "".join(vocabulary.tokens).encode()
    except UnicodeEncodeError:
        raise FileFormatError(f"{PREFIX}tokens: a text is not valid Unicode") from None


def _strips_right(metadata: Mapping[str, object], vocabulary: Vocabulary) -> Container[int]:
    """Phi-3's tokenizer has it for most special tokens; GGUF has no key for it, so llama.cpp
    goes by the name of the model."""
    name = (find_text(metadata, "general.name") or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return ()
    keeping = {vocabulary.index.get(text) for text in _KEEP_SPACE}
    return set(vocabulary.special_ids()) - keeping


def _read_info(
    metadata: Mapping[str, object], model: str, pre: str, n_tokens: int
) -> TokenizerInfo:
    bos_id = find_id(metadata, "bos", n_tokens)
    eos_id = find_id(metadata, "eos", n_tokens)
    if model == "llama":  # SentencePiece's own numbers, where the file has none
        bos_id = 1 if bos_id is None and n_tokens > 1 else bos_id
        eos_id = 2 if eos_id is None and n_tokens > 2 else eos_id
    add_bos = find_flag(metadata, "add_bos_token")
    if add_bos is None:
        add_bos = model == "llama" or find_pre_tokenizer(pre).add_bos
    if find_pre_tokenizer(pre).is_gemma:
        add_bos = True  # files have false, but the model needs it
    add_eos = bool(find_flag(metadata, "add_eos_token"))
    for flag, token_id, name in ((add_bos, bos_id, "bos"), (add_eos, eos_id, "eos")):
        if flag and token_id is None:
            raise ModelError(f"{PREFIX}{name}_token_id is missing, but every text needs it")
    return TokenizerInfo(model, pre, bos_id, eos_id, add_bos, add_eos)


def _algorithm(
    metadata: Mapping[str, object], info: TokenizerInfo, vocabulary: Vocabulary
) -> Algorithm:
    if info.model == "llama":
        return _sentence_piece(metadata, vocabulary)
    merges = read_texts(metadata, PREFIX + "merges")
    rule = find_pre_tokenizer(info.pre)
    make = ByteLevelBpe if rule.reads_bytes else PlainBpe
    return make(vocabulary, merges, rule)


def _sentence_piece(metadata: Mapping[str, object], vocabulary: Vocabulary) -> SentencePiece:
    n_tokens = len(vocabulary.tokens)
    scores = read_numbers(metadata, PREFIX + "scores", n_tokens, "iuf")
    if scores is None:
        raise FileFormatError(f"{PREFIX}scores is missing")
    unknown_id = find_id(metadata, "unknown", n_tokens)
    adds_space = find_flag(metadata, "add_space_prefix")
    return SentencePiece(
        vocabulary,
        scores,
        0 if unknown_id is None else unknown_id,
        True if adds_space is None else adds_space,
    )
