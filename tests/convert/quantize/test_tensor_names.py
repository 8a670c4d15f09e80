"""Types of tensors that latent attention, windows, fused experts and per-layer inputs bring along,
by the rules of llama-quantize: which tensors have a kind, which are never quantised, what rows that
are no whole blocks become.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nextn.convert.quantize.quantize_plan import QuantizeOptions, make_plan
from nextn.convert.quantize.recipes import find_recipe
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Writable
from nextn.core.gguf.writer import TensorData, write_gguf

Shapes = dict[str, tuple[int, ...]]
LATENT: Shapes = {
    "token_embd.weight": (8, 256), "output.weight": (8, 256), "output_norm.weight": (256,),
    "blk.0.attn_q_a.weight": (4, 256), "blk.0.attn_q_b.weight": (4, 256),
    "blk.0.attn_q_a_norm.weight": (256,), "blk.0.attn_kv_a_mqa.weight": (4, 256),
    "blk.0.attn_k_b.weight": (2, 256, 128), "blk.0.attn_v_b.weight": (2, 128, 256),
    "blk.0.attn_output.weight": (4, 256), "blk.0.ffn_gate_inp.weight": (4, 256),
    "blk.0.exp_probs_b.bias": (4,), "blk.0.ffn_gate_exps.weight": (4, 2, 256),
    "blk.0.ffn_down_exps.weight": (4, 2, 256), "blk.0.ffn_down_shexp.weight": (2, 256),
    "blk.0.nextn.eh_proj.weight": (4, 512), "blk.0.nextn.enorm.weight": (256,),
}  # fmt: skip
GEMMA: Shapes = {
    "token_embd.weight": (8, 256), "per_layer_token_embd.weight": (8, 256),
    "per_layer_model_proj.weight": (4, 256), "per_layer_proj_norm.weight": (256,),
    "rope_freqs.weight": (16,), "blk.0.attn_q.weight": (4, 256), "blk.0.attn_k.weight": (4, 256),
    "blk.0.inp_gate.weight": (4, 256), "blk.0.proj.weight": (4, 256),
    "blk.0.layer_output_scale.weight": (1,), "blk.0.ffn_gate_inp.scale": (256,),
    "blk.0.ffn_gate_up_exps.weight": (4, 4, 256), "blk.0.ffn_down_exps.weight": (4, 2, 96),
    "blk.0.ffn_down_exps.scale": (4,), "blk.0.ffn_up.weight": (4, 256),
}  # fmt: skip
WINDOWED: Shapes = {
    "token_embd.weight": (8, 256), "output.weight": (8, 256), "blk.0.attn_qkv.weight": (4, 256),
    "blk.0.attn_sinks.weight": (4,), "blk.0.attn_gate.weight": (4, 256),
    "blk.0.ffn_down.weight": (4, 256), "blk.0.layer_output_norm.weight": (256,),
}  # fmt: skip
DRAFTER: Shapes = {
    "token_embd.weight": (8, 256), "output.weight": (8, 256), "output_norm.weight": (256,),
    "enc.output_norm.weight": (256,), "fc.weight": (4, 768), "markov_w1.weight": (8, 256),
    "markov_w2.weight": (8, 256), "conf_proj.weight": (1, 512), "conf_proj.bias": (1,),
    "selector_predecessor.weight": (8, 256), "selector_hidden.weight": (4, 256),
    "blk.0.attn_norm_2.weight": (256,), "blk.0.attn_q_norm.weight": (16,),
    "blk.0.attn_q.weight": (4, 512), "blk.0.attn_v.weight": (4, 512),
    "blk.0.ffn_down.weight": (4, 256), "blk.0.attn_conv_base": (2, 2, 256),
    "blk.0.attn_conv_proj.weight": (4, 256), "blk.0.layer_output_scale.weight": (1,),
    "nextn.pre_projection.weight": (4, 512),
}  # fmt: skip
KEPT = "F16"  # a matrix that stays as it is; vectors are F32


def types_of(architecture: str, shapes: Shapes, recipe: str, path: Path) -> dict[str, str]:
    keys: dict[str, Writable] = {
        "block_count": 1, "embedding_length": 256, "attention.head_count": 4,
        "attention.head_count_kv": 1, "expert_count": 4,
    }  # fmt: skip
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    tensors = []
    for name, shape in shapes.items():
        fmt = find_format("F32" if len(shape) == 1 else KEPT)
        dtype = np.float32 if len(shape) == 1 else np.float16
        tensors.append(TensorData(name, shape, fmt, np.zeros(shape, dtype)))
    write_gguf(path, {"general.architecture": architecture} | named, tensors)
    with open_gguf(path) as file:
        plan = make_plan(file, QuantizeOptions(find_recipe(recipe), keeps_heads=False))
        return {item.tensor.name.split(".weight")[0]: item.format.name for item in plan.items}


@pytest.mark.parametrize(
    ("recipe", "usual", "turned", "down"),
    [("Q4_K_M", "Q4_K", "Q5_0", "Q6_K"), ("Q8_0", "Q8_0", "Q8_0", "Q8_0"),
     ("Q3_K_M", "Q3_K", "Q4_0", "Q4_K"), ("IQ4_XS", "IQ4_XS", "IQ4_NL", "IQ4_XS")],
)  # fmt: skip
def test_latent_attention(recipe: str, usual: str, turned: str, down: str, tmp_path: Path) -> None:
    """Nothing of it counts as a query, a key or a value; the rows of turned keys are short."""
    found = types_of("deepseek2", LATENT, recipe, tmp_path / "m.gguf")
    for stem in ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_v_b", "nextn.eh_proj"):
        assert found[f"blk.0.{stem}"] == usual
    assert found["blk.0.attn_k_b"] == turned
    assert found["blk.0.ffn_gate_exps"] == usual
    assert found["blk.0.ffn_down_exps"] == found["blk.0.ffn_down_shexp"] == down
    assert found["blk.0.ffn_gate_inp"] == KEPT
    assert found["blk.0.attn_q_a_norm"] == found["blk.0.exp_probs_b.bias"] == "F32"


def test_per_layer_inputs_and_fused_experts(tmp_path: Path) -> None:
    """Both tables are the output's where that is tied."""
    found = types_of("gemma4", GEMMA, "Q4_K_M", tmp_path / "m.gguf")
    assert found["token_embd"] == found["per_layer_token_embd"] == "Q6_K"
    assert found["per_layer_model_proj"] == KEPT
    for stem in ("inp_gate", "proj", "ffn_gate_up_exps", "ffn_up", "attn_q", "attn_k"):
        assert found[f"blk.0.{stem}"] == "Q4_K"
    assert found["blk.0.ffn_down_exps"] == "Q8_0"  # rows of 96, which Q6_K cannot hold
    for name in ("rope_freqs", "blk.0.layer_output_scale", "blk.0.ffn_gate_inp.scale",
                 "blk.0.ffn_down_exps.scale"):  # fmt: skip
        assert found[name] == "F32"


