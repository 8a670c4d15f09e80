"""The order of a block's tensors in a file: as they are used."""

from __future__ import annotations

from typing import Final

_ORDER: Final = {
    stem: place
    for place, stem in enumerate(
        (
            "hc_attn_fn", "hc_attn_scale", "hc_attn_base",
            "attn_norm", "attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm",
            "attn_kv_b", "attn_k_b", "attn_v_b", "attn_qkv", "attn_q", "attn_k", "attn_v",
            "attn_q_norm", "attn_k_norm", "attn_gate", "attn_sinks", "attn_kv", "attn_output",
            "attn_output_a", "attn_output_b", "hc_ffn_fn", "hc_ffn_scale", "hc_ffn_base",
            "post_attention_norm", "ffn_norm", "ffn_gate_inp", "exp_probs_b", "ffn_gate_up_exps",
            "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp",
            "ffn_up_shexp", "ffn_down_shexp", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm",
            "layer_output_norm", "nextn.eh_proj", "nextn.enorm", "nextn.hnorm",
            "nextn.embed_tokens", "nextn.shared_head_norm", "nextn.shared_head_head",
        )
    )
}  # fmt: skip


def place_in_block(stem: str) -> tuple[int, str]:
    name = stem.removesuffix(".weight").removesuffix(".bias")
    return _ORDER.get(name, len(_ORDER)), stem
