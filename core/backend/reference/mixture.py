"""Mixture of experts in float32: choose, run, add in order of rank."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from ..layers import GateActivation, Gating, Moe
from .float_matrix import ReferenceMatrix

# Keeps a division by a sum of vanishing probabilities finite: llama.cpp's value.
SMALLEST_SUM = 2.0**-14


def activate(x: Tensor, activation: GateActivation) -> Tensor:
    return silu(x) if activation is GateActivation.SILU else gelu(x, approximate="tanh")


def gated(gate_up: Tensor, activation: GateActivation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, activation) * up


def route(logits: Tensor, moe: Moe) -> tuple[Tensor, Tensor]:
    """Experts of each row and their weights, (T, n_used) each, best first, lower index on ties."""
    if moe.gating is Gating.SIGMOID:
        probs = torch.sigmoid(logits)
    elif moe.gating is Gating.SOFTMAX:
        probs = torch.softmax(logits, dim=-1)
    else:
        probs = logits
    score = probs if moe.probs_bias is None else probs + moe.probs_bias
    chosen = torch.sort(score, dim=-1, descending=True, stable=True).indices[:, : moe.n_used]
    weights = probs.gather(1, chosen)
    if moe.gating is Gating.SOFTMAX_OF_CHOSEN:
        weights = torch.softmax(weights, dim=-1)
    if moe.normalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(SMALLEST_SUM)
    return chosen, weights * moe.scale


def moe(a: Tensor, moe: Moe, add_to: Tensor) -> Tensor:
    router: ReferenceMatrix = moe.gate_inp
    chosen, weights = route(router.product(a), moe)
    routed = torch.zeros_like(add_to)
    for t in range(len(a)):
        for expert, weight in zip(chosen[t].tolist(), weights[t], strict=True):
            inner = gated(moe.gate_up.product(a[t], expert), moe.activation)
            routed[t] += weight * moe.down.product(inner, expert)
    if moe.shared is not None:
        inner = gated(moe.shared.gate_up.product(a), moe.activation)
        shared = moe.shared.down.product(inner)
        if moe.shared.gate_inp is not None:
            shared = shared * torch.sigmoid(moe.shared.gate_inp.product(a))
        routed = routed + shared
    return add_to + routed
