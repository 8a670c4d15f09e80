"""Attention with rotary positions over a paged cache, one sequence at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..layers import Attention, Norm, RopePairs, RotaryPositions
from ..step import Step
from .state import KvLayer, ReferenceState


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """Over the last dimension."""
    weight: Tensor = norm.weight
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * weight


def rope_tables(rope: RotaryPositions, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, (T, 1, n_rot / 2). Angles in float64: at position 10^5 float32 is 0.004 off."""
    frequencies = torch.from_numpy(rope.frequencies)
    angles = positions.cpu().double()[:, None, None] * frequencies
    return angles.cos() * rope.magnitude, angles.sin() * rope.magnitude


def apply_rope(x: Tensor, rope: RotaryPositions, positions: Tensor) -> Tensor:
    """Turn the first 2 * n pairs of each head of x, (T, H, D); the rest passes."""
    cos, sin = (table.to(x) for table in rope_tables(rope, positions))
    n = len(rope.frequencies)
    turned = x.clone()
    if rope.pairs is RopePairs.NEIGHBOURS:
        first, second = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
    else:
        first, second = slice(0, n), slice(n, 2 * n)
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., first] * sin + x[..., second] * cos
    return turned


def attend(qkv: Tensor, attention: Attention, state: ReferenceState, step: Step) -> Tensor:
    """(T, q | k | v) to (T, H * Dv)."""
    q, gate, k, v = _split(qkv, attention)
    if attention.q_norm is not None:
        q = rms_norm(q, attention.q_norm)
    if attention.k_norm is not None:
        k = rms_norm(k, attention.k_norm)
    if attention.rope is not None:
        positions = torch.from_numpy(step.positions)
        q = apply_rope(q, attention.rope, positions)
        k = apply_rope(k, attention.rope, positions)
    cache = state.kv[attention.layer]
    out = v.new_empty(len(q), attention.n_heads, attention.value_dim)
    for b in range(step.n_sequences):
        rows, past = step.rows(b), int(step.past[b])
        cells = state.cells(step.pages[b].tolist(), past + rows.stop - rows.start)
        cache.keys[cells[past:]] = k[rows]
        cache.values[cells[past:]] = v[rows]
        out[rows] = _attend_cells(q[rows], cache, cells, past, attention)
    if gate is not None:
        out = out * torch.sigmoid(gate)
    return out.flatten(1)


def _split(qkv: Tensor, a: Attention) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    q, k, v = torch.split(qkv, [a.q_width, a.k_width, a.v_width], dim=1)
    q = q.unflatten(1, (a.n_heads, -1))  # (T, H, Dk), or (T, H, 2 Dk) with its gate
    gate = None
    if a.gated:
        q, gate = q.split(a.key_dim, dim=2)
    k = k.unflatten(1, (a.n_kv_heads, a.key_dim))
    return q, gate, k, v.unflatten(1, (a.n_kv_heads, a.value_dim))


def _attend_cells(
    q: Tensor, cache: KvLayer, cells: Tensor, past: int, attention: Attention
) -> Tensor:
    """One sequence: rows q (T, H, Dk), of which row i sees cells up to past + i."""
    group = attention.n_heads // attention.n_kv_heads
    keys = cache.keys[cells].repeat_interleave(group, dim=1)  # (C, H, Dk)
    values = cache.values[cells].repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,chd->htc", q, keys) * attention.scale
    row = torch.arange(len(q), device=q.device)[:, None] + past
    cell = torch.arange(len(cells), device=q.device)[None]
    hidden = cell > row
    if attention.window:
        hidden |= cell <= row - attention.window
    scores = scores.masked_fill(hidden, -math.inf)
    if attention.sinks is not None:
        sink = attention.sinks[:, None, None].expand(-1, len(q), 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=2), dim=2)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=2)
    return torch.einsum("htc,chd->thd", weights, values)
