"""The files that a checkpoint describes its tokenizer in, as far as they are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....core.errors import FileFormatError
from ....core.gguf.printable import printable
from ...checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Added:
    """A token beside the model's own."""

    text: str
    special: bool
    normalized: bool = False


@dataclass(slots=True)
class TokenizerFiles:
    label: str
    definition: dict[str, Any]  # tokenizer.json, {} where there is none
    settings: dict[str, Any]  # tokenizer_config.json
    special_map: dict[str, Any]
    config: dict[str, Any]  # config.json
    generation: dict[str, Any]
    added: dict[int, Added] = field(default_factory=dict)

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> TokenizerFiles:
        def of(name: str) -> dict[str, Any]:
            return checkpoint.json(name) or {}

        files = cls(
            checkpoint.label,
            of("tokenizer.json"),
            of("tokenizer_config.json"),
            of("special_tokens_map.json"),
            checkpoint.config,
            of("generation_config.json"),
        )
        for text, token_id in of("added_tokens.json").items():
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
        """Of tokenizer.json."""
        found = self.definition.get("model")
        return found if isinstance(found, dict) else {}

    def parts(self, name: str) -> list[dict[str, Any]]:
        """A normalizer, pre-tokenizer or decoder of tokenizer.json, sequences taken apart."""
        return list(_flattened(self.definition.get(name)))

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
        self.added[token_id] = Added(text, special, bool(entry.get("normalized", False)))


def _flattened(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return
    inner = next(
        (part[k] for k in ("normalizers", "pretokenizers", "decoders", "processors") if k in part),
        None,
    )
    if isinstance(inner, list):
        for each in inner:
            yield from _flattened(each)
    else:
        yield part
