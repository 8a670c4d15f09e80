"""Attention with rotary positions over a paged cache, one sequence at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..layers import Attention, KvSource, Norm, RopePairs, RotaryPositions
from ..step import Ints, Step
from .state import KvLayer, ReferenceState


def normed(x: Tensor, norm: Norm) -> Tensor:
    """Over the last dimension."""
    weight: Tensor = norm.weight
    if norm.centred:
        x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * weight
    return x if norm.bias is None else x + norm.bias


def exact_sigmoid(x: Tensor) -> Tensor:
    """In double precision: torch computes the last few of many floats otherwise, so that the bits
    of a narrow row would depend on how many rows a step has."""
    return torch.sigmoid(x.double()).float()


def exact_silu(x: Tensor) -> Tensor:
    """Likewise."""
    wide = x.double()
    return (wide * torch.sigmoid(wide)).to(x.dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap) if cap else x


def apply_rope(
    x: Tensor, rope: RotaryPositions, positions: Tensor, axes: Ints | None = None
) -> Tensor:
    """Turn the first 2 * n pairs of each head of x, (T, H, D); the rest passes."""
    angles = torch.from_numpy(rope.angles(positions.cpu().numpy(), axes))[:, None]
    cos, sin = ((table * rope.magnitude).to(x) for table in (angles.cos(), angles.sin()))
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
    append(qkv, attention, state, step)
    q, gate, _, _ = split_heads(qkv, attention)
    q = placed(q, attention.q_norm, attention.rope, step, late=attention.norms_turned)
    if attention.growth is not None:
        q = q * torch.from_numpy(attention.growth.at(step.positions)).to(q)[:, None, None]
    out = q.new_empty(len(q), attention.n_heads, attention.value_dim)
    for b in range(step.n_sequences):
        rows, past = step.rows(b), int(step.past[b])
        first = _first_seen(past, attention)
        cells = _cells(attention, state, step, b, first)
        hidden = hidden_cells(rows.stop - rows.start, cells, past - first, attention)
        if attention.bidirectional and step.ahead is not None:
            show_ahead(hidden, past - first, step.ahead[rows])
        if attention.hides_first and not first:
            hide_first(hidden, past)
        out[rows] = _attend_cells(q[rows], state.kv[attention.layer], cells, hidden, attention)
    if gate is not None:
        out = out * exact_sigmoid(gate)
    return (out * attention.value_scale).flatten(1)


def append(qkv: Tensor, attention: Attention, state: ReferenceState, step: Step) -> None:
    """Keys and values of the rows (T, q | k | v), if they have any, to their cells."""
    _, _, k, v = split_heads(qkv, attention)
    if k is None or v is None:
        return
    cache = state.kv[attention.layer]
    k = placed(k, attention.k_norm, attention.rope, step, late=attention.norms_turned)
    v = placed(v, attention.v_norm, None, step)
    for b in range(step.n_sequences):
        rows = step.rows(b)
        cells = _cells(attention, state, step, b, int(step.past[b]))
        cache.keys[cells], cache.values[cells] = k[rows], v[rows]


def _cells(attention: Attention, state: ReferenceState, step: Step, b: int, first: int) -> Tensor:
    """Of a sequence, from this one to the last of the step."""
    table = step.windowed_pages if state.is_windowed[attention.layer] else step.pages
    assert table is not None, "the step is one of a state whose windowed layers have own pages"
    rows = step.rows(b)
    return state.cells(table[b].tolist(), int(step.past[b]) + rows.stop - rows.start, first)


def _first_seen(position: int, attention: Attention) -> int:
    """Of cells that no row sees, the pages may be gone."""
    if attention.chunked:
        return position - position % attention.window
    return max(position - attention.window + 1, 0) if attention.window else 0


def placed(
    heads: Tensor,
    norm: Norm | None,
    rope: RotaryPositions | None,
    step: Step,
    *,
    late: bool = False,
) -> Tensor:
    """Heads (T, H, D), normed and turned; `late`: turned and normed."""
    if norm is not None and not late:
        heads = normed(heads, norm)
    if rope is not None:
        heads = apply_rope(heads, rope, torch.from_numpy(step.positions), step.axes)
    return normed(heads, norm) if norm is not None and late else heads


def split_heads(
    qkv: Tensor, a: Attention
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """q, the gates of the output, and the rows' own keys and values, if any."""
    widths = [a.q_width, a.k_width, a.v_width, a.width - a.q_width - a.k_width - a.v_width]
    q, k, v, head_gates = torch.split(qkv, widths, dim=1)
    q = q.unflatten(1, (a.n_heads, -1))  # (T, H, Dk), or (T, H, 2 Dk) with its gate
    gate = head_gates[:, :, None] if a.head_gates else None
    if a.gated:
        q, gate = q.split(a.key_dim, dim=2)
    if a.source is KvSource.SHARED:
        return q, gate, None, None
    keys = k.unflatten(1, (a.n_kv_heads, a.key_dim))
    if a.source is KvSource.KEYS:
        return q, gate, keys, keys
    return q, gate, keys, v.unflatten(1, (a.n_kv_heads, a.value_dim))


def _attend_cells(
    q: Tensor, cache: KvLayer, cells: Tensor, hidden: Tensor, attention: Attention
) -> Tensor:
    """One sequence: rows q (T, H, Dk), which do not see the `hidden` (T, C) of its cells."""
    group = attention.n_heads // attention.n_kv_heads
    keys = cache.keys[cells].repeat_interleave(group, dim=1)  # (C, H, Dk)
    values = cache.values[cells].repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,chd->htc", q, keys) * attention.scale
    scores = soft_cap(scores, attention.cap)
    scores = scores.masked_fill(hidden, -math.inf)
    if attention.sinks is not None:
        sink = attention.sinks[:, None, None].expand(-1, len(q), 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=2), dim=2)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=2)
    return torch.einsum("htc,chd->thd", weights, values)


def hide_first(hidden: Tensor, past: int) -> None:
    """Cell 0 from all rows but its own."""
    hidden[:, 0] |= torch.arange(len(hidden), device=hidden.device) + past > 0


def show_ahead(hidden: Tensor, past: int, ahead: Ints) -> None:
    """To each row so many cells behind its own."""
    for row, n in enumerate(ahead.tolist()):
        hidden[row, past + row + 1 : past + row + 1 + n] = False


def hidden_cells(n_rows: int, cells: Tensor, past: int, sight: Attention | None = None) -> Tensor:
    """Which cells (rows, cells) a row of one sequence does not see; `cells` are the last ones. With
    chunks, the first cell is the first of one."""
    row = torch.arange(n_rows, device=cells.device)[:, None] + past
    cell = torch.arange(len(cells), device=cells.device)[None]
    if sight is None:
        return cell > row
    hidden = cell > row if sight.causal else torch.zeros_like(cell > row)
    if sight.chunked:
        return hidden | (cell < row - row % sight.window)
    if sight.window:
        hidden = hidden | (cell <= row - sight.window)
    return hidden
