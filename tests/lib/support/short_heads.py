"""More families with MTP heads, in the manner of `tiny_heads`: those that llama.cpp's graphs and
`transformers` treat each in its own way. `ShortHead` is what their blocks compute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nextn.core.gguf.reader import open_gguf

from .head_math import Head, Rows
from .tiny_heads import BEHIND, EXPERT_KEYS, MLA, MLA_KEYS, MOE, ROPE, HeadKind

INDEXED = {"index_topk": 64, "index_head_dim": 64, "index_n_heads": 2}  # more than a text has
INDEXER_KEYS = {
    "attention.indexer.head_count": 2, "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 64,
}  # fmt: skip
WHOLE_QUERIES = {k: v for k, v in MLA_KEYS.items() if k != "attention.q_lora_rank"}
SHARED = {
    "eh_proj.": "mtp.fc.", "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.", "post_norm.": "mtp.norm.", "mtp_block.": "",
}  # fmt: skip
SWA = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 48,
    "head_dim": 24, "qk_nope_head_dim": 16, "v_head_dim": 12, "qk_rope_head_dim": 8,
}  # fmt: skip
GROUPS = {"n_group": 2, "topk_group": 1}
TOKENS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}

SHORT = {
    "glm4": HeadKind(
        "glm4", "Glm4ForCausalLM", "Glm4Config",
        {**TOKENS, "num_hidden_layers": 2, "head_dim": 16, "attention_bias": True,
         "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
        {"rope.dimension_count": 8},
        BEHIND,
    ),
    "exaone4": HeadKind(
        "exaone4", "Exaone4ForCausalLM", "Exaone4Config",
        {**TOKENS, "num_hidden_layers": 2, "head_dim": 16, "sliding_window": None,
         "rope_parameters": ROPE, "layer_types": ["full_attention"] * 2},
        {},
        SHARED, prefix="mtp.layers.{i}.",
    ),
    "deepseek32": HeadKind(
        "deepseek32", "DeepseekV32ForCausalLM", "DeepseekV32Config",
        {**TOKENS, **MOE, **MLA, **INDEXED, **GROUPS, "n_routed_experts": 8,
         "first_k_dense_replace": 1, "rope_parameters": ROPE},
        {**EXPERT_KEYS, **MLA_KEYS, **INDEXER_KEYS, "expert_count": 8,
         "expert_weights_scale": 2.5, "expert_group_count": 2, "expert_group_used_count": 1},
        BEHIND, mtp_layer_type="indexed_attention",
    ),
    "glm-dsa": HeadKind(
        "glm-dsa", "GlmMoeDsaForCausalLM", "GlmMoeDsaConfig",
        {**TOKENS, **MOE, **MLA, **INDEXED, "n_routed_experts": 4, "first_k_dense_replace": 1,
         "rope_parameters": ROPE},
        {**EXPERT_KEYS, **MLA_KEYS, **INDEXER_KEYS, "expert_count": 4,
         "expert_weights_scale": 2.5},
        BEHIND, mtp_layer_type="indexed_attention",
    ),
    "cohere2moe": HeadKind(
        "cohere2moe", "Cohere2MoeForCausalLM", "Cohere2MoeConfig",
        {**TOKENS, **MOE, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16,
         "num_experts": 4, "num_shared_experts": 1, "rms_norm_eps": 1e-6,
         "expert_selection_fn": "sigmoid", "logit_scale": 1.0, "sliding_window": 64,
         "rope_parameters": ROPE},
        {**EXPERT_KEYS, "expert_count": 4, "logit_scale": 1.0, "attention.sliding_window": 64,
         "attention.sliding_window_pattern": [True, True], "leading_dense_block_count": 0,
         "expert_shared_feed_forward_length": 32},
        BEHIND, mtp_layer_type="sliding_attention",  # which has the rope; no text is as long
    ),
    "bailingmoe3": HeadKind(
        "bailingmoe3", "BailingHybridForCausalLM", "BailingHybridConfig",
        {**TOKENS, **MOE, **MLA, **GROUPS, "num_local_experts": 8, "first_k_dense_replace": 1,
         "layer_types": ["full_attention"] * 2, "rope_parameters": ROPE},
        {**EXPERT_KEYS, **WHOLE_QUERIES, "expert_count": 8, "expert_weights_scale": 2.5,
         "expert_group_count": 2, "expert_group_used_count": 1, "ssm.conv_kernel": 4,
         "kda.head_dim": 16, "kda.gate_lower_bound": -5.0},
        {"post_norm.": "final_layernorm.",
         "mtp_block.self_attn.o_proj.": "attention.dense.", "mtp_block.self_attn.": "attention.",
         "mtp_block.mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias", "mtp_block.": ""},
    ),
    "dots3note": HeadKind(
        "dots3note", "Dots3NoteForCausalLM", "Dots3NoteTextConfig",
        {**TOKENS, **MOE, **MLA, **INDEXED, "n_routed_experts": 4,
         "shared_experts_intermediate_size": 32, "layer_types": ["sliding_attention"] * 2,
         "sliding_window": 8, "swa_rope_theta": 1e4,
         **{f"swa_{key}": value for key, value in SWA.items()}},
        {**EXPERT_KEYS, **MLA_KEYS, **INDEXER_KEYS, "expert_count": 4,
         "attention.sliding_window": 8, "attention.sliding_window_pattern": [True, True],
         "attention.head_count": [4, 4],
         "attention.kv_lora_rank_swa": 48, "attention.key_length_swa": 56,
         "attention.value_length_swa": 48, "attention.key_length_mla_swa": 24,
         "attention.value_length_mla_swa": 12, "attention.indexer.types": [False, False],
         "rope.freq_base_swa": 1e4},
        BEHIND, mtp_layer_type="sliding_attention", mtp_mlp_type="dense",
        hub_config={f"swa_{key}": value for key, value in SWA.items()},
        mtp_config={"mtp_per_layer_config": {0: SWA}},
        embedding="model.mtp.embed_tokens.weight",
    ),
}  # fmt: skip
NORMS_BEHIND = ("glm4", "exaone4")  # attention and feed-forward
PAIRS = ("glm4", "deepseek32", "glm-dsa", "cohere2moe", "bailingmoe3", "dots3note")


def short_logits(path: Path, head: int, hidden: Any, tokens: Any) -> Any:
    with open_gguf(path) as file:
        return ShortHead(file, head).logits(hidden, tokens).float().numpy()


class ShortHead(Head):
    @property
    def turns_pairs(self) -> bool:
        return self.meta.architecture in PAIRS

    def block_of(self, x: Rows) -> Rows:
        if self.meta.architecture == "cohere2moe":  # both halves see the same
            n = self.norm(x, "attn_norm")
            return x + self.attention(n) + self.ffn(n) / 2
        if self.meta.architecture not in NORMS_BEHIND:
            return super().block_of(x)
        n = self.norm(x, "attn_norm") if self.has("attn_norm") else x
        x = x + self.norm(self.attention(n), "post_attention_norm")
        n = self.norm(x, "ffn_norm") if self.has("ffn_norm") else x
        return x + self.norm(self.ffn(n), "post_ffw_norm")

    def gated(self, x: Rows, gate: str, up: str, down: str, clamp: str) -> Rows:
        if self.has(gate):
            return super().gated(x, gate, up, down, clamp)
        g, u = (x @ self.tensor(up).T).chunk(2, -1)
        return (torch.nn.functional.silu(g) * u) @ self.tensor(down).T

    def latent(self, x: Rows) -> Rows:
        """All sizes from the tensors: a head may have others than the keys say."""
        turned, values = self.tensor("attn_k_b"), self.tensor("attn_v_b")
        n, rank, nope = turned.shape
        q = x @ self.tensor("attn_q").T if self.has("attn_q") else self.low_rank(x)
        q = q.reshape(len(x), n, -1)
        kv = x @ self.tensor("attn_kv_a_mqa").T
        latent, shared = self.norm(kv[:, :rank], "attn_kv_a_norm"), kv[:, rank:]
        if self.has("attn_k_norm"):
            shared = self.norm(shared, "attn_k_norm")
        absorbed = torch.einsum("thn,hrn->thr", q[..., :nope], turned)
        queries = torch.cat([absorbed, self.rope(q[..., nope:])], -1)
        keys = torch.cat([latent[:, None], self.rope(shared[:, None])], -1).expand(-1, n, -1)
        o = self.attend(queries, keys, latent[:, None].expand(-1, n, -1), q.shape[-1] ** -0.5)
        o = torch.einsum("thr,hvr->thv", o, values)
        if self.has("attn_gate"):
            o = o * torch.sigmoid(x @ self.tensor("attn_gate").T)[..., None]
        return o.reshape(len(x), -1) @ self.tensor("attn_output").T

    def low_rank(self, x: Rows) -> Rows:
        return self.norm(x @ self.tensor("attn_q_a").T, "attn_q_a_norm") @ self.tensor("attn_q_b").T

    def router_bias(self) -> torch.Tensor:
        has_one = self.has("exp_probs_b", "bias")
        return super().router_bias() if has_one else torch.zeros(1, dtype=torch.float64)
