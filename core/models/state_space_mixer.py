"""Mamba-2 of one block: its matrices and its description for the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..backend.layers import Norm, RecurrentShape, StateSpace
from ..errors import ModelError
from .hparams import epsilon

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .layout import Layout
    from .model_weights import Weights


def read_shape(weights: Weights) -> RecurrentShape:
    """The keys `ssm.*`, which have to agree with each other."""
    meta, label = weights.file.metadata, weights.file.label
    n_heads = meta.int("ssm.time_step_rank", low=1, high=1 << 16)
    n_groups = meta.int("ssm.group_count", low=1, high=1 << 16)
    inner = meta.int("ssm.inner_size", low=1, high=1 << 24)
    if inner % n_heads or n_heads % n_groups:
        raise ModelError(
            f"{label}: ssm.inner_size {inner}, ssm.time_step_rank {n_heads} and ssm.group_count "
            f"{n_groups} do not divide each other: {n_heads} heads share {inner} values evenly, "
            f"and {n_groups} groups the heads"
        )
    return RecurrentShape.of_heads(
        n_key_heads=n_groups,
        n_value_heads=n_heads,
        key_dim=meta.int("ssm.state_size", low=1, high=1 << 16),
        value_dim=inner // n_heads,
        kernel=meta.int("ssm.conv_kernel", low=2, high=64),
    )


class StateSpaceMixer:
    def __init__(self, n_embd: int, weights: Weights, layout: Layout) -> None:
        s = read_shape(weights)
        bias = np.zeros(s.channels, np.float32)
        if weights.has_tensor("ssm_conv1d.bias"):
            bias = weights.floats("ssm_conv1d.bias", s.channels)
        self.layer = StateSpace(
            layer=layout.add_recurrent(s),
            shape=s,
            conv1d=weights.vector("ssm_conv1d.weight", s.channels, s.kernel),
            conv_bias=weights.backend.vector(bias),
            dt_bias=weights.vector("ssm_dt.bias", s.n_value_heads),
            a=weights.vector("ssm_a", s.n_value_heads),
            d=weights.vector("ssm_d", s.n_value_heads),
            norm=_norm(weights, s) if weights.has("ssm_norm") else None,
        )
        self.ssm_in = weights.matrix(n_embd, {"ssm_in": self.layer.width})
        self.ssm_out = weights.matrix(s.value_width, {"ssm_out": n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus the mixer's output for the normed rows a."""
        heads = ops.state_space(ops.matmul(a, self.ssm_in), self.layer, state, step)
        return ops.matmul(heads, self.ssm_out, add_to=x)


def _norm(weights: Weights, s: RecurrentShape) -> Norm:
    """Stored by group. Its epsilon is the file's, whatever the model makes of that for its rows."""
    weight = weights.floats("ssm_norm.weight", s.n_key_heads, s.value_width // s.n_key_heads)
    vector = weights.backend.vector(weight.reshape(-1))
    return Norm(vector, epsilon(weights.file.metadata))
