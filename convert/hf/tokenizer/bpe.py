"""tokenizer.json of type BPE: byte-level (`gpt2`), or SentencePiece's merges (`llama`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.gguf.printable import printable
from ....core.tokenizer.bpe import BYTE_CHARS
from ....core.tokenizer.vocabulary import Kind
from ...checkpoint import Checkpoint
from .files import TokenizerFiles
from .model import SPACE_MARK, Vocab, place
from .pre import choose_pre

SOURCE = "tokenizer.json"


def is_byte_level(files: TokenizerFiles) -> bool:
    parts = [*files.parts("pre_tokenizer"), *files.parts("decoder")]
    return any(part.get("type") == "ByteLevel" for part in parts)


def read_byte_level(files: TokenizerFiles, n_rows: int, pre: str | None) -> Vocab:
    vocab, merges = _vocab(files), _merges(files)
    pieces = {token_id: (text, int(Kind.NORMAL), 0.0) for text, token_id in vocab.items()}
    notes: list[str] = []
    tokens, kinds, _ = place(pieces, files, n_rows, SOURCE, notes)
    merged = [" ".join(pair) for pair in merges]
    out = Vocab("gpt2", tokens, kinds, merges=merged, notes=notes)
    _check_merges(out, merges, files)
    out.pre = choose_pre(files, pre, out.notes)
    return out


def read_slow(checkpoint: Checkpoint, files: TokenizerFiles, n_rows: int, pre: str) -> Vocab | None:
    """vocab.json and merges.txt, as they were before tokenizer.json."""
    vocab, text = checkpoint.json("vocab.json"), checkpoint.text("merges.txt")
    if vocab is None or text is None:
        return None
    lines = [line for line in text.split("\n")[text.startswith("#version") :] if line.strip()]
    files.definition = {
        "model": {"type": "BPE", "vocab": vocab, "merges": lines},
        "pre_tokenizer": {"type": "ByteLevel"},
    }
    return read_byte_level(files, n_rows, pre)


def read_merged(files: TokenizerFiles, n_rows: int) -> Vocab:
    """SentencePiece's vocabulary as merges. A token's score is the rank of what makes it."""
    vocab, merges = _vocab(files), _merges(files)
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    unknown = files.model.get("unk_token")
    pieces = {}
    for text, token_id in vocab.items():
        kind = _spm_kind(text, unknown)
        # What no merge makes comes last: a reader of scores would merge it first otherwise.
        rank = ranks.get(text, len(merges) + 1 if len(text) > 1 else 0)
        pieces[token_id] = (text, int(kind), -float(rank))
    notes: list[str] = []
    tokens, kinds, scores = place(pieces, files, n_rows, SOURCE, notes)
    out = Vocab("llama", tokens, kinds, scores=scores, notes=notes)
    out.add_space_prefix = adds_space(files)
    return out


def read_unigram(files: TokenizerFiles, n_rows: int) -> Vocab:
    listed = files.model.get("vocab")
    if not isinstance(listed, list) or not all(_is_piece(entry) for entry in listed):
        raise files.error(SOURCE, "the Unigram vocabulary is not a list of texts with scores")
    unknown_id = files.model.get("unk_id")
    unknown = (
        listed[unknown_id][0] if type(unknown_id) is int and unknown_id < len(listed) else None
    )
    pieces = {
        i: (text, int(_spm_kind(text, unknown)), float(score))
        for i, (text, score) in enumerate(listed)
    }
    notes: list[str] = []
    tokens, kinds, scores = place(pieces, files, n_rows, SOURCE, notes)
    out = Vocab("llama", tokens, kinds, scores=scores, notes=notes)
    out.add_space_prefix = adds_space(files)
    out.notes.append(
        "a Unigram vocabulary: readers of GGUF merge by its scores, some texts are cut differently"
    )
    return out


def adds_space(files: TokenizerFiles) -> bool:
    for part in files.parts("normalizer"):
        if part.get("type") == "Prepend" and part.get("prepend") == SPACE_MARK:
            return True
    for part in files.parts("pre_tokenizer"):
        if part.get("type") == "Metaspace":
            scheme = part.get(
                "prepend_scheme", "always" if part.get("add_prefix_space") else "never"
            )
            return scheme in ("always", "first")
    return False


def _spm_kind(text: str, unknown: Any) -> Kind:
    if text == unknown:
        return Kind.UNKNOWN
    is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
    return Kind.BYTE if is_byte else Kind.NORMAL


def _is_piece(entry: Any) -> bool:
    return (
        isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        and type(entry[1]) in (int, float) and entry[1] == entry[1]
    )  # fmt: skip


def _vocab(files: TokenizerFiles) -> Mapping[str, int]:
    found = files.model.get("vocab")
    if not isinstance(found, dict) or any(type(n) is not int or n < 0 for n in found.values()):
        raise files.error(SOURCE, "the BPE vocabulary is not an object of texts and ids")
    if len(set(found.values())) != len(found):
        raise files.error(SOURCE, "two texts of the vocabulary have the same id")
    return found


def _merges(files: TokenizerFiles) -> list[tuple[str, str]]:
    """As "left right", or since transformers 4.45 as pairs."""
    found = files.model.get("merges")
    out: list[tuple[str, str]] = []
    for merge in found if isinstance(found, list) else []:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(p, str) for p in pair)
        ):
            raise files.error(SOURCE, f"merge {len(out)} is {printable(merge)}, not two texts")
        # A space inside is one of the byte alphabet that was not mapped.
        out.append((pair[0].replace(" ", BYTE_CHARS[32]), pair[1].replace(" ", BYTE_CHARS[32])))
    return out


def _check_merges(vocab: Vocab, merges: list[tuple[str, str]], files: TokenizerFiles) -> None:
    known = set(vocab.tokens)
    for left, right in merges:
        lacking = next((t for t in (left, right, left + right) if t not in known), None)
        if lacking is not None:
            raise files.error(
                SOURCE,
                f"merge {printable(f'{left} {right}')} needs {printable(lacking)}, which is no "
                "token",
            )
