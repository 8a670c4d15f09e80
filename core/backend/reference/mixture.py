"""Mixture of experts in float32: choose, run, add in order of rank."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from ..layers import (
    OAI_SLOPE,
    QUICK_GELU_SLOPE,
    Gate,
    GateActivation,
    Gating,
    Moe,
    PlainActivation,
)
from .float_matrix import ReferenceMatrix
from .paged_attention import exact_sigmoid

# Keeps a division by a sum of vanishing probabilities finite: llama.cpp's value.
SMALLEST_SUM = 2.0**-14


def activate(x: Tensor, activation: GateActivation) -> Tensor:
    return silu(x) if activation is GateActivation.SILU else gelu(x, approximate="tanh")


def gated(gates: Tensor, up: Tensor, gate: Gate) -> Tensor:
    if gate.activation is GateActivation.OAI:
        if gate.limit:
            gates, up = gates.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
        return gates * torch.sigmoid(OAI_SLOPE * gates) * (up + 1)
    active = activate(gates, gate.activation)
    if gate.limit:
        active, up = active.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
    return active * up


def gated_halves(both: Tensor, gate: Gate) -> Tensor:
    """Of rows [gates | up]."""
    gates, up = both.chunk(2, dim=-1)
    return gated(gates, up, gate)


def route(logits: Tensor, moe: Moe) -> tuple[Tensor, Tensor]:
    """Experts of each row and their weights, (T, n_used) each, best first, lower index on ties."""
    if moe.gating is Gating.SIGMOID:
        probs = exact_sigmoid(logits)
    elif moe.gating is Gating.SOFTMAX:
        probs = torch.softmax(logits, dim=-1)
    else:
        probs = logits
    score = probs if moe.probs_bias is None else probs + moe.probs_bias
    if moe.n_groups_used < moe.n_groups:
        score = score.masked_fill(~_of_best_groups(score, moe), -math.inf)
    chosen = torch.sort(score, dim=-1, descending=True, stable=True).indices[:, : moe.n_used]
    weights = probs.gather(1, chosen)
    if moe.gating is Gating.SOFTMAX_OF_CHOSEN:
        weights = torch.softmax(weights, dim=-1)
    elif moe.gating is Gating.SIGMOID_OF_CHOSEN:
        weights = exact_sigmoid(weights)
    if moe.normalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(SMALLEST_SUM)
    weights = weights * moe.scale
    if moe.expert_scale is not None:
        weights = weights * moe.expert_scale[chosen]
    return chosen, weights


def _of_best_groups(score: Tensor, moe: Moe) -> Tensor:
    """Which experts (T, E) lie in the groups whose two best experts score most in sum."""
    grouped = score.unflatten(1, (moe.n_groups, -1))
    best_two = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
    order = torch.sort(best_two, dim=-1, descending=True, stable=True).indices
    used = torch.zeros_like(best_two, dtype=torch.bool)
    used.scatter_(1, order[:, : moe.n_groups_used], True)
    return used.repeat_interleave(grouped.shape[-1], dim=1)


def activate_alone(x: Tensor, activation: PlainActivation) -> Tensor:
    if activation is PlainActivation.GELU_QUICK:
        return x * torch.sigmoid(QUICK_GELU_SLOPE * x)
    if activation is PlainActivation.RELU_SQUARED:
        return x.relu().square()
    return gelu(x, approximate="tanh" if activation is PlainActivation.GELU_TANH else "none")


def activated(rows: Tensor, moe: Moe) -> Tensor:
    if moe.activation is not None:
        return activate_alone(rows, moe.activation)
    return gated_halves(rows, moe.gate)


def one_after_the_other(a: Tensor, chosen: Tensor, weights: Tensor, moe: Moe) -> Tensor:
    """What the chosen experts make of each row, in the order of their choice."""
    routed = a.new_zeros(len(a), moe.down.weight.shape[-2])
    for t in range(len(a)):
        for expert, weight in zip(chosen[t].tolist(), weights[t], strict=True):
            x, weight = (a[t] * weight, 1.0) if moe.weighs_inputs else (a[t], weight)
            inner = activated(moe.gate_up.product(x, expert, t), moe)
            routed[t] += weight * moe.down.product(inner, expert, t)
    return routed


ExpertSum = Callable[[Tensor, Tensor, Tensor, Moe], Tensor]


def moe(
    a: Tensor, moe: Moe, routed_by: Tensor, sum_of_experts: ExpertSum = one_after_the_other
) -> Tensor:
    router: ReferenceMatrix = moe.gate_inp
    chosen, weights = route(router.product(routed_by), moe)
    routed = sum_of_experts(a, chosen, weights, moe)
    if moe.shared is not None:
        inner = gated_halves(moe.shared.gate_up.product(a), moe.shared.gate)
        shared = moe.shared.down.product(inner)
        if moe.shared.gate_inp is not None:
            shared = shared * exact_sigmoid(moe.shared.gate_inp.product(a))
        routed = routed + shared
    return routed
