"""Causal attention over whole rows, and of drafts that begin at every row, with gradients.

The queries are taken in blocks, and a block's scores are one fused loop between two products: two
thirds of the time of torch's own attention on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .fusion import fused

QUERY_BLOCK = 256

Past = list[tuple[Tensor, Tensor]]  # keys and values, (B, H, T, Dh) each


def draft_attention(q: Tensor, past: Past) -> Tensor:
    """Row j continues the draft that began at row j, and attends to what that draft would.

    Of the first pair, the true text's keys and values, that is rows up to j; of each later pair,
    one step of all drafts, row j alone. With one pair this is causal attention.
    """
    (k, v), *own = past
    if not own:
        out: Tensor = _CausalAttention.apply(q, k, v)  # type: ignore[no-untyped-call]
        return out
    own_k, own_v = (torch.stack(pair, 3) for pair in zip(*own, strict=True))  # (B, H, T, S, Dh)
    own_scores = (q.unsqueeze(3) * own_k).sum(-1)
    blocks = []
    for start, end in _blocks(q.shape[2]):
        scores = q[:, :, start:end] @ k[:, :, :end].mT
        weights = _weights(torch.cat([scores, own_scores[:, :, start:end]], -1), start, q.shape[-1])
        of_text, of_drafts = weights.split([end, len(own)], -1)
        drafted = (of_drafts.unsqueeze(-1) * own_v[:, :, start:end]).sum(3)
        blocks.append(of_text @ v[:, :, :end] + drafted)
    return torch.cat(blocks, 2)


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, QUERY_BLOCK):
        yield start, min(n, start + QUERY_BLOCK)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, kept = torch.empty_like(q), []
        for start, end in _blocks(q.shape[2]):
            scores = q[:, :, start:end] @ k[:, :, :end].mT
            weights = _weights(scores, start, q.shape[-1])
            out[:, :, start:end] = weights @ v[:, :, :end]
            kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, *kept = ctx.saved_tensors
        of_q = torch.empty_like(q)
        of_k, of_v = (torch.zeros_like(x, dtype=torch.float32) for x in (k, v))
        for (start, end), weights in zip(_blocks(q.shape[2]), kept, strict=True):
            of_out = grads[0][:, :, start:end]
            of_scores = _scores_gradient(of_out @ v[:, :, :end].mT, weights, q.shape[-1])
            of_q[:, :, start:end] = of_scores @ k[:, :, :end]
            of_k[:, :, :end] += of_scores.mT @ q[:, :, start:end]
            of_v[:, :, :end] += weights.mT @ of_out
        return of_q, of_k.to(k.dtype), of_v.to(v.dtype)


@fused
def _weights(scores: Tensor, start: int, width: int) -> Tensor:
    """Softmax over the text up to each row, and over all columns behind the text."""
    rows = torch.arange(start, start + scores.shape[-2], device=scores.device)[:, None]
    columns = torch.arange(scores.shape[-1], device=scores.device)
    hidden = (columns > rows) & (columns < start + scores.shape[-2])
    scaled = torch.where(hidden, float("-inf"), scores.float() * (1 / math.sqrt(width)))
    return scaled.softmax(-1).to(scores.dtype)


@fused
def _scores_gradient(of_weights: Tensor, weights: Tensor, width: int) -> Tensor:
    weights32 = weights.float()
    moved = of_weights.float() * weights32
    gradient = moved - weights32 * moved.sum(-1, keepdim=True)
    return (gradient * (1 / math.sqrt(width))).to(weights.dtype)
