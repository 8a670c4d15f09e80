"""Gated DeltaNet of one block: its matrices and its description for the backend.

All input projections become one matrix with rows [q | k | v | z | beta | alpha].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..backend.layers import DeltaRule, HeadOrder, Matrix, RecurrentShape
from ..errors import ModelError

if TYPE_CHECKING:
    from ..backend.interface import Ops, Packed, Rows, State
    from ..backend.step import Step
    from .hparams import Hparams
    from .layout import Layout
    from .model_weights import Weights

Order = NDArray[np.intp]


def read_shape(weights: Weights) -> RecurrentShape:
    """The keys `ssm.*`, which have to agree with each other."""
    meta, label = weights.file.metadata, weights.file.label
    head_dim = meta.int("ssm.state_size", low=1, high=4096)
    shape = RecurrentShape.of_heads(
        n_key_heads=meta.int("ssm.group_count", low=1, high=4096),
        n_value_heads=meta.int("ssm.time_step_rank", low=1, high=4096),
        key_dim=head_dim,
        value_dim=head_dim,
        kernel=meta.int("ssm.conv_kernel", low=2, high=64),
    )
    inner = meta.int("ssm.inner_size", low=1)
    if inner != shape.value_width:
        raise ModelError(
            f"{label}: ssm.inner_size is {inner}, expected state_size * time_step_rank = "
            f"{shape.value_width}; other widths of values and keys are not supported"
        )
    if shape.n_value_heads % shape.n_key_heads:
        raise ModelError(
            f"{label}: {shape.n_value_heads} value heads (ssm.time_step_rank) cannot share "
            f"{shape.n_key_heads} key heads (ssm.group_count) evenly"
        )
    return shape


class DeltaNet:
    def __init__(
        self, hparams: Hparams, weights: Weights, layout: Layout, order: HeadOrder
    ) -> None:
        s = read_shape(weights)
        self.ssm_in = _input_projection(hparams.n_embd, weights, s)
        self.delta = DeltaRule(
            layer=layout.add_recurrent(s),
            shape=s,
            order=order,
            conv1d=weights.vector("ssm_conv1d.weight", s.channels, s.kernel),
            dt_bias=weights.vector("ssm_dt.bias", s.n_value_heads),
            a=weights.vector("ssm_a", s.n_value_heads),
            norm=weights.norm("ssm_norm", s.key_dim, hparams.eps),
        )
        self.ssm_out = weights.matrix(s.value_width, {"ssm_out": hparams.n_embd})

    def __call__(self, ops: Ops, a: Packed, x: Rows | None, step: Step, state: State) -> Rows:
        """x, if any, plus the mixer's output for the normed rows a."""
        heads = ops.delta_rule(ops.matmul(a, self.ssm_in), self.delta, state, step)
        return ops.matmul(heads, self.ssm_out, add_to=x)


def _input_projection(n_embd: int, weights: Weights, s: RecurrentShape) -> Matrix:
    heights: dict[str, int] = {}
    orders: dict[str, Order] = {}
    if weights.has("ssm_in"):  # files of the first qwen3next converter
        heights["ssm_in"] = s.channels + s.value_width
        orders["ssm_in"] = _per_key_head(s, [s.key_dim, s.key_dim, *_shares(s, s.key_dim)])
    else:
        heights |= {"attn_qkv": s.channels, "attn_gate": s.value_width}
    if weights.has("ssm_ba"):
        heights["ssm_ba"] = 2 * s.n_value_heads
        orders["ssm_ba"] = _per_key_head(s, _shares(s, 1))
    else:
        heights |= {"ssm_beta": s.n_value_heads, "ssm_alpha": s.n_value_heads}
    return weights.matrix(n_embd, heights, row_orders=orders)


def _shares(s: RecurrentShape, width: int) -> list[int]:
    """Heights of two kinds of value-head rows within one key head's group."""
    return [width * s.n_value_heads // s.n_key_heads] * 2


def _per_key_head(s: RecurrentShape, heights: list[int]) -> Order:
    """Take rows stored per key head, each group holding all kinds, to one kind after the other."""
    rows = np.arange(s.n_key_heads * sum(heights)).reshape(s.n_key_heads, -1)
    kinds = np.split(rows, np.cumsum(heights)[:-1], axis=1)
    return np.concatenate([kind.reshape(-1) for kind in kinds])
