"""Vocabularies of a checkpoint: tokenizer.json of type BPE (byte-level, `gpt2`; or SentencePiece's
merges, `llama`) or Unigram, vocab.json with merges.txt, and tokenizer.model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....core.errors import FileFormatError, ModelError
from ....core.gguf.printable import printable
from ....core.tokenizer.bpe import BYTE_CHARS
from ....core.tokenizer.vocabulary import Kind
from ...checkpoint import ModelCheckpoint
from .pre_detection import choose_pre
from .sentencepiece import BPE, parse_proto
from .tiktoken_ranks import RANKS, read_ranks
from .tokenizer_traits import TokenizerTraits
from .vocab_files import ADDED_SCORE, SPACE_MARK, CheckpointVocab, TokenizerFiles

DEFINITION: Final = "tokenizer.json"
PROTO: Final = "tokenizer.model"


def read_vocab(
    checkpoint: ModelCheckpoint,
    files: TokenizerFiles,
    traits: TokenizerTraits,
    n_rows: int,
    pre: str | None,
) -> CheckpointVocab:
    """The vocabulary of the files that decide. `pre`: tokenizer.ggml.pre, where it is given."""
    decoding = [*files.parts("pre_tokenizer"), *files.parts("decoder")]
    if files.definition and any(part.get("type") == "ByteLevel" for part in decoding):
        if files.model.get("type", "BPE") != "BPE":
            kind = printable(files.model.get("type"))
            raise files.error(DEFINITION, f"model type {kind}, not BPE")
        return _read_byte_level(files, n_rows, pre, traits.pre)
    if traits.model == "gemma4" and files.definition:
        return _read_plain(files, n_rows, traits)
    unreadable = None
    if PROTO in checkpoint.place.names():
        try:
            return _read_proto(checkpoint, files, n_rows)
        except FileFormatError as error:
            if not files.definition:
                raise
            unreadable = f"{error}; tokenizer.json is taken"
    if not files.definition and (ranks := checkpoint.text(RANKS)) is not None:
        return read_ranks(files, ranks, n_rows, pre or traits.pre or "default")
    if not files.definition:
        return _read_slow(checkpoint, files, n_rows, pre or traits.pre or "llama-bpe")
    vocab = _read_definition(files, n_rows)
    if unreadable is not None:
        vocab.notes.append(unreadable)
    return vocab


def _read_byte_level(
    files: TokenizerFiles, n_rows: int, pre: str | None, usual: str = ""
) -> CheckpointVocab:
    merges = _merges(files)
    pieces = {token_id: (text, int(Kind.NORMAL), 0.0) for text, token_id in _vocab(files).items()}
    out = CheckpointVocab.of("gpt2", pieces, files, n_rows, DEFINITION)
    out.merges = [" ".join(pair) for pair in merges]
    known = set(out.tokens)
    for left, right in merges:
        lacking = next((t for t in (left, right, left + right) if t not in known), None)
        if lacking is not None:
            merge = printable(f"{left} {right}")
            what = f"merge {merge} needs {printable(lacking)}, which is no token"
            raise files.error(DEFINITION, what)
    out.pre = choose_pre(files, pre, usual, out.notes)
    return out


def _read_slow(
    checkpoint: ModelCheckpoint, files: TokenizerFiles, n_rows: int, pre: str
) -> CheckpointVocab:
    """vocab.json and merges.txt, as they were before tokenizer.json."""
    vocab, text = checkpoint.json("vocab.json"), checkpoint.text("merges.txt")
    if vocab is None or text is None:
        raise ModelError(
            f"{checkpoint.label} has no tokenizer (tokenizer.json, tokenizer.model, or "
            "vocab.json with merges.txt); a GGUF file needs one: copy it from the original"
        )
    lines = [line for line in text.split("\n")[text.startswith("#version") :] if line.strip()]
    files.definition = {
        "model": {"type": "BPE", "vocab": vocab, "merges": lines},
        "pre_tokenizer": {"type": "ByteLevel"},
    }
    return _read_byte_level(files, n_rows, pre)


def _read_plain(files: TokenizerFiles, n_rows: int, traits: TokenizerTraits) -> CheckpointVocab:
    """Merges over plain characters, with bytes to fall back to: readers go by rank, not score."""
    if files.model.get("type", "BPE") != "BPE" or not files.model.get("byte_fallback"):
        raise files.error(DEFINITION, "not a BPE model with bytes to fall back to")
    merges = _merges(files, keep_spaces=True)
    pieces = {
        token_id: (text, _spm_kind(text, None), ADDED_SCORE)
        for text, token_id in _vocab(files).items()
    }
    out = CheckpointVocab.of(traits.model, pieces, files, n_rows, DEFINITION)
    for token_id, text in enumerate(out.tokens):
        if text in traits.shown:
            out.kinds[token_id] = int(Kind.USER_DEFINED)
    out.merges = [" ".join(pair) for pair in merges]
    out.add_space_prefix, out.pre = False, None
    return out


def _read_definition(files: TokenizerFiles, n_rows: int) -> CheckpointVocab:
    kind = files.model.get("type")
    if kind == "Unigram":
        return _read_unigram(files, n_rows)
    if kind in ("BPE", None) and files.model.get("byte_fallback"):
        return _read_merged(files, n_rows)
    what = "neither byte-level nor with bytes to fall back to: GGUF has none"
    raise files.error(DEFINITION, f"a {printable(kind)} model, {what}")


def _read_merged(files: TokenizerFiles, n_rows: int) -> CheckpointVocab:
    """SentencePiece's vocabulary as merges. A token's score is the rank of what makes it."""
    vocab, merges = _vocab(files), _merges(files)
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    unknown = files.model.get("unk_token")
    pieces = {}
    for text, token_id in vocab.items():
        # What no merge makes comes last: a reader of scores would merge it first otherwise.
        rank = ranks.get(text, len(merges) + 1 if len(text) > 1 else 0)
        pieces[token_id] = (text, _spm_kind(text, unknown), -float(rank))
    out = CheckpointVocab.of("llama", pieces, files, n_rows, DEFINITION)
    out.add_space_prefix = _adds_space(files)
    return out


def _read_unigram(files: TokenizerFiles, n_rows: int) -> CheckpointVocab:
    listed = files.model.get("vocab")
    if not isinstance(listed, list) or not all(_is_piece(entry) for entry in listed):
        raise files.error(DEFINITION, "the Unigram vocabulary is not a list of texts with scores")
    at = files.model.get("unk_id")
    unknown = listed[at][0] if type(at) is int and at < len(listed) else None
    pieces = {
        i: (text, _spm_kind(text, unknown), float(score)) for i, (text, score) in enumerate(listed)
    }
    out = CheckpointVocab.of("llama", pieces, files, n_rows, DEFINITION)
    out.add_space_prefix = _adds_space(files)
    out.notes.append(
        "a Unigram vocabulary: readers of GGUF merge by its scores, some texts are cut differently"
    )
    return out


def _read_proto(checkpoint: ModelCheckpoint, files: TokenizerFiles, n_rows: int) -> CheckpointVocab:
    source = checkpoint.place.open(PROTO)
    try:
        proto = parse_proto(bytes(source.read(0, source.size)), source.label)
    finally:
        source.close()
    vocab = CheckpointVocab.of("llama", dict(enumerate(proto.pieces)), files, n_rows, PROTO)
    vocab.add_space_prefix = _adds_space(files) if files.definition else proto.adds_space
    setting = files.settings.get("add_prefix_space")
    if isinstance(setting, bool):
        vocab.add_space_prefix = setting
    if proto.algorithm != BPE:
        vocab.notes.append(
            "tokenizer.model is not of type BPE: GGUF's readers merge by its scores all the same"
        )
    return vocab


def _adds_space(files: TokenizerFiles) -> bool:
    for part in files.parts("normalizer"):
        if part.get("type") == "Prepend" and part.get("prepend") == SPACE_MARK:
            return True
    for part in files.parts("pre_tokenizer"):
        if part.get("type") == "Metaspace":
            default = "always" if part.get("add_prefix_space") else "never"
            return part.get("prepend_scheme", default) in ("always", "first")
    return False


def _spm_kind(text: str, unknown: Any) -> int:
    if text == unknown:
        return int(Kind.UNKNOWN)
    is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
    return int(Kind.BYTE if is_byte else Kind.NORMAL)


def _is_piece(entry: Any) -> bool:
    return (
        isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        and type(entry[1]) in (int, float) and entry[1] == entry[1]
    )  # fmt: skip


def _vocab(files: TokenizerFiles) -> Mapping[str, int]:
    found = files.model.get("vocab")
    if not isinstance(found, dict) or any(type(n) is not int or n < 0 for n in found.values()):
        raise files.error(DEFINITION, "the BPE vocabulary is not an object of texts and ids")
    if len(set(found.values())) != len(found):
        raise files.error(DEFINITION, "two texts of the vocabulary have the same id")
    return found


def _merges(files: TokenizerFiles, *, keep_spaces: bool = False) -> list[tuple[str, str]]:
    """Merges, which are "left right", or pairs since transformers 4.45."""
    found = files.model.get("merges")
    out: list[tuple[str, str]] = []
    for merge in found if isinstance(found, list) else []:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or not all(isinstance(part, str) for part in pair):
            what = f"merge {len(out)} is {printable(merge)}, not two texts"
            raise files.error(DEFINITION, what)
        if keep_spaces:
            out.append((pair[0], pair[1]))
            continue
        # A space inside is one of the byte alphabet that was not mapped.
        out.append((pair[0].replace(" ", BYTE_CHARS[32]), pair[1].replace(" ", BYTE_CHARS[32])))
    return out
