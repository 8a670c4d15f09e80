"""Ids with a meaning (bos, eos, ...), whether they are added, and what else ends a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.gguf.types import Typed, ValueType
from ....core.tokenizer.vocabulary import PREFIX, load_vocabulary
from .files import TokenizerFiles
from .model import Vocab

# Name in the checkpoint, and in GGUF (whose separator is misspelt).
_NAMES = (
    ("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"),
    ("mask", "mask"),
)  # fmt: skip


def special_keys(files: TokenizerFiles, vocab: Vocab) -> dict[str, Any]:
    index = vocab.index
    out: dict[str, Any] = {}
    for name, key in _NAMES:
        token_id = _find(files, index, name, len(vocab.tokens))
        if token_id is not None:
            out[f"{PREFIX}{key}_token_id"] = Typed(ValueType.U32, token_id)
    for name in ("bos", "eos"):
        adds = _adds(files, vocab, name)
        if adds and f"{PREFIX}{name}_token_id" not in out:
            vocab.notes.append(f"add_{name}_token is set, but there is no such token: not added")
            adds = False
        out[f"{PREFIX}add_{name}_token"] = adds
    return out


def ending_keys(files: TokenizerFiles, vocab: Vocab, keys: Mapping[str, Any]) -> dict[str, Any]:
    """eot and eom, for ids that end a text by generation_config.json, and by nothing else here."""
    plain = {k: v.value if isinstance(v, Typed) else v for k, v in keys.items()}
    known = load_vocabulary(plain).eog_ids
    more = [i for i in _ending_ids(files) if i < len(vocab.tokens) and i not in known]
    for token_id in more[2:]:
        vocab.notes.append(
            f"token {token_id} ({vocab.tokens[token_id]}) ends a text too, but GGUF has no key left"
        )
    return {
        f"{PREFIX}{name}_token_id": Typed(ValueType.U32, token_id)
        for name, token_id in zip(("eot", "eom"), more, strict=False)
    }


def _ending_ids(files: TokenizerFiles) -> list[int]:
    ids: list[int] = []
    for where in (files.generation, files.config, files.config.get("text_config")):
        found = where.get("eos_token_id") if isinstance(where, Mapping) else None
        ids += [
            i for i in (found if isinstance(found, list) else [found]) if type(i) is int and i >= 0
        ]
    return list(dict.fromkeys(ids))


def _find(files: TokenizerFiles, index: Mapping[str, int], name: str, n_tokens: int) -> int | None:
    """By the token's text, else by the id that the model's own configuration has."""
    for place in (files.settings, files.special_map):
        text = _text(place.get(f"{name}_token"))
        if text is not None and text in index:
            return index[text]
    for where in (files.config, files.config.get("text_config"), files.generation):
        found = where.get(f"{name}_token_id") if isinstance(where, Mapping) else None
        first = found[0] if isinstance(found, list) and found else found
        if type(first) is int and 0 <= first < n_tokens:
            return first
    return None


def _text(entry: Any) -> str | None:
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _adds(files: TokenizerFiles, vocab: Vocab, name: str) -> bool:
    """As the settings say; else as the post-processor does; SentencePiece adds bos by itself."""
    told = files.settings.get(f"add_{name}_token")
    if isinstance(told, bool):
        return told
    token = _text(files.settings.get(f"{name}_token"))
    for part in files.parts("post_processor"):
        if part.get("type") == "TemplateProcessing":
            single = part.get("single")
            ends = single if isinstance(single, list) and single else [{}]
            at = ends[0 if name == "bos" else -1]
            special = at.get("SpecialToken") if isinstance(at, Mapping) else None
            return (
                isinstance(special, Mapping)
                and special.get("id") in (token, None)
                and token is not None
            )
    return vocab.model == "llama" and name == "bos" and not files.definition
