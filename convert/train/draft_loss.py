"""How far a drafter's distributions are from the target's, through a head that stays as is.

Cross entropy at first. What counts is how often both would write the same token, so later more and
more of the loss is the share at which they would not (arXiv 2602.23881).

The gradients are made with the loss, while the logits of a few rows are in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from .network_parts import product_type

LOGIT_ROWS = 128  # at once
CLOSENESS = 3.0  # how soon the share of the cross entropy falls where both agree


def frozen_logits(rows: Tensor, head: Tensor) -> Tensor:
    """Of rows (..., D): in pieces, so that all products have one shape."""
    dtype, flat = product_type(rows), rows.flatten(0, -2)
    whole, weights = _whole(flat.to(dtype)), head.to(dtype).T
    logits = rows.new_empty(len(whole), len(head), dtype=dtype)
    for part, out in zip(whole.split(LOGIT_ROWS), logits.split(LOGIT_ROWS), strict=True):
        torch.mm(part, weights, out=out)
    made: Tensor = logits[: len(flat)].unflatten(0, rows.shape[:-1])
    return made


def _whole(rows: Tensor) -> Tensor:
    """With zeros up to a multiple of the rows that go through the head at once."""
    return F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, -len(rows) % LOGIT_ROWS))


def draft_loss(
    rows: Tensor, head: Tensor, wanted: Tensor, weights: Tensor, *, of_acceptance: bool = False
) -> Tensor:
    """The weighted mean over rows, in nats.

    `rows` (N, D) are those that the head (V, D) reads, `wanted` (N, V) distributions, `weights`
    (N,) at least zero. `of_acceptance`: mix in the share of tokens that would be rejected.
    """
    dtype = product_type(rows)
    share = weights / weights.sum().clamp(min=1e-6)
    loss: Tensor = _DraftLoss.apply(  # type: ignore[no-untyped-call]
        rows.to(dtype), head.to(dtype), wanted, share, of_acceptance
    )
    return loss


class _DraftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, head: Tensor, wanted: Tensor, shares: Tensor, of_acceptance: bool
    ) -> Tensor:
        n, total = len(rows), torch.zeros((), device=rows.device)
        rows, wanted, shares = map(_whole, (rows, wanted, shares))
        of_rows = torch.empty_like(rows)
        parts = (x.split(LOGIT_ROWS) for x in (rows, wanted, shares, of_rows))
        for part, aim, share, of_part in zip(*parts, strict=True):
            loss, of_logits = _row_losses(part @ head.T, aim, share, of_acceptance)
            total += loss
            torch.mm(of_logits, head, out=of_part)
        ctx.save_for_backward(of_rows[:n])
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (of_rows,) = ctx.saved_tensors
        return of_rows * grads[0], None, None, None, None


def _row_losses(
    logits: Tensor, wanted: Tensor, shares: Tensor, of_acceptance: bool
) -> tuple[Tensor, Tensor]:
    """Their weighted sum, and its gradient by the logits."""
    log_probs = torch.log_softmax(logits.float(), -1)
    aim, probs = wanted.float(), log_probs.exp()
    losses, slopes = -(aim * log_probs).sum(-1), probs - aim
    if of_acceptance:
        accepted = torch.minimum(probs, aim).sum(-1)
        entropy_share = (-CLOSENESS * accepted).exp()  # a constant of the gradient
        # A probability below the aim is what is accepted; one above it adds nothing.
        below = probs * (probs < aim)
        rejected_slopes = probs * below.sum(-1, keepdim=True) - below
        losses = entropy_share * losses + (1 - entropy_share) * (1 - accepted)
        slopes = torch.lerp(rejected_slopes, slopes, entropy_share[:, None])
    return (losses * shares).sum(), (slopes * shares[:, None]).to(logits.dtype)
