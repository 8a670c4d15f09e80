"""Self-attention of one block: its matrices and its description for the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ..backend.layers import Attention, KvShape, KvSource, Norm, QueryGrowth, RotaryPositions
from ..errors import ModelError

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights


class AttentionTraits(Struct, frozen=True):
    """What families do differently."""

    head_norms: bool | None = False  # of q and k; None: where a block has them
    plain_norms: bool = False  # these, without weights
    norms_turned: bool = False  # norms of heads follow rope
    growth: QueryGrowth | None = None
    row_norms: bool = False  # of all heads of q, and of all of k, at once
    needs_bias: bool = False  # queries, keys and values
    needs_output_bias: bool = False
    gated: bool = False  # attn_q holds a gate beside each head
    head_gates: bool = False  # attn_gate makes one gate for each head
    sinks: bool | None = False  # None: where a block has them
    window: int = 0
    chunked: bool = False
    hides_first: bool = False  # cell 0
    causal: bool = True
    bidirectional: bool = False
    head_dim: int = 0  # of keys and values; 0: what the file's keys say
    scale: float = 0.0  # 0: what the file's keys say
    cap: float = 0.0
    value_scale: float = 1.0
    norms_values: bool = False  # by a norm without weight
    shared_layer: int | None = None  # of the state, whose keys and values are read


PLAIN_ATTENTION = AttentionTraits()


class SelfAttention:
    """attn_q, attn_k, attn_v (or the fused attn_qkv), attn_output, and norms of q and k."""

    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        layout: Layout,
        rope: RotaryPositions | None,
        traits: AttentionTraits = PLAIN_ATTENTION,
        *,
        n_in: int = 0,
    ) -> None:
        """`n_in`: width of the rows that come in; 0: that of the model."""
        self.attention = a = _describe(hparams, weights, layout, rope, traits)
        parts = {"attn_q": a.q_width, "attn_k": a.k_width, "attn_v": a.v_width}
        if weights.has("attn_qkv"):
            parts = {"attn_qkv": sum(parts.values())}
        if a.head_gates:
            parts["attn_gate"] = a.n_heads
        heights = {name: height for name, height in parts.items() if height}
        self.attn_qkv = weights.matrix(
            n_in or hparams.n_embd, heights, needs_bias=traits.needs_bias
        )
        self.row_norms = self._row_norms(hparams, weights) if traits.row_norms else []
        self.attn_output = weights.matrix(
            a.n_heads * a.value_dim,
            {"attn_output": hparams.n_embd},
            needs_bias=traits.needs_output_bias,
        )

    def _row_norms(self, h: Hparams, weights: Weights) -> list[tuple[Norm, int]]:
        """With the column of the rows where each begins."""
        q, k = self.attention.q_width, self.attention.k_width
        return [
            (weights.norm("attn_q_norm", q, h.eps), 0),
            (weights.norm("attn_k_norm", k, h.eps), q),
        ]

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus attention of the normed rows a."""
        rows = ops.matmul(a, self.attn_qkv)
        for norm, column in self.row_norms:
            rows = ops.norm_columns(rows, norm, column)
        heads = ops.attend(rows, self.attention, state, step)
        return ops.matmul(heads, self.attn_output, add_to=x)


def _describe(
    h: Hparams,
    weights: Weights,
    layout: Layout,
    rope: RotaryPositions | None,
    traits: AttentionTraits,
) -> Attention:
    block = layout.block
    n_heads, n_kv_heads = h.n_heads[block], h.n_kv_heads[block]
    if not n_heads or not n_kv_heads:
        key = weights.file.metadata.full_key("attention.head_count" + "_kv" * bool(n_heads))
        raise ModelError(f"{weights.file.label}: {key} is 0 for block {block}, which has attention")
    key_dim, value_dim = traits.head_dim or h.key_dim, traits.head_dim or h.value_dim
    source, layer = KvSource.ROWS, traits.shared_layer
    if layer is not None:
        source = KvSource.SHARED
    elif not weights.has("attn_v") and not weights.has("attn_qkv") and traits.norms_values:
        source = KvSource.KEYS
    if layer is None:
        layer = layout.add_kv(KvShape(n_kv_heads, key_dim, value_dim, traits.window))
    head_norms = traits.head_norms
    if head_norms is None:
        head_norms = weights.has("attn_q_norm")
    sinks = weights.has("attn_sinks") if traits.sinks is None else traits.sinks
    has_own_keys = source is not KvSource.SHARED
    plain_norm = weights.plain_norm(key_dim, h.eps) if traits.plain_norms else None
    return Attention(
        layer=layer,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        scale=traits.scale or h.attention_scale,
        rope=rope,
        q_norm=weights.norm("attn_q_norm", key_dim, h.eps) if head_norms else plain_norm,
        k_norm=weights.norm("attn_k_norm", key_dim, h.eps)
        if head_norms and has_own_keys
        else plain_norm,
        gated=traits.gated,
        window=traits.window,
        chunked=traits.chunked,
        hides_first=traits.hides_first,
        causal=traits.causal,
        bidirectional=traits.bidirectional,
        sinks=weights.vector("attn_sinks.weight", n_heads) if sinks else None,
        v_norm=weights.plain_norm(value_dim, h.eps)
        if traits.norms_values and has_own_keys
        else None,
        head_gates=traits.head_gates,
        cap=traits.cap,
        value_scale=traits.value_scale,
        source=source,
        norms_turned=traits.norms_turned,
        growth=traits.growth,
    )
