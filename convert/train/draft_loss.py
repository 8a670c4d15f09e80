"""Cross entropy of a drafter's distributions with the target's, through a head that stays as is.

The gradients are made with the loss, while the logits of a few rows are in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .network_parts import product_type

LOGIT_ROWS = 128  # at once


def frozen_logits(rows: Tensor, head: Tensor) -> Tensor:
    dtype = product_type(rows)
    return rows.to(dtype) @ head.to(dtype).T


def draft_loss(rows: Tensor, head: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over rows, in nats.

    `rows` (N, D) are those that the head (V, D) reads, `wanted` (N, V) distributions, `weights`
    (N,) at least zero.
    """
    dtype = product_type(rows)
    share = weights / weights.sum().clamp(min=1e-6)
    loss: Tensor = _DraftLoss.apply(rows.to(dtype), head.to(dtype), wanted, share)  # type: ignore[no-untyped-call]
    return loss


class _DraftLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, head: Tensor, wanted: Tensor, shares: Tensor) -> Tensor:
        of_rows, total = torch.empty_like(rows), torch.zeros((), device=rows.device)
        parts = (x.split(LOGIT_ROWS) for x in (rows, wanted, shares, of_rows))
        for part, aim, share, of_part in zip(*parts, strict=True):
            loss, of_logits = _row_losses(part @ head.T, aim, share)
            total += loss
            torch.mm(of_logits, head, out=of_part)
        ctx.save_for_backward(of_rows)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (of_rows,) = ctx.saved_tensors
        return of_rows * grads[0], None, None, None


def _row_losses(logits: Tensor, wanted: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Their weighted sum, and its gradient by the logits."""
    log_probs = torch.log_softmax(logits.float(), -1)
    aim = wanted.float()
    loss = -((aim * log_probs).sum(-1) * shares).sum()
    return loss, ((log_probs.exp() - aim) * shares[:, None]).to(logits.dtype)
