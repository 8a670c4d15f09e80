"""Kimi's delta attention, row by row, with exact replay (`running_state.py`).

    S_t = S_{t-1} G_t + u_t k_t^T,   u_t = b_t (v_t - S_{t-1} G_t k_t),   o_t = S_t q_t

G_t is diagonal: a decay for each number of a key.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..layers import ChannelDelta
from ..step import Step
from .delta_rule import queries_keys_values
from .paged_attention import exact_sigmoid, normed
from .running_state import RunningState, convolved, neighbours
from .state import ReferenceState


def channel_delta(
    rows: tuple[Tensor, Tensor, Tensor], kda: ChannelDelta, state: ReferenceState, step: Step
) -> Tensor:
    """(T, q | k | v | beta), decays and gates (T, H * D) to (T, H * D)."""
    s, (inputs, decay_rows, gates) = kda.shape, rows
    mixed, beta = torch.split(inputs, [s.channels, s.n_value_heads], dim=1)
    waits = softplus((decay_rows + kda.dt_bias).double()).unflatten(1, (s.n_value_heads, -1))
    decays = torch.exp(kda.a.double()[:, None] * waits).to(inputs.dtype)
    betas = exact_sigmoid(beta)
    out = inputs.new_empty(len(inputs), s.n_value_heads, s.value_dim)
    spread = neighbours(s.n_value_heads)
    for b in range(step.n_sequences):
        at = step.rows(b)
        running = RunningState(state.recurrent[kda.layer], state.window, step, b, spread)
        made = convolved(mixed[at], running.history, kda.conv1d)
        q, k, v = queries_keys_values(made, s, kda.unit_eps)
        for t in range(len(q)):
            decay = decays[at][t]
            memory = torch.einsum("hvk,hk->hv", running.S, decay * k[t])
            update = betas[at][t][:, None] * (v[t] - memory)
            running.advance(t, decay, update, k[t], mixed[at][t])
            out[at][t] = torch.einsum("hvk,hk->hv", running.S, q[t])
    gated = normed(out, kda.norm) * exact_sigmoid(gates).unflatten(1, (s.n_value_heads, -1))
    out_rows: Tensor = gated.flatten(1)
    return out_rows
