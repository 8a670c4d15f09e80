"""llama.cpp's rules: sound files keep them, and each can be broken."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_models import FAMILIES, WITH_MTP, TinyModel, build_tiny

from nextn.convert.verify import examine, open_anything
from nextn.core import nano
from nextn.core.backend.layers import Floats

Keys = dict[str, Any]
Tensors = dict[str, Floats]
Edit = Callable[[Keys, Tensors], None]


def broken_rules(path: Path) -> list[str]:
    return examine(open_anything(str(path))).broken


def test_the_bundled_model_keeps_them() -> None:
    assert broken_rules(nano.path()) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_keeps_them(name: str, tiny: Callable[..., TinyModel]) -> None:
    assert broken_rules(tiny(name, mtp=name in WITH_MTP).path) == []


def drop_key(key: str) -> Edit:
    return lambda keys, tensors: keys.pop(key)


def set_key(key: str, value: Any) -> Edit:
    return lambda keys, tensors: keys.update({key: value})


def drop(name: str) -> Edit:
    def edit(keys: Keys, tensors: Tensors) -> None:
        del tensors[name]

    return edit


def rename(old: str, new: str) -> Edit:
    return lambda keys, tensors: tensors.update({new: tensors.pop(old)})


def positive_decay(keys: Keys, tensors: Tensors) -> None:
    tensors["blk.0.ssm_a"][1] = 0.5


def fewer_rows(keys: Keys, tensors: Tensors) -> None:
    tensors["token_embd.weight"] = np.concatenate([tensors["token_embd.weight"]] * 2)


def no_key(keys: Keys, tensors: Tensors) -> None:
    del keys["qwen35.nextn_predict_layers"]


def other_arch(keys: Keys, tensors: Tensors) -> None:
    tensors["blk.0.attn_sinks"] = np.zeros(4, np.float32)


BROKEN: list[tuple[str, Edit, str]] = [
    ("qwen35", drop_key("qwen35.rope.dimension_sections"), "must be four integers"),
    ("qwen35", set_key("qwen35.rope.dimension_sections", [11, 11, 10]), "must be four integers"),
    ("qwen35", drop_key("qwen35.ssm.group_count"), "qwen35.ssm.group_count.? is missing"),
    ("qwen3", drop_key("qwen3.context_length"), "qwen3.context_length.? is missing"),
    ("llama", set_key("llama.rope.dimension_count", 8), "dimension_count is 8, but heads are 16"),
    ("qwen3", set_key("qwen3.attention.head_count_kv", [2]), "has 1 entries, but there are 2"),
    (
        "qwen35-mtp",
        set_key("qwen35.attention.recurrent_layers", [True, True, True, False]),
        "has 4 entries, but there are 5 blocks: it was not extended for the MTP block",
    ),
    ("qwen35-mtp", drop("blk.4.nextn.enorm.weight"), "tensor is missing: blk.4.nextn.enorm"),
    ("qwen35-mtp", no_key, "nextn_predict_layers is missing or 0"),
    ("qwen35-mtp", set_key("qwen35.nextn_predict_layers", 5), "block_count, which counts them, 5"),
    ("qwen35-mtp", set_key("qwen35.nextn_predict_layers", 2), "2 MTP blocks: llama.cpp runs 1"),
    ("qwen35", positive_decay, "blk.0.ssm_a has a positive value"),
    ("qwen3", fewer_rows, "token_embd.weight has 1024 rows for 512 tokens"),
    ("qwen3", set_key("tokenizer.ggml.pre", "qwen"), "pre is 'qwen', which is not known"),
    ("qwen3", other_arch, "blk.0.attn_sinks: llama.cpp looks for blk.0.attn_sinks.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "message"), BROKEN)
def test_a_broken_rule(name: str, edit: Edit, message: str, tmp_path: Path) -> None:
    family, _, mtp = name.partition("-")
    made = build_tiny(family, tmp_path, mtp=bool(mtp), edit=edit)
    complaints = broken_rules(made.path)
    assert any(re.search(message, complaint) for complaint in complaints), complaints


LOADING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.llama_cpp import LlamaCpp
with LlamaCpp(Path(sys.argv[1])):
    print("loaded")
"""
# It loads these, and then aborts, or computes nonsense.
LOADED = ("2 MTP blocks: llama.cpp runs 1", "positive value")


@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "edit", "message"), [case for case in BROKEN if not case[2].endswith(LOADED)]
)
def test_llama_cpp_refuses_it_indeed(name: str, edit: Edit, message: str, tmp_path: Path) -> None:
    family, _, mtp = name.partition("-")
    path = build_tiny(family, tmp_path, mtp=bool(mtp), edit=edit).path
    command = [sys.executable, "-c", LOADING, str(path), str(Path(__file__).parents[2] / "lib")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "loaded" not in done.stdout
    assert "error loading model" in done.stderr


def test_half_norms(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "half.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(8, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    text = (
        "vectors and norms must be F32, blk.0.attn_norm.weight is F16: llama.cpp refuses the file"
    )
    assert text in broken_rules(path)