def test_fused_queries_and_sinks(tmp_path: Path) -> None:
    found = types_of("mimo2", WINDOWED, "Q4_K_M", tmp_path / "m.gguf")
    assert found["blk.0.attn_qkv"] == "Q6_K"  # counts as values, in a layer that gets more
    assert found["blk.0.attn_gate"] == "Q4_K"
    assert found["blk.0.attn_sinks"] == found["blk.0.layer_output_norm"] == "F32"


@pytest.mark.parametrize("architecture", ["eagle3", "dflash", "gemma4-assistant"])
def test_drafters(architecture: str, tmp_path: Path) -> None:
    """Matrices as a model's; the head, or the embeddings that are one, better than the rest."""
    found = types_of(architecture, DRAFTER, "Q4_K_M", tmp_path / "m.gguf")
    assert found["output"] == "Q6_K"
    assert found["blk.0.attn_v"] == found["blk.0.ffn_down"] == "Q6_K"
    for name in ("token_embd", "fc", "markov_w1", "markov_w2", "selector_predecessor",
                 "selector_hidden", "blk.0.attn_q", "blk.0.attn_conv_proj",
                 "nextn.pre_projection"):  # fmt: skip
        assert found[name] == "Q4_K", name
    for name in ("output_norm", "enc.output_norm", "blk.0.attn_norm_2", "blk.0.attn_q_norm",
                 "conf_proj.bias", "blk.0.layer_output_scale"):  # fmt: skip
        assert found[name] == "F32", name
    assert found["blk.0.attn_conv_base"] == found["conf_proj"] == KEPT
    without = {name: shape for name, shape in DRAFTER.items() if name != "output.weight"}
    assert types_of(architecture, without, "Q4_K_M", tmp_path / "n.gguf")["token_embd"] == "Q6_K"
