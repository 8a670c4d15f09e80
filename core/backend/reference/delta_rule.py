"""Gated DeltaNet with exact replay: the recurrence, one row after the other.

S_t = g_t S_{t-1} + u_t k_t^T,   u_t = b_t (v_t - g_t S_{t-1} k_t),   o_t = S_t q_t
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ..layers import DeltaRule, HeadOrder, RecurrentShape
from ..step import Step
from .paged_attention import exact_sigmoid, normed
from .running_state import RunningState, Spread, convolved, neighbours
from .state import ReferenceState


def delta_rule(rows: Tensor, delta: DeltaRule, state: ReferenceState, step: Step) -> Tensor:
    """(T, q | k | v | z | beta | alpha) to (T, Hv * D)."""
    s, spread = delta.shape, _spread(delta)
    widths = [s.channels, s.value_width, s.n_value_heads, s.n_value_heads]
    mixed, z, beta, alpha = torch.split(rows, widths, dim=1)
    decays, betas = _gates(alpha, beta, delta)  # (T, Hv)
    out = rows.new_empty(len(rows), s.n_value_heads, s.value_dim)
    for b in range(step.n_sequences):
        at = step.rows(b)
        running = RunningState(state.recurrent[delta.layer], state.window, step, b, spread)
        made = convolved(mixed[at], running.history, delta.conv1d)
        q, k, v = queries_keys_values(made, s, delta.norm.eps)
        for t in range(len(q)):
            decay, row_key = decays[at][t], spread(k[t])
            memory = torch.einsum("hvk,hk->hv", running.S, row_key)
            update = betas[at][t][:, None] * (v[t] - decay[:, None] * memory)
            running.advance(t, decay, update, k[t], mixed[at][t])
            out[at][t] = torch.einsum("hvk,hk->hv", running.S, spread(q[t]))
    gated = normed(out, delta.norm) * silu(z.unflatten(1, (s.n_value_heads, -1)))
    return gated.flatten(1)


def _gates(alpha: Tensor, beta: Tensor, delta: DeltaRule) -> tuple[Tensor, Tensor]:
    decays = torch.exp(delta.a.double() * softplus((alpha + delta.dt_bias).double()))
    return decays.float(), exact_sigmoid(beta)


def queries_keys_values(
    convolved_rows: Tensor, s: RecurrentShape, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """silu; then unit-length q and k, q scaled by 1/sqrt(D)."""
    widths = [s.key_width, s.key_width, s.value_width]
    q, k, v = torch.split(silu(convolved_rows), widths, dim=1)
    q = _unit(q.unflatten(1, (s.n_key_heads, -1)), eps) * s.key_dim**-0.5
    k = _unit(k.unflatten(1, (s.n_key_heads, -1)), eps)
    return q, k, v.unflatten(1, (s.n_value_heads, -1))


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def _spread(delta: DeltaRule) -> Spread:
    n = delta.shape.n_value_heads // delta.shape.n_key_heads
    if delta.order is HeadOrder.TILED:
        return lambda x: x.repeat(n, 1)
    return neighbours(delta.shape.n_value_heads)
