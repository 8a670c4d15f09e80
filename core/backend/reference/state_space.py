"""Mamba-2 and the convolutions of LFM2, row by row, with exact replay (`running_state.py`).

    S_t = g_t S_{t-1} + (t x_t) B_t^T,   y_t = S_t C_t + d x_t

Nothing that moves the state on depends on the state.
"""

from __future__ import annotations

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn.functional import softplus

from ..layers import ShortConvolution, StateSpace
from ..step import Step
from .paged_attention import exact_silu, normed
from .running_state import RunningState, convolved, neighbours
from .state import ReferenceState


def state_space(rows: Tensor, layer: StateSpace, state: ReferenceState, step: Step) -> Tensor:
    """(T, z | x | B | C | dt) to (T, H * P)."""
    s, spread = layer.shape, neighbours(layer.shape.n_value_heads)
    z, mixed, dt = torch.split(rows, [s.value_width, s.channels, s.n_value_heads], dim=1)
    waits = softplus((dt + layer.dt_bias).double())
    decays = torch.exp(layer.a.double() * waits).to(rows.dtype)
    waits = waits.to(rows.dtype)
    out = rows.new_empty(len(rows), s.n_value_heads, s.value_dim)
    for b in range(step.n_sequences):
        at = step.rows(b)
        running = RunningState(state.recurrent[layer.layer], state.window, step, b, spread)
        convolution = convolved(mixed[at], running.history, layer.conv1d)
        x, key, query = torch.split(
            exact_silu(convolution + layer.conv_bias),
            [s.value_width, s.key_width, s.key_width],
            dim=1,
        )
        x = x.unflatten(1, (s.n_value_heads, -1))
        key, query = (part.unflatten(1, (s.n_key_heads, -1)) for part in (key, query))
        for t in range(len(x)):
            update = waits[at][t][:, None] * x[t]
            running.advance(t, decays[at][t], update, key[t], mixed[at][t])
            read = torch.einsum("hvk,hk->hv", running.S, spread(query[t]))
            out[at][t] = read + layer.d[:, None] * x[t]
    return _norm_slices(out.flatten(1) * exact_silu(z), layer)


def _norm_slices(y: Tensor, layer: StateSpace) -> Tensor:
    if layer.norm is None:
        return y
    slices = layer.shape.n_key_heads, -1
    norm = replace(layer.norm, weight=layer.norm.weight.unflatten(0, slices))
    return normed(y.unflatten(1, slices), norm).flatten(1)


def short_convolution(
    rows: Tensor, layer: ShortConvolution, state: ReferenceState, step: Step
) -> Tensor:
    """(T, b | c | x) to (T, channels)."""
    b_rows, c_rows, x_rows = rows.chunk(3, dim=1)
    inputs, out = b_rows * x_rows, torch.empty_like(x_rows)
    nothing = rows.new_empty(0)
    for b in range(step.n_sequences):
        at = step.rows(b)
        running = RunningState(state.recurrent[layer.layer], state.window, step, b, neighbours(0))
        out[at] = c_rows[at] * convolved(inputs[at], running.history, layer.weight)
        for t, row in enumerate(inputs[at]):
            running.advance(t, nothing, nothing[:, None], nothing[:, None], row)
    return out
