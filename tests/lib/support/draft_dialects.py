"""Drafters' files rewritten in the names that other programs use, and what those are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf

from . import dflash_files, eagle3_files

Keys = dict[str, Any]
Renaming = Callable[[str], str]


def rewrite(source: Path, out: Path, edit: Callable[[Keys], Keys], name: Renaming) -> Path:
    """The same numbers by other names."""
    with open_gguf(source) as file:
        keys = edit({key: file.metadata.typed(key) for key in file.metadata})
        tensors = [
            TensorData(name(each), tensor.shape, tensor.format, np.array(tensor.data))
            for each, tensor in file.tensors.items()
        ]
        write_gguf(out, keys, tensors)
    return out


def int32s(values: list[int]) -> Typed:
    return Typed(ValueType.ARRAY, np.array(values, np.int32), ValueType.I32)


def old_eagle3(keys: Keys) -> Keys:
    keys["eagle3.extract_layers"] = keys.pop("eagle3.target_layers")
    return keys


def draft_keys(arch: str, *, with_tokenizer: bool) -> Callable[[Keys], Keys]:
    """As ik_llama.cpp and Lucebox have them: a part `dflash.` within the architecture's keys, and
    layers counted by what leaves them."""

    def edit(keys: Keys) -> Keys:
        layers, block = keys.pop("dflash.target_layers"), keys.pop("dflash.block_size")
        mask = keys.pop("tokenizer.ggml.mask_token_id")
        out: Keys = {"general.architecture": arch}
        for key, value in keys.items():
            if key.startswith("dflash."):
                out[f"{arch}.{key.removeprefix('dflash.')}"] = value
            elif with_tokenizer and key.startswith("tokenizer."):
                out[key] = value
        left = [int(layer) - 1 for layer in layers.value]
        return out | {
            f"{arch}.dflash.block_size": block,
            f"{arch}.dflash.mask_token_id": mask,
            f"{arch}.dflash.target_layer_ids": int32s(left),
            f"{arch}.dflash.n_target_layers": 2,
        }

    return edit


def underscored(name: str) -> str:
    name = re.sub(r"(blk\.\d+)\.ffn_norm", r"\1.post_attention_norm", name)
    return {"fc.weight": "dflash_fc.weight",
            "enc.output_norm.weight": "dflash_hidden_norm.weight"}.get(name, name)  # fmt: skip


def dotted(name: str) -> str:
    return {
        "fc.weight": "dflash.fc.weight", "enc.output_norm.weight": "dflash.hidden_norm.weight",
        "markov_w1.weight": "dflash.dspark.markov.w1.weight",
        "markov_w2.weight": "dflash.dspark.markov.w2.weight",
        "conf_proj.weight": "dflash.dspark.confidence.weight",
        "conf_proj.bias": "dflash.dspark.confidence.bias",
    }.get(name, name)  # fmt: skip


def hidden_norm(name: str) -> str:
    return name.replace("attn_norm_2", "hidden_norm")


def write_eagle3(path: Path, target: Path) -> eagle3_files.Eagle3File:
    kind = eagle3_files.Kind(fc_norm=True, norm_output=True)
    return eagle3_files.write_eagle3(path, target, kind)


def write_dflash(path: Path, target: Path) -> dflash_files.DFlashFile:
    return dflash_files.write_dflash(path, target, dflash_files.Kind(window=9))


def write_dspark(path: Path, target: Path) -> dflash_files.DFlashFile:
    kind = dflash_files.Kind(markov=True, confidence=True, n_head=0)
    return dflash_files.write_dflash(path, target, kind)


class ForeignNames(NamedTuple):
    drafter: str  # of --spec-type
    write: Callable[[Path, Path], Any]  # a file in the names of today, for a target
    edit: Callable[[Keys], Keys]
    name: Renaming


DIALECTS = {
    "eagle3 of early builds": ForeignNames("eagle3", write_eagle3, old_eagle3, hidden_norm),
    "ik_llama.cpp": ForeignNames(
        "dflash", write_dflash, draft_keys("dflash-draft", with_tokenizer=True), underscored
    ),
    "Lucebox": ForeignNames(
        "dflash", write_dflash, draft_keys("qwen35-dflash-draft", with_tokenizer=False), dotted
    ),
    "Lucebox, DSpark": ForeignNames(
        "dflash", write_dspark, draft_keys("dflash-draft", with_tokenizer=False), dotted
    ),
}


def in_foreign_names(name: str, target: Path, folder: Path) -> tuple[Path, Path]:
    """A drafter in the names of today, and the same in those of a dialect."""
    dialect = DIALECTS[name]
    written = dialect.write(folder / "today.gguf", target).path
    return written, rewrite(written, folder / "foreign.gguf", dialect.edit, dialect.name)
