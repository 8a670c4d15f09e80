"""Every operation in a few lines of torch: this is what each one means."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..interface import Ops
from ..layers import Attention, DeltaRule, Floats, GateActivation, Moe, Norm
from ..step import Step
from .delta_rule import delta_rule
from .float_matrix import ReferenceMatrix
from .mixture import gated, moe
from .paged_attention import attend, rms_norm
from .state import ReferenceState


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

    def embed(self, table: ReferenceMatrix, step: Step) -> Tensor:
        return table.weight[torch.from_numpy(step.tokens).to(self.device)]

    def keep(self, x: Tensor) -> Tensor:
        return x.clone()

    def out_rows(self, x: Tensor, step: Step) -> Tensor:
        return x[torch.from_numpy(step.out_rows).to(self.device)]

    def to_host(self, x: Tensor) -> Floats:
        return np.asarray(x.to("cpu", torch.float32).numpy())

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, norm)

    def norm_rows(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, norm)

    def norm_pair(self, x: Tensor, x_norm: Norm, y: Tensor, y_norm: Norm) -> Tensor:
        return torch.cat([rms_norm(x, x_norm), rms_norm(y, y_norm)], dim=1)

    def matmul(self, a: Tensor, w: ReferenceMatrix, add_to: Tensor | None = None) -> Tensor:
        y = w.product(a)
        return y if add_to is None else add_to + y

    def gated_ffn(self, a: Tensor, gate_up: ReferenceMatrix, activation: GateActivation) -> Tensor:
        return gated(gate_up.product(a), activation)

    def attend(
        self, qkv: Tensor, attention: Attention, state: ReferenceState, step: Step
    ) -> Tensor:
        return attend(qkv, attention, state, step)

    def delta_rule(
        self, rows: Tensor, delta: DeltaRule, state: ReferenceState, step: Step
    ) -> Tensor:
        return delta_rule(rows, delta, state, step)

    def moe(self, a: Tensor, layer: Moe, add_to: Tensor) -> Tensor:
        return moe(a, layer, add_to)

    def head(self, a: Tensor, w: ReferenceMatrix) -> Tensor:
        return w.product(a)
