"""Files of drafters that other programs write, as llama.cpp writes them today.

The numbers are the same everywhere; names of keys and tensors differ, and whether layers of the
target are counted by what enters or by what leaves them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from ...errors import ModelError
from ...gguf.metadata import Metadata
from ...gguf.reader import GgufFile
from ...gguf.types import Typed, ValueType

Entries = dict[str, Typed]
Renaming = Callable[[str, frozenset[str]], str]  # a tensor's name, and those of all of them


class NamedDialect(NamedTuple):
    """What a file was written for; "" for llama.cpp of today."""

    file: GgufFile  # in the names of today
    written_for: str


class _Dialect(NamedTuple):
    written_for: str
    architecture: str
    entries: Callable[[GgufFile], Entries]
    tensor: Renaming


_OLD_EAGLE3: Final = "early builds of llama.cpp"
_DRAFT: Final = "-dflash-draft"
_OTHER_FORMS: Final = ("dflash.laguna", "dflash.domino.enabled")
_NO_FORM: Final = "its layers are DeepSeek V4's, with hyper-connections"
_REFUSED: Final = {
    "deepseek4-dspark": _NO_FORM,
    "deepseek4-dflash-draft": _NO_FORM,
    "deepseek41-dflash-draft": _NO_FORM,
}
_DFLASH_TENSORS: Final = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "dspark.markov.w1": "markov_w1",
    "dspark.markov.w2": "markov_w2",
    "dspark.confidence": "conf_proj",
}
_OF_DFLASH: Final = re.compile(r"dflash[._](.+)\.(weight|bias|scale)")
_BLOCK_NORM: Final = re.compile(r"(blk\.\d+\.)post_attention_norm\.weight")
# What Gemma 4's layers do, which these files do not say.
_GEMMA4: Final = {
    "hidden_activation": Typed(ValueType.STRING, "gelu"),
    "attention.scale": Typed(ValueType.F32, 1.0),
    "final_logit_softcapping": Typed(ValueType.F32, 30.0),
}


def is_draft_dialect(architecture: str) -> bool:
    """Whether files of this architecture hold drafters in another program's names."""
    return architecture.endswith(("dflash-draft", "-dspark"))


def in_names_of_today(file: GgufFile) -> NamedDialect:
    """The same file where nothing needs another name. Raises ModelError for a drafter that has no
    form here, or a file that contradicts itself."""
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str):  # which other checks report
        return NamedDialect(file, "")
    if why := _REFUSED.get(arch):
        raise ModelError(f"{file.label}: drafter {arch} cannot be run: {why}")
    dialect = _find(file, arch)
    if dialect is None:
        return NamedDialect(file, "")
    entries = dialect.entries(file)
    entries["general.architecture"] = Typed(ValueType.STRING, dialect.architecture)
    names = frozenset(file.tensors)
    new_names = {name: dialect.tensor(name, names) for name in names}
    if len({*new_names.values()}) < len(new_names):
        raise ModelError(f"{file.label}: it has a tensor twice, by two names of {arch}")
    renamed = replace(
        file,
        metadata=Metadata(entries, file.label),
        tensors={
            new_names[name]: replace(tensor, name=new_names[name])
            for name, tensor in file.tensors.items()
        },
        ranges={new_names[name]: place for name, place in file.ranges.items()},
    )
    return NamedDialect(renamed, dialect.written_for)


def _find(file: GgufFile, arch: str) -> _Dialect | None:
    if arch == "eagle3":
        is_old = not file.metadata.has("target_layers") and file.metadata.has("extract_layers")
        if is_old or any(name.endswith(".hidden_norm.weight") for name in file.tensors):
            return _Dialect(_OLD_EAGLE3, "eagle3", _eagle3_entries, _eagle3_name)
    elif arch == "dflash-draft" or arch.endswith(_DRAFT):
        return _Dialect("ik_llama.cpp or Lucebox", "dflash", _dflash_entries, _dflash_name)
    return None


# EAGLE3 ------------------------------------------------------------------------------------------


def _eagle3_entries(file: GgufFile) -> Entries:
    meta = file.metadata
    entries = {key: meta.entry(key) for key in meta}
    if (layers := entries.pop("eagle3.extract_layers", None)) is not None:
        entries.setdefault("eagle3.target_layers", layers)
    if not meta.has("target_hidden_size") and meta.has("embedding_length"):
        entries["eagle3.target_hidden_size"] = entries["eagle3.embedding_length"]
    return entries


def _eagle3_name(name: str, names: frozenset[str]) -> str:
    if re.fullmatch(r"blk\.\d+\.hidden_norm\.weight", name):
        return name.replace("hidden_norm", "attn_norm_2")
    return name


# DFlash ------------------------------------------------------------------------------------------


def _dflash_entries(file: GgufFile) -> Entries:
    meta = file.metadata
    prefix = f"{meta.architecture}."
    for key in _OTHER_FORMS:
        if meta.bool(key, False):
            raise ModelError(
                f"{file.label}: {meta.full_key(key)} is true; that form of DFlash cannot be run"
            )
    entries: Entries = {}
    for key in meta:
        own = key.removeprefix(prefix)
        if own != key and not own.startswith("dflash."):
            entries[f"dflash.{own}"] = meta.entry(key)
        elif own == key:
            entries[key] = meta.entry(key)
    entries |= _block_entries(meta)
    if meta.architecture == "gemma4-dflash-draft":
        width = meta.int("embedding_length", low=1)
        usual = _GEMMA4 | {"embedding_scale": Typed(ValueType.F32, width**0.5)}
        entries = {f"dflash.{key}": value for key, value in usual.items()} | entries
    return entries


def _block_entries(meta: Metadata) -> Entries:
    """Of the part `dflash.` within the keys of the architecture."""
    layers = np.asarray(meta.ints("dflash.target_layer_ids", low=-1), np.int32) + 1
    entries = {"dflash.target_layers": Typed(ValueType.ARRAY, layers, ValueType.I32)}
    copied: dict[str, Any] = {
        "dflash.block_size": "dflash.block_size",
        "dflash.mask_token_id": "tokenizer.ggml.mask_token_id",
        "dflash.backbone_rotary_base": "dflash.rope.freq_base",
    }
    for key, name in copied.items():
        if meta.has(key):
            entries[name] = meta.entry(meta.full_key(key))
    return entries


def _dflash_name(name: str, names: frozenset[str]) -> str:
    if found := _OF_DFLASH.fullmatch(name):
        stem = _DFLASH_TENSORS.get(found[1].replace("dspark_", "dspark."))
        return name if stem is None else f"{stem}.{found[2]}"
    if (found := _BLOCK_NORM.fullmatch(name)) and f"{found[1]}ffn_norm.weight" not in names:
        return f"{found[1]}ffn_norm.weight"
    return name
