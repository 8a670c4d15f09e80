"""Gated DeltaNet with exact replay: the recurrence, one row after the other.

    S_t = g_t S_{t-1} + u_t k_t^T,   u_t = b_t (v_t - g_t S_{t-1} k_t),   o_t = S_t q_t

(k_t, u_t, g_t) are all that is needed to make the same update again, bit by bit. They are kept for
the last window, so that a rejected draft costs nothing: its factors are not applied.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ..layers import DeltaRule, HeadOrder
from ..step import Step, n_kept
from .paged_attention import exact_sigmoid, normed
from .state import DeltaLayer, ReferenceState


def delta_rule(rows: Tensor, delta: DeltaRule, state: ReferenceState, step: Step) -> Tensor:
    """(T, q | k | v | z | beta | alpha) to (T, Hv * D)."""
    layer = state.delta[delta.layer]
    s = delta.shape
    widths = [s.channels, s.value_width, s.n_value_heads, s.n_value_heads]
    mixed, z, beta, alpha = torch.split(rows, widths, dim=1)
    decays, betas = _gates(alpha, beta, delta)  # (T, Hv)
    out = rows.new_empty(len(rows), s.n_value_heads, s.head_dim)
    for b in range(step.n_sequences):
        at, slot = step.rows(b), int(step.slots[b])
        if step.past[b] == 0:
            layer.S[slot], layer.conv[slot] = 0, 0
        replay, n_rows = int(step.n_pending_accepted[b]), at.stop - at.start
        state_now, history = with_pending(layer, slot, replay, delta)
        kept = n_kept(replay, n_rows, state.window)
        if not kept:
            layer.S[slot], layer.conv[slot] = state_now, history
        q, k, v = _convolve(mixed[at], history, delta)
        window = _Window(layer, slot, state_now, kept, max(0, n_rows - state.window))
        for t in range(len(q)):
            decay, row_key = decays[at][t], _per_value_head(k[t], delta)
            memory = torch.einsum("hvk,hk->hv", window.S, row_key)
            update = betas[at][t][:, None] * (v[t] - decay[:, None] * memory)
            window.advance(t, decay, update, k[t], mixed[at][t], delta)
            out[at][t] = torch.einsum("hvk,hk->hv", window.S, _per_value_head(q[t], delta))
    gated = normed(out, delta.norm) * silu(z.unflatten(1, (s.n_value_heads, -1)))
    return gated.flatten(1)


def _gates(alpha: Tensor, beta: Tensor, delta: DeltaRule) -> tuple[Tensor, Tensor]:
    decays = torch.exp(delta.a.double() * softplus((alpha + delta.dt_bias).double()))
    return decays.float(), exact_sigmoid(beta)


def advance_state(state: Tensor, decay: Tensor, update: Tensor, key: Tensor) -> Tensor:
    """The one place where a state moves on, so that a replay repeats every rounding."""
    return state * decay[:, None, None] + update[:, :, None] * key[:, None, :]


def with_pending(layer: DeltaLayer, slot: int, n: int, delta: DeltaRule) -> tuple[Tensor, Tensor]:
    """The state and the last inputs of a slot after the first n pending rows."""
    state = layer.S[slot]
    for t in range(n):
        key = _per_value_head(layer.keys[slot, t], delta)
        state = advance_state(state, layer.decays[slot, t], layer.updates[slot, t], key)
    return state, torch.cat([layer.conv[slot], layer.inputs[slot, :n]])[n:]


class _Window:
    """The running state of one sequence; stores what is final and the factors of what is not."""

    def __init__(
        self, layer: DeltaLayer, slot: int, state: Tensor, kept: int, n_final: int
    ) -> None:
        self.layer, self.slot, self.S = layer, slot, state
        self.kept, self.n_final = kept, n_final  # factors that stay; rows that are final

    def advance(
        self,
        t: int,
        decay: Tensor,
        update: Tensor,
        key: Tensor,
        inputs: Tensor,
        delta: DeltaRule,
    ) -> None:
        layer, slot = self.layer, self.slot
        self.S = advance_state(self.S, decay, update, _per_value_head(key, delta))
        if t < self.n_final:
            layer.S[slot] = self.S
            layer.conv[slot] = torch.cat([layer.conv[slot], inputs[None]])[1:]
            return
        i = t - self.n_final + self.kept
        layer.keys[slot, i], layer.updates[slot, i] = key, update
        layer.decays[slot, i], layer.inputs[slot, i] = decay, inputs


def _convolve(mixed: Tensor, history: Tensor, delta: DeltaRule) -> tuple[Tensor, Tensor, Tensor]:
    """Depthwise causal convolution and silu; then unit-length q and k, q scaled by 1/sqrt(D)."""
    weight: Tensor = delta.conv1d  # (channels, kernel)
    inputs = torch.cat([history, mixed])
    windows = inputs.unfold(0, weight.shape[1], 1)  # (T, channels, kernel), oldest first
    x = silu((windows * weight).sum(-1))
    s = delta.shape
    q, k, v = torch.split(x, [s.key_width, s.key_width, s.value_width], dim=1)
    q = _unit(q.unflatten(1, (s.n_key_heads, -1)), delta.norm.eps) * s.head_dim**-0.5
    k = _unit(k.unflatten(1, (s.n_key_heads, -1)), delta.norm.eps)
    return q, k, v.unflatten(1, (s.n_value_heads, -1))


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def _per_value_head(x: Tensor, delta: DeltaRule) -> Tensor:
    """(Hk, D) to (Hv, D): the key head that each value head uses."""
    n = delta.shape.n_value_heads // delta.shape.n_key_heads
    if delta.order is HeadOrder.TILED:
        return x.repeat(n, 1)
    return x.repeat_interleave(n, dim=0)
