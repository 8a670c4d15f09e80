"""Tiny random checkpoints as people have them: `save_pretrained` of `transformers`, hub names and
all, with the MTP head that it leaves out, and a small tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .tiny_models import COMMON, FAMILIES, MTP_NAMES, Family, build_head, randomise
from .vocab import N_VOCAB, tokenizer_metadata

QWEN2_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
State = dict[str, torch.Tensor]
Edit = Callable[[dict[str, Any], State], None]  # of config.json and the tensors


@dataclass
class TinyCheckpoint:
    family: Family
    hf: Any
    mtp: Any
    folder: Path


def build_checkpoint(
    name: str,
    folder: Path,
    *,
    mtp: bool = False,
    settings: dict[str, Any] | None = None,
    edit: Edit | None = None,
    seed: int = 0,
) -> TinyCheckpoint:
    """`settings` are of the model's configuration; `edit` changes what was saved."""
    import transformers

    family = FAMILIES[name]
    config = getattr(transformers, family.hf_config)(**COMMON | family.settings | (settings or {}))
    torch.manual_seed(seed)
    hf = getattr(transformers, family.hf_class)(config).eval().float()
    randomise(hf, family)
    hf.save_pretrained(folder)
    head = build_head(hf, family) if mtp else None
    state = load_file(folder / "model.safetensors")
    raw = json.loads((folder / "config.json").read_text())
    if head is not None:
        raw["mtp_num_hidden_layers"] = 1
        for key, value in head.state_dict().items():
            for old, new in MTP_NAMES.items():
                if key.startswith(old):
                    state[new + key.removeprefix(old)] = value.detach().clone()
    if edit is not None:
        edit(raw, state)
    (folder / "config.json").write_text(json.dumps(raw))
    save_state(folder, state)
    write_tokenizer(folder)
    return TinyCheckpoint(family, hf, head, folder)


def save_state(folder: Path, state: State) -> None:
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")


def write_tokenizer(folder: Path, cuts: str = QWEN2_CUTS) -> None:
    """The small vocabulary of the other tests, as tokenizer.json has it."""
    found = tokenizer_metadata()
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(tokens) if kinds[i] != 5}
    added = [
        {"id": i, "content": t, "special": True, "normalized": False, "single_word": False,
         "lstrip": False, "rstrip": False}
        for i, t in enumerate(tokens) if kinds[i] == 3
    ]  # fmt: skip
    definition = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": cuts}, "behavior": "Isolated",
                 "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                 "use_regex": False},
            ],
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                           "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                    "use_regex": False},
        "model": {"type": "BPE", "vocab": vocab,
                  "merges": [m.split(" ") for m in found["tokenizer.ggml.merges"]]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    settings = {
        "add_bos_token": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = {"eos_token_id": [N_VOCAB - 1, N_VOCAB - 2], "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(ids))
