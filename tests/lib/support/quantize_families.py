"""Files with the tensors of many families, two or four rows each: what recipes decide by.

`TYPES` are the answers of llama-quantize (llama.cpp of October 2026, from the source package of
llama-cpp-python 0.3.36) for every file, recipe and set of flags, as digests. To make them again,
with a `llama-quantize` that was built:
`PYTHONPATH=tests/lib:.types python -m support.quantize_families PATH-OF-llama-quantize`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nextn.convert.quantize.recipes import RECIPES
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.types import Writable
from nextn.core.gguf.writer import TensorData, write_gguf

from .hub_shapes import hub_families

Shapes = dict[str, tuple[int, ...]]
TYPES = Path(__file__).parents[2] / "data" / "llama_quantize_types.json"
ROW = 256
# Flags that change what is decided; tried with the recipes where they could.
FLAGS: dict[str, list[str]] = {
    "imatrix": ["--imatrix", "IMATRIX"],
    "output": ["--output-tensor-type", "q5_k"],
    "embedding": ["--token-embedding-type", "q3_k"],
    "pure": ["--pure"],
    "leave": ["--leave-output-tensor"],
    "rules": ["--tensor-type", "ffn_down=q8_0", "--tensor-type", "attn_v=q5_k"],
}
FLAGGED = (
    "Q4_K_M", "Q4_0", "IQ4_XS", "Q2_K_S", "Q5_K_M", "MXFP4_MOE", "Q3_K_L", "IQ3_XXS", "IQ3_M",
    "IQ2_XS", "IQ1_S",
)  # fmt: skip
ATTENTION = ("attn_q", "attn_k", "attn_v")
FFN = ("ffn_gate", "ffn_up", "ffn_down")
HEAD: Shapes = {
    "token_embd.weight": (8, ROW), "output_norm.weight": (ROW,), "output.weight": (8, ROW)
}  # fmt: skip
TIED: Shapes = {name: shape for name, shape in HEAD.items() if name != "output.weight"}
HYBRID: dict[str, Writable] = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4,
    "ssm.inner_size": 64, "rope.dimension_sections": [2, 1, 1, 0], "attention.key_length": 32,
    "attention.value_length": 32, "full_attention_interval": 4, "nextn_predict_layers": 1,
}  # fmt: skip
MOE: dict[str, Writable] = {"expert_used_count": 2, "expert_feed_forward_length": 64}
FIRST_DENSE: dict[str, Writable] = {"leading_dense_block_count": 1, "expert_shared_count": 1}
MLA: dict[str, Writable] = {
    "expert_weights_scale": 1.0, "attention.kv_lora_rank": 32, "attention.q_lora_rank": 32,
    "attention.key_length": 32, "attention.value_length": 32,
}  # fmt: skip


def keys(
    architecture: str, n_layers: int, heads: int, kv_heads: int, **more: Writable
) -> dict[str, Writable]:
    own: dict[str, Writable] = {
        "block_count": n_layers, "context_length": 512, "embedding_length": ROW,
        "feed_forward_length": ROW, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6, "rope.freq_base": 1e4,
    }  # fmt: skip
    if architecture != "llama":
        own["rope.dimension_count"] = 16
    own |= more
    return {"general.architecture": architecture} | {
        f"{architecture}.{key}": value for key, value in own.items()
    }


def _block(n: int, stems: tuple[str, ...], shape: tuple[int, ...] = (4, ROW)) -> Shapes:
    return {f"blk.{n}.{stem}.weight": shape for stem in stems}


def dense(n_layers: int, *, fused: bool = False, down: int = ROW) -> Shapes:
    shapes: Shapes = {}
    for n in range(n_layers):
        shapes |= _block(n, ("attn_norm",), (ROW,))
        shapes |= _block(n, ("attn_qkv",) if fused else ATTENTION)
        shapes |= _block(n, ("attn_output", *FFN[:2])) | _block(n, FFN[2:], (4, down))
    return shapes


def _experts(n: int, n_experts: int) -> Shapes:
    names = tuple(f"{stem}_exps" for stem in FFN)
    return _block(n, ("ffn_gate_inp",), (n_experts, ROW)) | _block(n, names, (n_experts, 2, ROW))


def _shared(n: int, gate: tuple[int, ...]) -> Shapes:
    names = tuple(f"{stem}_shexp" for stem in FFN)
    return _block(n, names) | _block(n, ("ffn_gate_inp_shexp",), gate)


def experts(n_layers: int, n_experts: int, n_dense: int = 0, *, latent: bool = False) -> Shapes:
    """With `n_dense` first, shared experts come as well."""
    names = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b") if latent else ATTENTION
    shapes: Shapes = {}
    for n in range(n_layers):
        shapes |= _block(n, ("attn_norm",), (ROW,)) | _block(n, (*names, "attn_output"))
        if n < n_dense:
            shapes |= _block(n, FFN)
        else:
            shapes |= _experts(n, n_experts) | (_shared(n, (ROW,)) if n_dense else {})
    return shapes


def hybrid(
    n_layers: int, n_experts: int = 0, gates: tuple[str, ...] = ("ssm_alpha", "ssm_beta")
) -> Shapes:
    """Every fourth layer with attention; one MTP block behind."""
    shapes: Shapes = {}
    for n in range(n_layers + 1):
        if n == n_layers or n % 4 == 3:
            shapes |= _block(n, (*ATTENTION, "attn_output"))
        else:
            names = ("attn_qkv", "attn_gate", "ssm_out", *gates)
            shapes |= _block(n, names) | _block(n, ("ssm_conv1d",), (8, 4))
            shapes[f"blk.{n}.ssm_a"] = (4,)
        if n == n_layers:
            shapes |= _block(n, ("nextn.eh_proj",), (4, 512))
            shapes |= _block(n, ("nextn.enorm",), (ROW,))
        if n_experts:
            shapes |= _experts(n, n_experts) | _shared(n, (1, ROW))
        else:
            shapes |= _block(n, FFN)
    return shapes


_OF_HUB = hub_families(ROW)
FAMILIES: dict[str, tuple[Mapping[str, Writable], Shapes]] = {
    "llama": (keys("llama", 32, 8, 8), HEAD | dense(32)),
    "llama grouped": (keys("llama", 26, 8, 2), HEAD | dense(26)),
    "llama tied": (keys("llama", 3, 8, 4), TIED | dense(3)),
    "llama narrow": (keys("llama", 16, 8, 2), HEAD | dense(16, down=192)),
    "llama 70B": (keys("llama", 80, 64, 8), HEAD | dense(80)),
    "qwen2 72B": (keys("qwen2", 80, 64, 8), HEAD | dense(80)),
    "qwen3": (keys("qwen3", 28, 16, 8), TIED | dense(28)),
    "mixtral": (keys("llama", 32, 32, 8, expert_count=8, **MOE), HEAD | experts(32, 8)),
    "qwen3moe": (keys("qwen3moe", 48, 32, 4, expert_count=16, **MOE), HEAD | experts(48, 16)),
    "glm4moe": (
        keys(
            "glm4moe", 47, 32, 4, expert_count=16, nextn_predict_layers=1, **MOE, **FIRST_DENSE,
            **{"attention.key_length": 32},
        ),
        HEAD | experts(47, 16, 1),
    ),
    "deepseek2": (
        keys("deepseek2", 27, 16, 16, expert_count=8, **MOE, **FIRST_DENSE, **MLA),
        HEAD | experts(27, 8, 1, latent=True),
    ),
    "qwen35": (keys("qwen35", 25, 16, 4, **HYBRID), TIED | hybrid(24)),
    "qwen35moe": (
        keys(
            "qwen35moe", 41, 16, 2, expert_count=16, expert_shared_feed_forward_length=64,
            **MOE, **HYBRID,
        ),
        HEAD | hybrid(40, 16),
    ),
    "qwen3next": (
        keys(
            "qwen3next", 25, 16, 2, expert_count=16, expert_shared_feed_forward_length=64,
            **MOE, **HYBRID,
        ),
        HEAD | hybrid(24, 16, ("ssm_ba",)),
    ),
    "falcon": (keys("falcon", 32, 16, 1), HEAD | dense(32, fused=True)),
    "phi3": (keys("phi3", 32, 16, 16), HEAD | dense(32, fused=True)),
    **_OF_HUB,
}  # fmt: skip


def write_family(path: Path, name: str) -> Path:
    """F16 matrices and F32 vectors, all zeros."""
    metadata, shapes = FAMILIES[name]
    tensors = []
    for tensor, shape in shapes.items():
        kind = "F32" if len(shape) == 1 else "F16"
        dtype = np.float32 if len(shape) == 1 else np.float16
        tensors.append(TensorData(tensor, shape, find_format(kind), np.zeros(shape, dtype)))
    write_gguf(path, metadata, tensors, overwrite=True)
    return path


def write_importance(path: Path, shapes: Mapping[str, tuple[int, ...]], value: float = 1) -> Path:
    """As llama-imatrix writes it, every column alike."""
    form, tensors = find_format("F32"), []
    for name, shape in shapes.items():
        if len(shape) > 1:
            n = shape[0] if len(shape) > 2 else 1
            sums = np.full((n, shape[-1]), value, np.float32)
            tensors.append(TensorData(f"{name}.in_sum2", sums.shape, form, sums))
            counts = np.ones((n, 1), np.float32)
            tensors.append(TensorData(f"{name}.counts", (n, 1), form, counts))
    metadata: dict[str, Writable] = {
        "general.type": "imatrix",
        "imatrix.datasets": ["calibration.txt"],
        "imatrix.chunk_count": 3,
        "imatrix.chunk_size": 512,
    }
    write_gguf(path, metadata, tensors, overwrite=True)
    return path


def digest(types: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {types[name]}" for name in sorted(types))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cases(family: str) -> list[tuple[str, str]]:
    """(recipe, flags), the flags by name; "" is none. What flags do, the first families show."""
    plain = [(recipe, "") for recipe in RECIPES]
    if family in _OF_HUB:
        return plain
    return plain + [(recipe, flags) for recipe in FLAGGED for flags in FLAGS]


def ask_llama_quantize(program: str, file: Path, recipe: str, flags: list[str]) -> dict[str, str]:
    done = subprocess.run(
        [program, "--dry-run", *flags, str(file), recipe],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    line = re.compile(r"\]\s+(\S+)\s+- \[.*type =\s+(\w+), size =.*?(?:\((\w+)\))?$", re.MULTILINE)
    return {
        found[1]: (found[3] or found[2]).upper()
        for found in line.finditer(done.stdout + done.stderr)
    }


def main(program: str) -> None:
    answers: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        importance = Path(folder, "imatrix.gguf")
        for name, (_, shapes) in FAMILIES.items():
            file = write_family(Path(folder, "model.gguf"), name)
            write_importance(importance, shapes)
            answers[name] = {}
            for recipe, flags in cases(name):
                words = [str(importance) if w == "IMATRIX" else w for w in FLAGS.get(flags, [])]
                types = ask_llama_quantize(program, file, recipe, words)
                answers[name][f"{recipe} {flags}".strip()] = digest(types)
    TYPES.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
