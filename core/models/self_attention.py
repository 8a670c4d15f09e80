"""Self-attention of one block: its matrices and its description for the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.layers import Attention, KvShape, RotaryPositions
from ..errors import ModelError

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class SelfAttention:
    """attn_q, attn_k, attn_v (or the fused attn_qkv), attn_output, and norms of q and k."""

    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        layout: Layout,
        rope: RotaryPositions,
        *,
        head_norms: bool = False,
        needs_bias: bool = False,
        gated: bool = False,
    ) -> None:
        h, block = hparams, layout.block
        n_heads, n_kv_heads = h.n_heads[block], h.n_kv_heads[block]
        if not n_kv_heads:
            raise ModelError(
                f"{weights.file.label}: block {block} has attention, but no key-value heads"
            )
        self.attention = Attention(
            layer=layout.add_kv(KvShape(n_kv_heads, h.key_dim, h.value_dim)),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            key_dim=h.key_dim,
            value_dim=h.value_dim,
            scale=h.attention_scale,
            rope=rope,
            q_norm=weights.norm("attn_q_norm", h.key_dim, h.eps) if head_norms else None,
            k_norm=weights.norm("attn_k_norm", h.key_dim, h.eps) if head_norms else None,
            gated=gated,
        )
        a = self.attention
        parts = {"attn_q": a.q_width, "attn_k": a.k_width, "attn_v": a.v_width}
        if weights.has("attn_qkv"):
            parts = {"attn_qkv": sum(parts.values())}
        self.attn_qkv = weights.matrix(h.n_embd, parts, needs_bias=needs_bias)
        self.attn_output = weights.matrix(n_heads * h.value_dim, {"attn_output": h.n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows, step: Step, state: State) -> Rows:
        """x + attention of the normed rows a."""
        heads = ops.attend(ops.matmul(a, self.attn_qkv), self.attention, state, step)
        return ops.matmul(heads, self.attn_output, add_to=x)
