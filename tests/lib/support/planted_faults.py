"""Faults that conversions leave, and files in which each is planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

from .checkpoints import build_checkpoint
from .dflash_files import write_dflash
from .eagle3_files import write_eagle3
from .every_family import build_family
from .tiny_models import build_tiny

Keys = dict[str, Any]
Edit = Callable[[Keys, dict[str, Any]], None]


class Fault(NamedTuple):
    rule: str
    at: str  # a tensor or key
    plant: Callable[[Path], Path]  # into a file in a folder


def tiny(name: str, edit: Edit, **how: Any) -> Callable[[Path], Path]:
    return lambda folder: build_tiny(name, folder, edit=edit, **how).path


def qwen35(edit: Edit) -> Callable[[Path], Path]:
    return tiny("qwen35", edit, mtp=True)


def keys(**changes: Any) -> Edit:
    """Keys of qwen35; None takes one out."""
    return whole_keys(**{f"qwen35.{k.replace('__', '.')}": value for k, value in changes.items()})


def whole_keys(**changes: Any) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        for key, value in changes.items():
            found.pop(key, None)
            if value is not None:
                found[key] = value

    return edit


def both(*edits: Edit) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        for each in edits:
            each(found, tensors)

    return edit


def numbers(name: str, change: Callable[[Any], Any]) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        tensors[name] = np.ascontiguousarray(change(tensors[name].copy()), np.float32)

    return edit


def gone(name: str) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        del tensors[name]

    return edit


def without_head(found: Keys, tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.startswith("blk.4.")]:
        del tensors[name]


def exchanged(first: str, second: str) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    return edit


def added(name: str) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        tensors[name] = np.ones((4, 4), np.float32)

    return edit


def norms(prefix: str, by: float) -> Edit:
    def edit(found: Keys, tensors: dict[str, Any]) -> None:
        for name in tensors:
            if name.startswith(prefix) and "norm" in name and "ssm_norm" not in name:
                tensors[name] = tensors[name] + np.float32(by)

    return edit


def template(source: str) -> Edit:
    return whole_keys(**{TEMPLATE: source})


def put(place: tuple[int, ...], value: float) -> Callable[[Any], Any]:
    def change(a: Any) -> Any:
        a[place] = value
        return a

    return change


def checkpoint(change: Callable[[Keys, dict[str, Any]], None]) -> Callable[[Path], Path]:
    """`change` of config.json and the tensors."""

    def plant(folder: Path) -> Path:
        build_checkpoint("qwen35", folder, mtp=True)
        config = json.loads((folder / "config.json").read_text())
        (path,) = folder.glob("*.safetensors")
        tensors = load_file(path)
        change(config, tensors)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, path)
        return folder

    return plant


def config(**values: Any) -> Callable[[Path], Path]:
    def change(found: Keys, tensors: dict[str, Any]) -> None:
        inner = found.get("text_config", found)
        inner.update(values)

    return checkpoint(change)


def without(part: str) -> Callable[[Path], Path]:
    def change(found: Keys, tensors: dict[str, Any]) -> None:
        (name,) = [name for name in tensors if name.endswith(part)]
        del tensors[name]

    return checkpoint(change)


def eagle3(**changes: Any) -> Callable[[Path], Path]:
    def plant(folder: Path) -> Path:
        target = build_tiny("qwen3", folder).path
        return write_eagle3(folder / "e.gguf", target, **changes).path

    return plant


def dflash(**changes: Any) -> Callable[[Path], Path]:
    def plant(folder: Path) -> Path:
        target = build_tiny("qwen3", folder).path
        return write_dflash(folder / "d.gguf", target, **changes).path

    return plant


def damaged_scale(folder: Path) -> Path:
    path = build_tiny("qwen3", folder, quantise="Q8_0").path
    with open_gguf(path) as file:
        raw = bytes(file.tensors["blk.0.ffn_down.weight"].data[:34])
    path.write_bytes(path.read_bytes().replace(raw, b"\x00\x7b" + raw[2:]))
    return path


def cut(folder: Path) -> Path:
    path = folder / "cut.gguf"
    path.write_bytes(nano.path().read_bytes()[:-5000])
    return path


def dropped(key: str) -> Callable[[Path], Path]:
    return lambda folder: changed(build_tiny("qwen35", folder, mtp=True).path, folder, {key: None})


TEMPLATE = "tokenizer.chat_template"
HEAD = "blk.4.nextn."
FAULTS: dict[str, Fault] = {
    # keys against tensors
    "interval": Fault(
        "llama-layers", "qwen35.full_attention_interval",
        qwen35(keys(full_attention_interval=3, attention__recurrent_layers=None)),
    ),
    "dense layers": Fault(
        "llama-layers", "glm4moe.leading_dense_block_count",
        lambda folder: changed(build_family("glm4moe", folder).path, folder,
                               {"glm4moe.leading_dense_block_count": 0}),
    ),
    "heads where nothing attends": Fault(
        "llama-layers", "lfm2.attention.head_count_kv",
        lambda folder: changed(build_family("lfm2", folder).path, folder,
                               {"lfm2.attention.head_count_kv": 2}),
    ),
    "sections of zero": Fault(
        "llama-rope", "qwen35.rope.dimension_sections",
        qwen35(keys(rope__dimension_sections=[0, 0, 0, 0])),
    ),
    "no sections": Fault(
        "llama-rope", "qwen35.rope.dimension_sections",
        qwen35(keys(rope__dimension_sections=None)),
    ),
    "block count": Fault("block-count", "block_count", qwen35(keys(block_count=4))),
    "no head key": Fault("nextn-count", "nextn_predict_layers",
                         qwen35(keys(nextn_predict_layers=None))),
    "short array": Fault("array-length", "attention.head_count_kv",
                         qwen35(keys(attention__head_count_kv=[2, 2, 2, 2]))),
    "kinds of layers": Fault(
        "recurrent-layers", "attention.recurrent_layers",
        qwen35(keys(attention__recurrent_layers=[False, True, True, False, False])),
    ),
    "no width": Fault("load-refused", "qwen35.embedding_length",
                      qwen35(keys(embedding_length=None))),
    "no heads": Fault("load-refused", "qwen35.attention.head_count",
                      qwen35(keys(attention__head_count=0))),
    "text for a number": Fault("load-refused", "qwen35.block_count",
                               qwen35(keys(block_count="five"))),
    "no key of experts": Fault(
        "load-refused", "qwen3moe.expert_used_count",
        tiny("qwen3moe", whole_keys(**{"qwen3moe.expert_used_count": None})),
    ),
    "no width of layers": Fault("llama-key", "qwen35.feed_forward_length",
                                qwen35(keys(feed_forward_length=None))),
    "a width of layers": Fault("llama-width", "blk.0.ffn_down.weight",
                               qwen35(keys(feed_forward_length=1000))),
    # tensors of the model
    "a trunk tensor": Fault("tensor-missing", "blk.0.ffn_up.weight",
                            qwen35(gone("blk.0.ffn_up.weight"))),
    "a surplus tensor": Fault("tensor-unused", "blk.1.strange.weight",
                              qwen35(added("blk.1.strange.weight"))),
    "a short matrix": Fault("tensor-shape", "blk.1.ffn_up.weight",
                            qwen35(numbers("blk.1.ffn_up.weight", lambda a: a[:-1]))),
    "exchanged matrices": Fault("tensor-shape", "blk.0.ffn_down.weight",
                                qwen35(exchanged("blk.0.ffn_down.weight", "blk.0.ffn_up.weight"))),
    # heads
    "a head tensor": Fault("head-incomplete", HEAD + "hnorm.weight",
                           qwen35(gone(HEAD + "hnorm.weight"))),
    "a head that was dropped": Fault(
        "head-key", "nextn_predict_layers",
        qwen35(without_head),
    ),
    "a transposed projection": Fault("head-shape", HEAD + "eh_proj.weight",
                                     qwen35(numbers(HEAD + "eh_proj.weight", lambda a: a.T))),
    "exchanged parts": Fault(
        "head-shape", HEAD + "enorm.weight",
        qwen35(exchanged(HEAD + "enorm.weight", HEAD + "eh_proj.weight")),
    ),
    "norms of the head without their one": Fault("head-norms", "blk.4.attn_norm.weight",
                                                 qwen35(norms("blk.4.", -1))),
    "norms of the head with two": Fault("head-norms-high", "blk.4.attn_norm.weight",
                                        qwen35(norms("blk.4.", 1))),
    "norms of the model without their one": Fault("norms", "blk.0.attn_norm.weight",
                                                  qwen35(norms("", -1))),
    # numbers
    "NaN in the head": Fault("numbers", HEAD + "eh_proj.weight",
                             qwen35(numbers(HEAD + "eh_proj.weight", put((3, 5), np.nan)))),
    "infinity in a matrix": Fault("numbers", "blk.1.ffn_up.weight",
                                  qwen35(numbers("blk.1.ffn_up.weight", put((3, 5), np.inf)))),
    "an absurd weight": Fault("numbers", "blk.0.attn_norm.weight",
                              qwen35(numbers("blk.0.attn_norm.weight", put((7,), 1e9)))),
    "a damaged scale": Fault("numbers", "blk.0.ffn_down.weight", damaged_scale),
    "a matrix of zeros": Fault("numbers-zero", "blk.2.ffn_up.weight",
                               qwen35(numbers("blk.2.ffn_up.weight", lambda a: a * 0))),
    "a positive decay": Fault("decay", "blk.0.ssm_a",
                              qwen35(numbers("blk.0.ssm_a", lambda a: -a))),
    # tokenizer and template
    "a template that does not parse": Fault("template", TEMPLATE,
                                            qwen35(template("{% for m in messages %}{{ m."))),
    "a template for one turn": Fault(
        "template-turns", TEMPLATE,
        qwen35(template("{% if messages[1] %}{{ raise_exception('one') }}{% endif %}"
                        "{{ messages[0].content }}")),
    ),
    "a template without the last message": Fault(
        "template-message", TEMPLATE,
        qwen35(template("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}assistant:")),
    ),
    "no end of texts": Fault("special-tokens", "tokenizer.ggml.eos_token_id",
                             dropped("tokenizer.ggml.eos_token_id")),
    "an id that is none": Fault("token-ids", "tokenizer.ggml.eos_token_id",
                                qwen35(whole_keys(**{"tokenizer.ggml.eos_token_id": 99_999}))),
    "no merges": Fault("tokenizer", "tokenizer.ggml.merges",
                       dropped("tokenizer.ggml.merges")),
    "no tokens": Fault("llama-vocabulary", "tokenizer.ggml.tokens",
                       dropped("tokenizer.ggml.tokens")),
    "an unknown cut": Fault("tokenizer", "tokenizer.ggml.pre",
                            qwen35(whole_keys(**{"tokenizer.ggml.pre": "mine"}))),
    # drafters
    "taps of other widths": Fault("tensor-shape", "fc.weight", eagle3(target_hidden_size=48)),
    "no taps": Fault("drafter", "eagle3.target_layers", eagle3(target_layers=None)),
    "no mask": Fault("drafter", "tokenizer.ggml.mask_token_id",
                     dflash(**{"tokenizer.ggml.mask_token_id": None})),
    # checkpoints
    "a trunk tensor of a checkpoint": Fault("checkpoint-tensor", "blk.1.ffn_up.weight",
                                            without("layers.1.mlp.up_proj.weight")),
    "a head tensor of a checkpoint": Fault("head-incomplete", "nextn.enorm",
                                           without("mtp.pre_fc_norm_embedding.weight")),
    "heads that cannot share": Fault("checkpoint-config", "num_key_value_heads",
                                     config(num_key_value_heads=3)),
    "a width of a checkpoint": Fault("checkpoint-config", "blk.0.ffn_down.weight",
                                     config(intermediate_size=100_000)),
    "layers of a checkpoint": Fault("checkpoint-config", "num_hidden_layers",
                                    config(num_hidden_layers=2_000_000_000)),
    "a number of more than 64 bits": Fault("checkpoint-config", "max_position_embeddings",
                                           config(max_position_embeddings=2**70)),
    "no width in a checkpoint": Fault("checkpoint-config", "feed_forward_length",
                                      config(intermediate_size=0)),
    "no heads in a checkpoint": Fault("checkpoint-config", "num_attention_heads",
                                      config(num_attention_heads=0)),
    "a file that was cut": Fault("file-unreadable", "", cut),
}  # fmt: skip


def changed(path: Path, folder: Path, changes: Keys) -> Path:
    out = folder / "changed.gguf"
    with open_gguf(path) as file:
        found: Keys = {key: file.metadata.typed(key) for key in file.metadata} | changes
        found = {key: value for key, value in found.items() if value is not None}
        tensors = [TensorData(t.name, t.shape, t.format, t.data) for t in file.tensors.values()]
        write_gguf(out, found, tensors)
    return out
