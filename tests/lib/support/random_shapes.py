"""Sizes, tensor shapes and metadata keys of the model families that random files are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Shapes = dict[str, tuple[int, ...]]
HYBRIDS = ("qwen35", "qwen35moe")


@dataclass(frozen=True)
class Sizes:
    """Qwen3.5's smallest, unless told otherwise, with a vocabulary of 65,536; embeddings tied."""

    n_layers: int = 24
    n_embd: int = 1024
    n_ff: int = 3584  # of a dense layer, or of one expert
    n_vocab: int = 65536
    n_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 256
    n_delta_heads: int = 16  # hybrids only
    n_key_heads: int = 0  # of their queries and keys; 0: as many
    delta_dim: int = 128
    architecture: str = "qwen35"
    n_experts: int = 0
    n_experts_used: int = 0
    n_nextn: int = 0  # MTP blocks behind the layers
    tied: bool = True  # output and embedding are one matrix
    n_ctx: int = 32768  # that it was made for

    @property
    def is_hybrid(self) -> bool:
        return self.architecture in HYBRIDS

    @property
    def key_width(self) -> int:
        return (self.n_key_heads or self.n_delta_heads) * self.delta_dim

    @property
    def value_width(self) -> int:
        return self.n_delta_heads * self.delta_dim

    def is_recurrent(self, layer: int) -> bool:
        return self.is_hybrid and layer < self.n_layers and layer % 4 != 3


QWEN35_800M = Sizes()
# With an output matrix of its own and an MTP block: the files of the native table.
QWEN35_800M_MTP = Sizes(n_nextn=1, tied=False)
# 8 layers, 320 wide: 13 MB in Q8_0.
QWEN35_12M = Sizes(
    n_layers=8, n_embd=320, n_ff=1024, n_vocab=4096, n_heads=4, n_kv_heads=2, head_dim=64,
    n_delta_heads=4, delta_dim=64,
)  # fmt: skip
# Qwen3-0.6B as it is, its vocabulary too: without that it would be half a billion parameters.
QWEN3_600M = Sizes(
    architecture="qwen3", n_layers=28, n_ff=3072, n_vocab=151936, n_heads=16, n_kv_heads=8,
    head_dim=128,
)  # fmt: skip
# 1.86 billion parameters, of which a token meets 0.45: Qwen3.5's expert width, fewer of them.
QWEN35_MOE_2B = Sizes(
    architecture="qwen35moe", n_layers=16, n_ff=512, n_experts=64, n_experts_used=8
)
# Qwen3.6's, with their MTP blocks: what a large GPU is measured with.
QWEN36_27B = Sizes(
    n_layers=64, n_embd=5120, n_ff=17408, n_vocab=248320, n_heads=24, n_kv_heads=4,
    n_delta_heads=48, n_key_heads=16, n_nextn=1, tied=False, n_ctx=262144,
)  # fmt: skip
QWEN36_35B_A3B = Sizes(
    architecture="qwen35moe", n_layers=40, n_embd=2048, n_ff=512, n_vocab=248320, n_heads=16,
    n_kv_heads=2, n_delta_heads=32, n_key_heads=16, n_nextn=1, tied=False, n_ctx=262144,
    n_experts=256, n_experts_used=8,
)  # fmt: skip


def tiny(sizes: Sizes) -> Sizes:
    """A large hybrid with all its kinds of layers and little of each."""
    return replace(
        sizes, n_layers=4, n_embd=256, n_ff=256, n_vocab=512, n_heads=4, n_kv_heads=2,
        head_dim=64, n_delta_heads=8, n_key_heads=4, delta_dim=32,
        n_experts=min(sizes.n_experts, 8), n_experts_used=min(sizes.n_experts_used, 2),
    )  # fmt: skip


def tensor_shapes(s: Sizes) -> Shapes:
    """By name, in the order of a file, numpy order."""
    shapes: Shapes = {
        "token_embd.weight": (s.n_vocab, s.n_embd),
        "output_norm.weight": (s.n_embd,),
    }
    if not s.tied:
        shapes["output.weight"] = (s.n_vocab, s.n_embd)
    for i in range(s.n_layers + s.n_nextn):
        second_norm = "post_attention_norm" if s.is_hybrid else "ffn_norm"
        block: Shapes = {"attn_norm.weight": (s.n_embd,), f"{second_norm}.weight": (s.n_embd,)}
        block |= _experts(s) if s.n_experts else _dense(s)
        block |= _delta_net(s) if s.is_recurrent(i) else _attention(s)
        block |= _nextn(s) if i >= s.n_layers else {}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return shapes


