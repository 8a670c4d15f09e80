"""Everything below `tokenizer.`, in llama.cpp's order: the vocabulary, special ids (bos, eos, ...),
whether they are added, and chat templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....core.gguf.checks import MAX_TEMPLATE_BYTES
from ....core.gguf.types import Typed, ValueType
from ....core.tokenizer.vocabulary import PREFIX, load_vocabulary
from ...checkpoint import ModelCheckpoint
from .pre_detection import compare_tokenizers
from .tokenizer_traits import TokenizerTraits
from .vocab_files import CheckpointVocab, TokenizerFiles
from .vocab_readers import read_vocab

# Name in the checkpoint, and in GGUF (whose separator is misspelt).
_NAMES = (
    ("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"),
    ("mask", "mask"),
)  # fmt: skip
_ENDINGS = ("eot", "eom")  # which checkpoints do not name
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_FOLDER = "additional_chat_templates"


def tokenizer_keys(
    checkpoint: ModelCheckpoint, traits: TokenizerTraits, n_rows: int, pre: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The keys, and notes. `n_rows`: of the embeddings; each gets a token."""
    files = TokenizerFiles.read(checkpoint)
    has_definition = bool(files.definition)
    vocab = read_vocab(checkpoint, files, traits, n_rows, pre)
    if pre is not None and vocab.model != "gpt2":
        vocab.notes.append("--pre is for byte-level BPE; this tokenizer is SentencePiece's")
    own: dict[str, Any] = {"model": vocab.model}
    if vocab.pre is not None:
        own["pre"] = vocab.pre
    own["tokens"] = vocab.tokens
    if vocab.scores is not None:
        scores = np.array(vocab.scores, np.float32)
        own["scores"] = Typed(ValueType.ARRAY, scores, ValueType.F32)
    kinds = np.array(vocab.kinds, np.int32)
    own["token_type"] = Typed(ValueType.ARRAY, kinds, ValueType.I32)
    if vocab.merges is not None:
        own["merges"] = Typed(ValueType.ARRAY, vocab.merges, ValueType.STRING)
    own |= _special_keys(files, vocab, traits)
    keys = {f"{PREFIX}{name}": value for name, value in own.items()}
    keys |= _ending_keys(files, vocab, keys)
    if vocab.add_space_prefix is not None:
        keys[f"{PREFIX}add_space_prefix"] = vocab.add_space_prefix
    keys |= _template_keys(checkpoint, files, vocab.notes)
    if has_definition:
        text = checkpoint.text("tokenizer.json") or ""
        vocab.notes += compare_tokenizers(_plain(keys), text, checkpoint.label)
    return keys, vocab.notes


def _plain(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.value if isinstance(v, Typed) else v for k, v in keys.items()}


def _special_keys(
    files: TokenizerFiles, vocab: CheckpointVocab, traits: TokenizerTraits
) -> dict[str, Any]:
    index, out = vocab.index, dict[str, Any]()
    for name, key in (*_NAMES, ("eot", "eot"), ("eom", "eom")):
        token_id = index.get(traits.specials.get(name, ""))
        if token_id is None and name not in _ENDINGS:
            token_id = _find(files, index, name, len(vocab.tokens))
        if token_id is not None:
            out[f"{key}_token_id"] = Typed(ValueType.U32, token_id)
    for name in ("bos", "eos"):
        adds = _adds(files, vocab, name)
        if adds and f"{name}_token_id" not in out:
            vocab.notes.append(f"add_{name}_token is set, but there is no such token: not added")
            adds = False
        out[f"add_{name}_token"] = adds
    return out


