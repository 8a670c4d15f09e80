"""Every operation in a few lines of torch: this is what each one means."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..interface import Ops
from ..layers import (
    Attention,
    ChannelDelta,
    DeltaRule,
    DynamicConvolution,
    Floats,
    Gate,
    LatentAttention,
    Moe,
    Norm,
    PlainActivation,
    ShortConvolution,
    StateSpace,
)
from ..step import FIRST_ROW_ID, Step
from .channel_delta import channel_delta
from .delta_rule import delta_rule
from .float_matrix import ReferenceMatrix
from .latent_attention import attend_latent
from .mixture import activate_alone, gated, gated_halves, moe
from .paged_attention import append, attend, normed, soft_cap
from .state import ReferenceState
from .state_space import short_convolution, state_space


class ReferenceOps(Ops):
    """Rows and Packed are float tensors (T, width); a State is a `ReferenceState`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def given_rows(self, step: Step, width: int) -> Tensor:
        if step.received is not None:
            received: Tensor = step.received
            return received
        return torch.tensor(step.hidden, device=self.device, dtype=self.dtype)

    def take_rows(self, rows: Tensor) -> Tensor:
        return rows.to(self.device, copy=True)

    def embed(
        self, table: ReferenceMatrix, step: Step, scale: float = 1.0, *, takes_rows: bool = True
    ) -> Tensor:
        stands_for_row = step.tokens >= FIRST_ROW_ID
        ids = np.where(stands_for_row, 0, step.tokens)
        x = table.weight[torch.from_numpy(ids).to(self.device)] * scale
        if takes_rows and step.embedded is not None:
            given = step.embedded[stands_for_row, : x.shape[1]]
            x[torch.from_numpy(stands_for_row)] = torch.from_numpy(given).to(x)
        return x

    def add_embedded(self, x: Tensor, step: Step, first: int) -> Tensor:
        stands_for_row = step.tokens >= FIRST_ROW_ID
        if step.embedded is None or not stands_for_row.any():
            return x
        added, x = step.embedded[stands_for_row, first : first + x.shape[1]], x.clone()
        x[torch.from_numpy(stands_for_row)] += torch.from_numpy(added).to(x)
        return x

    def keep(self, x: Tensor) -> Tensor:
        return x.clone()

    def out_rows(self, x: Tensor, step: Step) -> Tensor:
        return x[torch.from_numpy(step.out_rows).to(self.device)]

    def to_host(self, x: Tensor) -> Floats:
        return np.asarray(x.to("cpu", torch.float32).numpy())

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return normed(x, norm)

    def norm_rows(self, x: Tensor, norm: Norm) -> Tensor:
        return normed(x, norm)

    def norm_slices(self, x: Tensor, norm: Norm) -> Tensor:
        return normed(x.unflatten(1, (-1, len(norm.weight))), norm).flatten(1)

    def norm_columns(self, x: Tensor, norm: Norm, column: int) -> Tensor:
        parts = [column, len(norm.weight), x.shape[1] - column - len(norm.weight)]
        before, part, behind = x.split(parts, dim=1)
        return torch.cat([before, normed(part, norm), behind], dim=1)

    def add_norm(self, x: Tensor, y: Tensor, norm: Norm, scale: float = 1.0) -> Tensor:
        return (x + normed(y, norm)) * scale

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return (x + y) * scale

    def activate(self, x: Tensor, activation: PlainActivation) -> Tensor:
        return activate_alone(x, activation)

    def pack(self, x: Tensor) -> Tensor:
        return x

    def norm_pair(self, x: Tensor, x_norm: Norm, y: Tensor, y_norm: Norm) -> Tensor:
        return torch.cat([normed(x, x_norm), normed(y, y_norm)], dim=1)

    def matmul(self, a: Tensor, w: ReferenceMatrix, add_to: Tensor | None = None) -> Tensor:
        y = w.product(a)
        return y if add_to is None else add_to + y

    def gated_ffn(self, a: Tensor, gate_up: ReferenceMatrix, gate: Gate) -> Tensor:
        return gated_halves(gate_up.product(a), gate)

    def gate_by(self, gates: Tensor, y: Tensor, column: int, gate: Gate) -> Tensor:
        return gated(gates, y[:, column : column + gates.shape[1]], gate)

    def convolve(self, x: Tensor, factors: Tensor, conv: DynamicConvolution, step: Step) -> Tensor:
        n_groups = x.shape[1] // conv.group
        of_taps = factors[:, conv.first : conv.first + conv.kernel * n_groups]
        weights = of_taps.unflatten(1, (conv.kernel, n_groups)).repeat_interleave(conv.group, dim=2)
        weights = weights + conv.base
        out = torch.zeros_like(x)
        for b in range(step.n_sequences):
            rows, made, of_rows = x[step.rows(b)], out[step.rows(b)], weights[step.rows(b)]
            for tap in range(min(conv.kernel, len(rows))):
                made[tap:] += of_rows[tap:, tap] * rows[: len(rows) - tap]
        return out

    def attend(
        self, qkv: Tensor, attention: Attention, state: ReferenceState, step: Step
    ) -> Tensor:
        return attend(qkv, attention, state, step)

    def append(self, qkv: Tensor, attention: Attention, state: ReferenceState, step: Step) -> None:
        append(qkv, attention, state, step)

    def attend_latent(
        self,
        q: Tensor,
        cells: Tensor,
        attention: LatentAttention,
        state: ReferenceState,
        step: Step,
    ) -> Tensor:
        return attend_latent(q, cells, attention, state, step)

    def delta_rule(
        self, rows: Tensor, delta: DeltaRule, state: ReferenceState, step: Step
    ) -> Tensor:
        return delta_rule(rows, delta, state, step)

    def channel_delta(
        self,
        rows: Tensor,
        decays: Tensor,
        gates: Tensor,
        kda: ChannelDelta,
        state: ReferenceState,
        step: Step,
    ) -> Tensor:
        return channel_delta((rows, decays, gates), kda, state, step)

    def state_space(
        self, rows: Tensor, layer: StateSpace, state: ReferenceState, step: Step
    ) -> Tensor:
        return state_space(rows, layer, state, step)

    def short_convolution(
        self, rows: Tensor, layer: ShortConvolution, state: ReferenceState, step: Step
    ) -> Tensor:
        return short_convolution(rows, layer, state, step)

    def moe(
        self, a: Tensor, layer: Moe, add_to: Tensor | None, routed_by: Tensor | None = None
    ) -> Tensor:
        mixed = moe(a, layer, a if routed_by is None else routed_by)
        return mixed if add_to is None else add_to + mixed

    def head(self, a: Tensor, w: ReferenceMatrix, cap: float = 0.0) -> Tensor:
        return soft_cap(w.product(a), cap)
