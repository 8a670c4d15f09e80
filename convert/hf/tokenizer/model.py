"""What a vocabulary is, before it is written: tokens, kinds, and merges or scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....core.gguf.printable import printable
from ....core.tokenizer.vocabulary import Kind
from .files import TokenizerFiles

SPACE_MARK = "\u2581"
ADDED_SCORE = -1000.0
PADDING_SCORE = -10000.0


@dataclass(slots=True)
class Vocab:
    model: str  # tokenizer.ggml.model
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None = None  # of SentencePiece
    merges: list[str] | None = None  # of byte-level BPE
    pre: str = "default"
    add_space_prefix: bool | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def index(self) -> dict[str, int]:
        return {text: n for n, text in enumerate(self.tokens)}


def looks_special(text: str) -> bool:
    """Many checkpoints add control tokens without saying so; llama.cpp goes by their look."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def place(
    pieces: Mapping[int, tuple[str, int, float]],
    files: TokenizerFiles,
    n_rows: int,
    source: str,
    notes: list[str],
) -> tuple[list[str], list[int], list[float]]:
    """Pieces and added tokens by id, holes and padded rows filled: a GGUF has a text per row."""
    if not pieces:
        raise files.error(source, "the vocabulary is empty")
    last = max(pieces)
    if last >= n_rows:
        text = printable(pieces[last][0])
        raise files.error(source, f"token {last} is {text}, but the embeddings have {n_rows} rows")
    tokens = [f"[PAD{i}]" for i in range(n_rows)]
    kinds = [int(Kind.UNUSED)] * n_rows
    scores = [PADDING_SCORE] * n_rows
    for i, (text, kind, score) in pieces.items():
        tokens[i], kinds[i], scores[i] = text, kind, score
    ids = {text: i for i, (text, _, _) in pieces.items()}
    for given, added in files.added.items():
        i = ids.get(added.text, given)  # where the text is a piece, that is the one that is used
        if i >= n_rows:
            notes.append(f"added token {i}, {printable(added.text)}, has no row: left out")
            continue
        kinds[i] = int(_added_kind(added.text, added.special))
        if kinds[i] == Kind.CONTROL and i in pieces and pieces[i][1] == Kind.UNKNOWN:
            kinds[i] = int(Kind.UNKNOWN)
        is_text = kinds[i] == Kind.USER_DEFINED
        tokens[i] = added.text.replace(SPACE_MARK, " ") if is_text else added.text
        scores[i] = pieces[i][2] if i in pieces else ADDED_SCORE
    _check_unique(tokens, kinds, files, source)
    return tokens, kinds, scores


def _added_kind(text: str, special: bool) -> Kind:
    return Kind.CONTROL if special or looks_special(text) else Kind.USER_DEFINED


def _check_unique(tokens: list[str], kinds: list[int], files: TokenizerFiles, source: str) -> None:
    """A text that is there twice is kept where it is used: readers refuse two equal ones."""
    seen: dict[str, int] = {}
    for i, text in enumerate(tokens):
        if text not in seen:
            seen[text] = i
        elif kinds[i] == Kind.UNUSED:
            tokens[i] = f"[UNUSED{i}]"
        else:
            raise files.error(source, f"tokens {seen[text]} and {i} are both {printable(text)}")
