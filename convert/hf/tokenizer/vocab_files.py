"""The files that describe a checkpoint's tokenizer, and the vocabulary that is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from ....core.errors import FileFormatError
from ....core.gguf.printable import printable
from ....core.tokenizer.vocabulary import Kind
from ...checkpoint import ModelCheckpoint

SPACE_MARK = "\u2581"
ADDED_SCORE = -1000.0
PADDING_SCORE = -10000.0

_SCORED = ("llama", "gemma4")
TokenPiece = tuple[str, int, float]  # text, kind, score


class AddedToken(Struct, frozen=True):
    """A token beside the model's own."""

    text: str
    special: bool


class TokenizerFiles(Struct):
    label: str
    definition: dict[str, Any]  # tokenizer.json, {} where there is none
    settings: dict[str, Any]  # tokenizer_config.json
    special_map: dict[str, Any]
    config: dict[str, Any]  # config.json
    generation: dict[str, Any]
    added: dict[int, AddedToken] = field(default_factory=dict)

    @classmethod
    def read(cls, checkpoint: ModelCheckpoint) -> TokenizerFiles:
        def of(name: str) -> dict[str, Any]:
            return checkpoint.json(f"{name}.json") or {}

        described = of("tokenizer"), of("tokenizer_config"), of("special_tokens_map")
        files = cls(checkpoint.label, *described, checkpoint.config, of("generation_config"))
        for text, token_id in of("added_tokens").items():
            files._add(token_id, {"content": text})
        decoder = files.settings.get("added_tokens_decoder")
        for token_id, entry in (decoder if isinstance(decoder, dict) else {}).items():
            files._add(int(token_id) if str(token_id).isdecimal() else token_id, entry)
        listed = files.definition.get("added_tokens")
        for entry in listed if isinstance(listed, list) else []:
            files._add(entry.get("id") if isinstance(entry, Mapping) else None, entry)
        return files

    @property
    def model(self) -> dict[str, Any]:
        """The model of tokenizer.json."""
        found = self.definition.get("model")
        return found if isinstance(found, dict) else {}

    def parts(self, name: str) -> list[dict[str, Any]]:
        """A normalizer, pre-tokenizer or decoder of tokenizer.json, sequences taken apart."""
        return list(_flattened(self.definition.get(name)))

    def configurations(self) -> list[Mapping[str, Any]]:
        """config.json and the configuration of its language model."""
        nested = self.config.get("text_config")
        return [self.config, nested] if isinstance(nested, Mapping) else [self.config]

    def error(self, name: str, what: str) -> FileFormatError:
        return FileFormatError(f"{self.label}: {name}: {what}")

    def _add(self, token_id: Any, entry: Any) -> None:
        text = entry.get("content") if isinstance(entry, Mapping) else None
        if type(token_id) is not int or not 0 <= token_id < 1 << 24 or not isinstance(text, str):
            raise FileFormatError(
                f"{self.label}: an added token is {printable(entry)} with id {printable(token_id)}"
            )
        old = self.added.get(token_id)
        special = bool(entry.get("special", False))
        if old is not None and old.text == text:
            special |= old.special
        self.added[token_id] = AddedToken(text, special)


def _flattened(part: Any) -> Iterator[Any]:
    if not isinstance(part, Mapping):
        return
    names = ("normalizers", "pretokenizers", "decoders", "processors")
    inner = next((part[name] for name in names if name in part), None)
    if isinstance(inner, list):
        for each in inner:
            yield from _flattened(each)
    else:
        yield part


class CheckpointVocab(Struct):
    """A vocabulary before it is written: tokens, kinds, and merges or scores."""

    model: str  # tokenizer.ggml.model
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None = None  # of SentencePiece
    merges: list[str] | None = None  # of byte-level BPE
    pre: str | None = "default"
    add_space_prefix: bool | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        model: str,
        pieces: Mapping[int, TokenPiece],
        files: TokenizerFiles,
        n_rows: int,
        source: str,
    ) -> CheckpointVocab:
        """Pieces and added tokens by id; holes and padded rows get a text, as in every GGUF."""
        if not pieces:
            raise files.error(source, "the vocabulary is empty")
        last = max(pieces)
        if last >= n_rows:
            what = f"token {last} is {printable(pieces[last][0])}"
            raise files.error(source, f"{what}, but the embeddings have {n_rows} rows")
        rows: list[TokenPiece] = [
            pieces.get(i, (f"[PAD{i}]", int(Kind.UNUSED), PADDING_SCORE)) for i in range(n_rows)
        ]
        notes = _place_added(rows, pieces, files)
        tokens, kinds, scores = (list(column) for column in zip(*rows, strict=True))
        _check_unique(tokens, kinds, files, source)
        return cls(model, tokens, kinds, scores if model in _SCORED else None, notes=notes)

    @property
    def index(self) -> dict[str, int]:
        return {text: n for n, text in enumerate(self.tokens)}


def _place_added(
    rows: list[TokenPiece], pieces: Mapping[int, TokenPiece], files: TokenizerFiles
) -> list[str]:
    """Sets the rows of added tokens; returns notes on those without a row."""
    notes: list[str] = []
    ids = {text: i for i, (text, _, _) in pieces.items()}
    for given, added in files.added.items():
        i = ids.get(added.text, given)  # where the text is a piece, that is the one that is used
        if i >= len(rows):
            notes.append(f"added token {i}, {printable(added.text)}, has no row: left out")
            continue
        is_control = added.special or _looks_special(added.text)
        kind = Kind.CONTROL if is_control else Kind.USER_DEFINED
        if is_control and i in pieces and pieces[i][1] == Kind.UNKNOWN:
            kind = Kind.UNKNOWN
        text = added.text if is_control else added.text.replace(SPACE_MARK, " ")
        rows[i] = (text, int(kind), pieces[i][2] if i in pieces else ADDED_SCORE)
    return notes


def _looks_special(text: str) -> bool:
    """Many checkpoints do not mark their control tokens; llama.cpp goes by the spelling."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


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
