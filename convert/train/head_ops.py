"""Operations of an MTP head's block with gradients, on drafts from every row of several texts.

The block itself is the family's own (`core/models`), and most operations are the reference's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from ...core.backend.layers import Attention, KvSource, LatentAttention, Moe
from ...core.backend.reference.latent_attention import latent_rows
from ...core.backend.reference.mixture import activated, moe
from ...core.backend.reference.paged_attention import exact_sigmoid, placed, split_heads
from ...core.backend.reference.reference_ops import ReferenceOps
from ...core.backend.step import Ints
from ...core.errors import ConfigError
from .draft_attention import Past, draft_attention


class TextRows(Struct):
    """Stands for a step: one token of a draft from every row of texts (B, T)."""

    embedded: Tensor  # (B, T, D) of the tokens
    hidden: Tensor  # (B, T, D)
    n_before: int  # tokens of the drafts
    axes: None = None

    @property
    def positions(self) -> Ints:
        n_texts, n = self.hidden.shape[:2]
        return np.tile(np.arange(n, dtype=np.int32) + self.n_before, n_texts)


class HeadOps(ReferenceOps):
    """Rows are (B * T, width), the state is the `Past` of the drafts."""

    def __init__(self, longest: int) -> None:
        """`longest`: tokens of a text, which every window has to hold."""
        super().__init__(torch.device("cpu"), torch.float32)
        self._longest = longest

    def given_rows(self, step: Any, width: int) -> Tensor:
        rows: Tensor = step.hidden.flatten(0, 1)
        return rows

    def embed(
        self, table: Any, step: Any, scale: float = 1.0, *, takes_rows: bool = True
    ) -> Tensor:
        rows: Tensor = step.embedded.flatten(0, 1) * scale
        return rows

    def out_rows(self, x: Tensor, step: Any) -> Tensor:
        return x

    def head(self, a: Tensor, w: Any, cap: float = 0.0) -> Tensor:
        """The rows that the head would read: the loss has its own product with it."""
        return a

    def attend(self, qkv: Tensor, attention: Attention, state: Any, step: Any) -> Tensor:
        a = attention
        self._check(a)
        q, gate, k, v = split_heads(qkv, a)
        assert k is not None, "checked above"
        assert v is not None
        q, k = (
            placed(heads, norm, a.rope, step, late=a.norms_turned)
            for heads, norm in ((q, a.q_norm), (k, a.k_norm))
        )
        v, group = placed(v, a.v_norm, None, step), a.n_heads // a.n_kv_heads
        k, v = (heads.repeat_interleave(group, dim=1) for heads in (k, v))
        mixed = _mixed(q, k, v, a.scale, state, step)
        if gate is not None:
            mixed = mixed * exact_sigmoid(gate)
        return (mixed * a.value_scale).flatten(1)

    def attend_latent(
        self, q: Tensor, cells: Tensor, attention: LatentAttention, state: Any, step: Any
    ) -> Tensor:
        a = attention
        queries, new = latent_rows(q, cells, a, step)
        keys = new[:, None].expand(-1, a.n_heads, -1)
        latents = _mixed(queries, keys, keys[..., : a.latent], a.scale, state, step)
        values: Tensor = a.v_b.of_heads(latents)
        return values.flatten(1)

    def moe(
        self, a: Tensor, layer: Moe, add_to: Tensor | None, routed_by: Tensor | None = None
    ) -> Tensor:
        mixed = moe(a, layer, a if routed_by is None else routed_by, _sum_by_expert)
        return mixed if add_to is None else add_to + mixed

    def _check(self, a: Attention) -> None:
        """Whether the block attends to all of a text."""
        is_short = 0 < a.window < self._longest
        is_other = a.sinks is not None or a.cap or a.growth is not None or not a.causal
        if is_short or is_other or a.source is not KvSource.ROWS:
            what = f"a window of {a.window}" if is_short else "attention of a kind"
            raise ConfigError(f"--kind mtp: this model's head has {what} that is not trained here")


def _mixed(q: Tensor, k: Tensor, v: Tensor, scale: float, past: Past, step: TextRows) -> Tensor:
    """Of heads (B * T, H, D), with those of the drafts' earlier tokens."""
    n_texts = len(step.hidden)
    q, k, v = (heads.unflatten(0, (n_texts, -1)).transpose(1, 2) for heads in (q, k, v))
    past.append((k, v))
    mixed = draft_attention(q * (scale * math.sqrt(q.shape[-1])), past)
    return mixed.transpose(1, 2).flatten(0, 1).float()


def _sum_by_expert(a: Tensor, chosen: Tensor, weights: Tensor, layer: Moe) -> Tensor:
    """What the chosen experts make of each row, one expert after the other."""
    routed = a.new_zeros(len(a), layer.down.n_out)
    for expert in chosen.unique().tolist():
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        weight, x = weights[rows, place][:, None], a[rows]
        if layer.weighs_inputs:
            x, weight = x * weight, torch.ones_like(weight)
        inner = activated(layer.gate_up.product(x, expert), layer)
        routed = routed.index_add(0, rows, layer.down.product(inner, expert) * weight)
    return routed