def _ending_keys(
    files: TokenizerFiles, vocab: CheckpointVocab, keys: Mapping[str, Any]
) -> dict[str, Any]:
    """eot and eom: ids that end a text by generation_config.json alone."""
    known = load_vocabulary(_plain(keys)).eog_ids
    ids: list[int] = []
    for where in (files.generation, *files.configurations()):
        found = where.get("eos_token_id")
        listed = found if isinstance(found, list) else [found]
        ids += [i for i in listed if type(i) is int and 0 <= i < len(vocab.tokens)]
    more = [i for i in dict.fromkeys(ids) if i not in known]
    free = [name for name in _ENDINGS if f"{PREFIX}{name}_token_id" not in keys]
    for token_id in more[len(free) :]:
        vocab.notes.append(
            f"token {token_id} ({vocab.tokens[token_id]}) ends a text too, but GGUF has no key left"
        )
    return {
        f"{PREFIX}{name}_token_id": Typed(ValueType.U32, token_id)
        for name, token_id in zip(free, more, strict=False)
    }


def _find(files: TokenizerFiles, index: Mapping[str, int], name: str, n_tokens: int) -> int | None:
    """A token's id, by its text, else by the id that the model's own configuration has."""
    for place in (files.settings, files.special_map):
        text = _text(place.get(f"{name}_token"))
        if text is not None and text in index:
            return index[text]
    for where in (*files.configurations(), files.generation):
        found = where.get(f"{name}_token_id")
        first = found[0] if isinstance(found, list) and found else found
        if type(first) is int and 0 <= first < n_tokens:
            return first
    return None


def _text(entry: Any) -> str | None:
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _adds(files: TokenizerFiles, vocab: CheckpointVocab, name: str) -> bool:
    """Whether it is added: by the settings, else by the post-processor, else bos alone."""
    if vocab.model == "gemma4" and name == "bos":  # whatever its files say
        return True
    setting = files.settings.get(f"add_{name}_token")
    if isinstance(setting, bool):
        return setting
    token = _text(files.settings.get(f"{name}_token"))
    for part in files.parts("post_processor"):
        if part.get("type") == "TemplateProcessing":
            single = part.get("single")
            ends = single if isinstance(single, list) and single else [{}]
            at = ends[0 if name == "bos" else -1]
            special = at.get("SpecialToken") if isinstance(at, Mapping) else None
            is_there = isinstance(special, Mapping) and special.get("id") in (token, None)
            return is_there and token is not None
    return vocab.model == "llama" and name == "bos" and not files.definition


def _template_keys(
    checkpoint: ModelCheckpoint, files: TokenizerFiles, notes: list[str]
) -> dict[str, Any]:
    """chat_template.jinja is newer than what the settings may still hold."""
    found: Any = checkpoint.text("chat_template.jinja")
    if found is None:
        found = files.settings.get("chat_template")
    if found is None:
        found = (checkpoint.json("chat_template.json") or {}).get("chat_template")
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    more = _additional_templates(checkpoint)
    templates: dict[str, str] = {}
    names: list[str] = []
    default = None
    for entry in [*found, *more] if isinstance(found, list) else more:
        fields = entry if isinstance(entry, Mapping) else {}
        name, text = fields.get("name"), fields.get("template")
        if not isinstance(name, str) or not isinstance(text, str):
            notes.append("a chat template without name and text is left out")
        elif name == "default":
            default = text
        elif key := re.sub(r"[^0-9A-Za-z]", "_", name):
            names.append(key)
            templates[f"{_TEMPLATE}.{key}"] = text
    if default is not None:
        templates[_TEMPLATE] = default
    kept = {k: t for k, t in templates.items() if len(t.encode()) <= MAX_TEMPLATE_BYTES}
    if len(kept) < len(templates):
        notes.append(f"a chat template of more than {MAX_TEMPLATE_BYTES} bytes is left out")
    return kept | ({"tokenizer.chat_templates": names} if names else {})


def _additional_templates(checkpoint: ModelCheckpoint) -> list[dict[str, str]]:
    """Those of a folder beside chat_template.jinja."""
    out = []
    for name in sorted(checkpoint.place.below(_TEMPLATE_FOLDER)):
        if name.endswith(".jinja"):
            source = checkpoint.place.open(f"{_TEMPLATE_FOLDER}/{name}")
            text = bytes(source.read(0, min(source.size, MAX_TEMPLATE_BYTES + 1)))
            source.close()
            stem = name.removesuffix(".jinja")
            out.append({"name": stem, "template": text.decode(errors="replace")})
    return out
