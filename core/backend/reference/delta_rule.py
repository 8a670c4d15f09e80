"""Gated DeltaNet with exact replay: the recurrence, one row after the other.

S_t = g_t S_{t-1} + u_t k_t^T,   u_t = b_t (v_t - g_t S_{t-1} k_t),   o_t = S_t q_t
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ..layers import DeltaRule, HeadOrder
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
        q, k, v = _convolve(mixed[at], running.history, delta)
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


def _convolve(mixed: Tensor, history: Tensor, delta: DeltaRule) -> tuple[Tensor, Tensor, Tensor]:
    """Depthwise causal convolution and silu; then unit-length q and k, q scaled by 1/sqrt(D)."""
    x = silu(convolved(mixed, history, delta.conv1d))
    s = delta.shape
    q, k, v = torch.split(x, [s.key_width, s.key_width, s.value_width], dim=1)
    q = _unit(q.unflatten(1, (s.n_key_heads, -1)), delta.norm.eps) * s.key_dim**-0.5
    k = _unit(k.unflatten(1, (s.n_key_heads, -1)), delta.norm.eps)
    return q, k, v.unflatten(1, (s.n_value_heads, -1))


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def _spread(delta: DeltaRule) -> Spread:
    n = delta.shape.n_value_heads // delta.shape.n_key_heads
    if delta.order is HeadOrder.TILED:
        return lambda x: x.repeat(n, 1)
    return neighbours(delta.shape.n_value_heads)
