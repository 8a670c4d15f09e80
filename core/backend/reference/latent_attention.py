"""Multi-head latent attention in its absorbed form: one cell for all heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..layers import LatentAttention
from ..step import Step
from .paged_attention import apply_rope, hidden_cells, hide_first, normed
from .state import ReferenceState


def attend_latent(
    q: Tensor, cells: Tensor, a: LatentAttention, state: ReferenceState, step: Step
) -> Tensor:
    """(T, H * (plain | rotated)) and (T, latent | key) to (T, H * value_dim)."""
    queries, new = latent_rows(q, cells, a, step)
    kept = state.kv[a.layer].keys  # (cells, 1, latent | key)
    out = q.new_empty(len(q), a.n_heads, a.latent)
    for b in range(step.n_sequences):
        rows, past = step.rows(b), int(step.past[b])
        where = state.cells(step.pages[b].tolist(), past + rows.stop - rows.start)
        kept[where[past:], 0] = new[rows]
        seen = kept[where, 0]
        scores = torch.einsum("thd,cd->htc", queries[rows], seen) * a.scale
        hidden = hidden_cells(len(queries[rows]), where, past)
        if a.hides_first:
            hide_first(hidden, past)
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=2)
        out[rows] = torch.einsum("htc,cl->thl", weights, seen[:, : a.latent])
    values: Tensor = a.v_b.of_heads(out)
    return values.flatten(1)


def latent_rows(q: Tensor, cells: Tensor, a: LatentAttention, step: Step) -> tuple[Tensor, Tensor]:
    """Queries (T, H, latent | key) and the rows' own cells (T, latent | key)."""
    positions = torch.from_numpy(step.positions)
    plain, turning = q.unflatten(1, (a.n_heads, -1)).split([a.plain_dim, a.rope_dim], dim=2)
    latent, key = cells.split([a.latent, a.rope_dim], dim=1)
    turned = apply_rope(key[:, None], a.rope, positions)[:, 0]
    queries = [a.k_b.of_heads(plain), apply_rope(turning, a.rope, positions)]
    return torch.cat(queries, dim=2), torch.cat([normed(latent, a.latent_norm), turned], dim=1)
