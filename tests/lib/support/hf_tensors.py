"""Tensors of a `transformers` checkpoint under their GGUF names, reordered where GGUF wants that.

Names decide; what the numbers need beyond a new name is in `Rules` (which architecture, and the
sizes that a reordering goes by). MTP blocks are those of Qwen3.5: `mtp.fc`, `mtp.layers.0`, ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nextn.convert.checkpoint.safetensors import Floats
from nextn.convert.heads.mtp_family import STEMS
from nextn.convert.hf.families.delta_rule_rows import STEMS as DELTA_RULE
from nextn.core.errors import ModelError

Tensors = dict[str, Floats]

IN_BLOCK = {
    **STEMS,
    **DELTA_RULE,
    **{f"mlp.shared_expert.{k}_proj": f"ffn_{k}_shexp" for k in ("gate", "up", "down")},
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.router": "ffn_gate_inp",
}

_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MTP = {
    "fc.weight": "nextn.eh_proj.weight",
    "pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "norm.weight": "nextn.shared_head_norm.weight",
}
_HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
_TILED = ("qwen35", "qwen35moe")
_PER_VALUE_HEAD = ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha", "ssm_conv1d", "ssm_out")


@dataclass(frozen=True, slots=True)
class Rules:
    architecture: str  # GGUF's word
    n_layers: int  # of the trunk; MTP blocks are numbered from here
    head_dim: int = 0
    n_key_heads: int = 0  # of the delta rule, as the next two
    n_value_heads: int = 0
    linear_head_dim: int = 0

    @property
    def is_hybrid(self) -> bool:
        """These also store norm weights minus one, except the one behind the delta rule."""
        return self.architecture in _HYBRIDS


def map_tensors(state: Iterable[tuple[str, Floats]], rules: Rules) -> Tensors:
    out: Tensors = {}
    for name, array in state:
        for mapped, value in _map_tensor(name, array, rules).items():
            out[mapped] = np.ascontiguousarray(value, np.float32)
    return out


def _map_tensor(name: str, array: Floats, rules: Rules) -> Tensors:
    if name in _GLOBAL:
        return {_GLOBAL[name]: array + (rules.is_hybrid and "norm" in name)}
    head, _, rest = name.partition(".")
    if head == "mtp" and rest in _MTP:
        block = f"blk.{rules.n_layers}"
        return {f"{block}.{_MTP[rest]}": array + (rules.is_hybrid and "norm" in rest)}
    head, _, inner = rest.partition(".")
    number, _, stem = inner.partition(".")
    if head != "layers" or not number.isdecimal():
        raise ModelError(f"tensor {name[:80]} of the checkpoint has no place in a GGUF file")
    n = int(number) + (rules.n_layers if name.startswith("mtp.") else 0)
    mapped = _map_in_block(stem, array, rules)
    return {f"blk.{n}.{new}": value for new, value in mapped.items()}


def _map_in_block(rest: str, array: Floats, rules: Rules) -> Tensors:
    if rules.architecture == "gpt-oss" and rest.startswith(("mlp.experts.", "self_attn.sinks")):
        return _map_oss(rest.rpartition(".")[2], array)
    if rest == "mlp.experts.gate_up_proj":
        gate, up = np.split(array, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if rest == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": array}
    if rest == "linear_attn.A_log":
        return {"ssm_a": _tile(-np.exp(array), rules, 1)}
    if rest == "linear_attn.dt_bias":
        return {"ssm_dt.bias": _tile(array, rules, 1)}
    if rest == "linear_attn.in_proj_qkvz.weight":
        return _split_qkvz(array, rules)
    stem, _, kind = rest.rpartition(".")
    if stem not in IN_BLOCK:
        raise ModelError(f"tensor {rest[:80]} of a checkpoint's block has no place in a GGUF file")
    mapped = IN_BLOCK[stem]
    if mapped == "ffn_norm" and (rules.is_hybrid or rules.architecture == "gpt-oss"):
        mapped = "post_attention_norm"
    if rules.is_hybrid and mapped.endswith("norm") and mapped != "ssm_norm":
        array = array + 1
    if rules.architecture == "llama" and mapped in ("attn_q", "attn_k"):
        array = _neighbours(array, rules.head_dim)
    if mapped in _PER_VALUE_HEAD:
        array = _tile_matrix(mapped, array, rules)
    return {f"{mapped}.{kind}": array}


def _map_oss(name: str, array: Floats) -> Tensors:
    """Experts lie input by output, and gates and ups in turn."""
    if name == "sinks":
        return {"attn_sinks.weight": array}
    kind = "bias" if name.endswith("_bias") else "weight"
    rows = array if kind == "bias" else array.swapaxes(1, 2)
    if name.startswith("down"):
        return {f"ffn_down_exps.{kind}": rows}
    return {f"ffn_gate_exps.{kind}": rows[:, ::2], f"ffn_up_exps.{kind}": rows[:, 1::2]}


def _neighbours(array: Floats, head_dim: int) -> Floats:
    """Rows of each head from halves to neighbours: what lets rope turn (2i, 2i + 1)."""
    heads = array.reshape(-1, 2, head_dim // 2, *array.shape[1:])
    return heads.swapaxes(1, 2).reshape(array.shape)


def _tile(array: Floats, rules: Rules, width: int) -> Floats:
    """Value heads along the first axis, from grouped by key head to tiled."""
    if rules.architecture not in _TILED:
        return array
    share = rules.n_value_heads // rules.n_key_heads
    heads = array.reshape(rules.n_key_heads, share, width, *array.shape[1:])
    return heads.swapaxes(0, 1).reshape(array.shape)


def _tile_matrix(stem: str, array: Floats, rules: Rules) -> Floats:
    dim = rules.linear_head_dim
    n_keys = 2 * rules.n_key_heads * dim
    if stem == "ssm_conv1d":
        array = array[:, 0, :]
    if stem in ("attn_qkv", "ssm_conv1d"):
        return np.concatenate([array[:n_keys], _tile(array[n_keys:], rules, dim)])
    if stem == "ssm_out":
        return _tile(array.T, rules, dim).T
    return _tile(array, rules, dim if stem == "attn_gate" else 1)


def _split_qkvz(array: Floats, rules: Rules) -> Tensors:
    """Rows per key head [q, k, v.., z..] to [all q, all k, all v] and [all z]."""
    n_key, dim = rules.n_key_heads, rules.linear_head_dim
    share = rules.n_value_heads // n_key
    groups = array.reshape(n_key, -1, array.shape[1])
    q, k, v, z = np.split(groups, np.cumsum([dim, dim, share * dim]), axis=1)
    flat = [part.reshape(-1, array.shape[1]) for part in (q, k, v, z)]
    return {"attn_qkv.weight": np.concatenate(flat[:3]), "attn_gate.weight": flat[3]}