def count_parameters(s: Sizes) -> tuple[int, int]:
    """All, and those that one token meets; the embedding counts once, as the output."""
    total = active = 0
    for name, shape in tensor_shapes(s).items():
        n = int(np.prod(shape, dtype=np.int64))
        total += n
        active += n * s.n_experts_used // s.n_experts if "_exps." in name else n
    return total, active


def model_keys(s: Sizes) -> dict[str, Any]:
    """Metadata under the architecture's prefix, and the two general keys."""
    keys: dict[str, Any] = {
        "context_length": s.n_ctx,
        "embedding_length": s.n_embd,
        "block_count": s.n_layers + s.n_nextn,
        "feed_forward_length": s.n_ff,
        "attention.head_count": s.n_heads,
        "attention.head_count_kv": s.n_kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7 if s.is_hybrid else 1e6,
    }
    if s.is_hybrid:
        keys |= {
            "rope.dimension_count": s.head_dim // 4,
            "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
            "full_attention_interval": 4,
            "ssm.conv_kernel": 4,
            "ssm.state_size": s.delta_dim,
            "ssm.group_count": s.key_width // s.delta_dim,
            "ssm.time_step_rank": s.n_delta_heads,
            "ssm.inner_size": s.value_width,
        }
    if s.n_nextn:
        keys["nextn_predict_layers"] = s.n_nextn
    if s.n_experts:
        keys |= {
            "expert_count": s.n_experts,
            "expert_used_count": s.n_experts_used,
            "expert_feed_forward_length": s.n_ff,
            "expert_shared_feed_forward_length": s.n_ff,
        }
    general = {"general.architecture": s.architecture, "general.name": "random"}
    return general | {f"{s.architecture}.{key}": value for key, value in keys.items()}


def _nextn(s: Sizes) -> Shapes:
    norms = {f"nextn.{name}.weight": (s.n_embd,) for name in ("enorm", "hnorm", "shared_head_norm")}
    return {"nextn.eh_proj.weight": (s.n_embd, 2 * s.n_embd), **norms}


def _attention(s: Sizes) -> Shapes:
    queries = s.n_heads * s.head_dim
    return {
        "attn_q.weight": (2 * queries if s.is_hybrid else queries, s.n_embd),  # with a gate
        "attn_k.weight": (s.n_kv_heads * s.head_dim, s.n_embd),
        "attn_v.weight": (s.n_kv_heads * s.head_dim, s.n_embd),
        "attn_q_norm.weight": (s.head_dim,),
        "attn_k_norm.weight": (s.head_dim,),
        "attn_output.weight": (s.n_embd, queries),
    }


def _delta_net(s: Sizes) -> Shapes:
    channels = 2 * s.key_width + s.value_width
    return {
        "attn_qkv.weight": (channels, s.n_embd),
        "attn_gate.weight": (s.value_width, s.n_embd),
        "ssm_beta.weight": (s.n_delta_heads, s.n_embd),
        "ssm_alpha.weight": (s.n_delta_heads, s.n_embd),
        "ssm_conv1d.weight": (channels, 4),
        "ssm_dt.bias": (s.n_delta_heads,),
        "ssm_a": (s.n_delta_heads,),
        "ssm_norm.weight": (s.delta_dim,),
        "ssm_out.weight": (s.n_embd, s.value_width),
    }


def _dense(s: Sizes) -> Shapes:
    return {
        "ffn_gate.weight": (s.n_ff, s.n_embd),
        "ffn_up.weight": (s.n_ff, s.n_embd),
        "ffn_down.weight": (s.n_embd, s.n_ff),
    }


def _experts(s: Sizes) -> Shapes:
    """The router, the stacks, and the one expert that every token meets, with its gate."""
    return {
        "ffn_gate_inp.weight": (s.n_experts, s.n_embd),
        "ffn_gate_exps.weight": (s.n_experts, s.n_ff, s.n_embd),
        "ffn_up_exps.weight": (s.n_experts, s.n_ff, s.n_embd),
        "ffn_down_exps.weight": (s.n_experts, s.n_embd, s.n_ff),
        "ffn_gate_inp_shexp.weight": (s.n_embd,),
        "ffn_gate_shexp.weight": (s.n_ff, s.n_embd),
        "ffn_up_shexp.weight": (s.n_ff, s.n_embd),
        "ffn_down_shexp.weight": (s.n_embd, s.n_ff),
    }
