"""Everything below `tokenizer.`: which files decide, then the keys in llama.cpp's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....core.errors import FileFormatError, ModelError
from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ....core.tokenizer.vocabulary import PREFIX
from ...checkpoint import Checkpoint
from . import bpe
from .files import TokenizerFiles
from .model import Vocab, place
from .sentencepiece import BPE, parse_proto
from .special import ending_keys, special_keys
from .template import template_keys
from .verify import compare

_MODEL_FILE = "tokenizer.model"


def tokenizer_keys(
    checkpoint: Checkpoint, architecture: str, n_rows: int, pre: str | None
) -> tuple[dict[str, Any], list[str]]:
    """And notes. `n_rows`: of the embeddings; each gets a token."""
    files = TokenizerFiles.read(checkpoint)
    has_definition = bool(files.definition)
    vocab = _read_vocab(checkpoint, files, architecture, n_rows, pre)
    if pre is not None and vocab.model != "gpt2":
        vocab.notes.append("--pre is for byte-level BPE; this tokenizer is SentencePiece's")
    keys: dict[str, Any] = {
        f"{PREFIX}model": vocab.model,
        f"{PREFIX}pre": vocab.pre,
        f"{PREFIX}tokens": vocab.tokens,
    }
    if vocab.scores is not None:
        scores = np.array(vocab.scores, np.float32)
        keys[f"{PREFIX}scores"] = Typed(ValueType.ARRAY, scores, ValueType.F32)
    kinds = np.array(vocab.kinds, np.int32)
    keys[f"{PREFIX}token_type"] = Typed(ValueType.ARRAY, kinds, ValueType.I32)
    if vocab.merges is not None:
        keys[f"{PREFIX}merges"] = Typed(ValueType.ARRAY, vocab.merges, ValueType.STRING)
    keys |= special_keys(files, vocab)
    keys |= ending_keys(files, vocab, keys)
    if vocab.add_space_prefix is not None:
        keys[f"{PREFIX}add_space_prefix"] = vocab.add_space_prefix
    keys |= template_keys(checkpoint, files, vocab.notes)
    if has_definition:
        plain = {k: v.value if isinstance(v, Typed) else v for k, v in keys.items()}
        text = checkpoint.text("tokenizer.json") or ""
        vocab.notes += compare(plain, text, checkpoint.label)
    return keys, vocab.notes


def _read_vocab(
    checkpoint: Checkpoint,
    files: TokenizerFiles,
    architecture: str,
    n_rows: int,
    pre: str | None,
) -> Vocab:
    if files.definition and bpe.is_byte_level(files):
        if files.model.get("type", "BPE") != "BPE":
            raise files.error(
                bpe.SOURCE, f"model type {printable(files.model.get('type'))}, not BPE"
            )
        return bpe.read_byte_level(files, n_rows, pre)
    unreadable = None
    if _MODEL_FILE in checkpoint.place.names():
        try:
            return _read_proto(checkpoint, files, n_rows)
        except FileFormatError as error:
            if not files.definition:
                raise
            unreadable = f"{error}; tokenizer.json is taken"
    if not files.definition:
        default = pre or ("qwen2" if architecture.startswith("qwen") else "llama-bpe")
        found = bpe.read_slow(checkpoint, files, n_rows, default)
        if found is None:
            raise ModelError(
                f"{checkpoint.label} has no tokenizer (tokenizer.json, tokenizer.model, or "
                "vocab.json with merges.txt); a GGUF file needs one: copy it from the original"
            )
        return found
    vocab = _read_definition(files, n_rows)
    if unreadable is not None:
        vocab.notes.append(unreadable)
    return vocab


def _read_definition(files: TokenizerFiles, n_rows: int) -> Vocab:
    kind = files.model.get("type")
    if kind == "Unigram":
        return bpe.read_unigram(files, n_rows)
    if kind in ("BPE", None) and files.model.get("byte_fallback"):
        return bpe.read_merged(files, n_rows)
    raise files.error(
        bpe.SOURCE,
        f"a {printable(kind)} model, neither byte-level nor with bytes to fall back to: GGUF has "
        "none",
    )


def _read_proto(checkpoint: Checkpoint, files: TokenizerFiles, n_rows: int) -> Vocab:
    source = checkpoint.place.open(_MODEL_FILE)
    try:
        proto = parse_proto(bytes(source.read(0, source.size)), source.label)
    finally:
        source.close()
    notes: list[str] = []
    pieces = dict(enumerate(proto.pieces))
    tokens, kinds, scores = place(pieces, files, n_rows, _MODEL_FILE, notes)
    vocab = Vocab("llama", tokens, kinds, scores=scores, notes=notes)
    vocab.add_space_prefix = bpe.adds_space(files) if files.definition else proto.adds_space
    told = files.settings.get("add_prefix_space")
    if isinstance(told, bool):
        vocab.add_space_prefix = told
    if proto.algorithm != BPE:
        vocab.notes.append(
            "tokenizer.model is not of type BPE: GGUF's readers merge by its scores all the same"
        )
    return vocab
