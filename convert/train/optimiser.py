"""Muon for matrices, Adam for everything else.

Muon moves a matrix by the orthogonal factor of its momentum, found by a few Newton-Schulz steps;
matrices of one shape go through these together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .network_parts import HAS_BFLOAT16

MOMENTUM = 0.95
MATRIX_RATE, REST_RATE = 0.015, 0.004
DECAY = 0.05  # of matrices, times the rate
BETAS, EPS = (0.8, 0.95), 1e-10
# Coefficients of Muon's authors: fast rather than exact, singular values end near 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class Optimiser:
    def __init__(self, model: nn.Module, rates: Mapping[str, float] | None = None) -> None:
        """`rates`: of matrices that are not Muon's, by the ends of their names."""
        self.matrices: list[Tensor] = []
        groups: dict[float, list[Tensor]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            own = [rate for end, rate in (rates or {}).items() if name.endswith(end)]
            if parameter.ndim == 2 and not own:
                self.matrices.append(parameter)
            else:
                groups[own[0] if own else REST_RATE].append(parameter)
        self.momenta = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.Adam(
            [{"params": ps, "base": rate} for rate, ps in groups.items()], betas=BETAS, eps=EPS
        )

    def step(self, scale: float) -> None:
        """`scale` is the schedule's factor of all rates. Leaves no gradients."""
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        self.adam.zero_grad()
        self._step_matrices(MATRIX_RATE * scale)

    def state(self) -> dict[str, Any]:
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    @torch.no_grad()
    def go_on(self, state: Mapping[str, Any]) -> None:
        for momentum, stored in zip(self.momenta, state["momenta"], strict=True):
            momentum.copy_(stored)
        self.adam.load_state_dict(state["adam"])

    @torch.no_grad()
    def _step_matrices(self, rate: float) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, momentum in zip(self.matrices, self.momenta, strict=True):
            if parameter.grad is None:  # not used by this batch
                continue
            momentum.lerp_(parameter.grad, 1 - MOMENTUM)
            ahead = parameter.grad.lerp(momentum, MOMENTUM)
            by_shape[parameter.shape].append((parameter, ahead))
            parameter.grad = None
        for (n_out, n_in), pairs in by_shape.items():
            moves = orthogonalise(torch.stack([ahead for _, ahead in pairs]))
            for (parameter, _), move in zip(pairs, moves, strict=True):
                parameter.mul_(1 - rate * DECAY)
                parameter.add_(move, alpha=-rate * max(1.0, n_out / n_in) ** 0.5)


def orthogonalise(stack: Tensor) -> Tensor:
    """(N, rows, columns) to matrices with the same singular vectors and values near 1."""
    a, b, c = _QUINTIC
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if HAS_BFLOAT16:  # a direction need not be exact, and this is most of a small batch's time
        x = x.bfloat16()
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    moved: Tensor = x.mT if tall else x
    return moved.to(stack.dtype)
