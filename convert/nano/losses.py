"""The losses: of the next token, and of the MTP head's drafts of the tokens after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .draft_attention import Past
from .fusion import fused
from .nano_network import Network, product_type

MTP_WEIGHT = 0.3
MTP_ROWS = 8  # one row of the batch in so many trains the head beside the trunk
STEP_WEIGHTS = (1.0, 0.7, 0.5)  # of a draft's tokens, when the head is trained alone
CHAIN = len(STEP_WEIGHTS)
AHEAD = 1 + CHAIN  # tokens that a row needs beyond the trunk's inputs
LOGIT_ROWS = 512  # at once: their logits stay in the cache


def joint(network: Network, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The trunk's loss over `rows` (B, T + AHEAD), and the head's (zero without a head)."""
    n = rows.shape[1] - AHEAD
    hidden = network.model(rows[:, :n])
    trunk = head_loss(network, hidden, rows[:, 1 : n + 1])
    if not network.shape.num_mtp_layers:
        return trunk, torch.zeros((), device=rows.device)
    few = max(1, len(rows) // MTP_ROWS)
    kept = hidden.split([few, len(rows) - few])[0] if few < len(rows) else hidden
    drafted = network.draft_rows(rows[:few, 1 : n + 1], kept)
    return trunk, head_loss(network, drafted, rows[:few, 2 : n + 2])


def chained(network: Network, rows: Tensor) -> Tensor:
    """The head alone, drafting CHAIN tokens from every row: it learns the trunk's
    distributions.

    As in use, each step continues from the head's own hidden rows and attends to the true text
    before the draft. The tokens are the true ones, since later steps count only if the earlier
    ones were right.
    """
    n = rows.shape[1] - AHEAD
    with torch.no_grad():
        hidden = network.model(rows[:, : n + CHAIN])
        wanted = torch.softmax(network.lm_head(hidden).float(), -1)
    drafted = hidden[:, :n]
    past: Past = []
    total = torch.zeros((), device=rows.device)
    for i, weight in enumerate(STEP_WEIGHTS):
        drafted = network.draft_rows(rows[:, i + 1 : i + 1 + n], drafted, past)
        log_probs = torch.log_softmax(network.lm_head(drafted).float(), -1)
        total = total - weight * (wanted[:, i + 1 : i + 1 + n] * log_probs).sum(-1).mean()
    return total / sum(STEP_WEIGHTS)


def head_loss(network: Network, hidden: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the head's logits, of which only a few rows exist at a time."""
    dtype = product_type(hidden)
    rows, weight = hidden.flatten(0, 1).to(dtype), network.lm_head.weight.to(dtype)
    loss: Tensor = _HeadLoss.apply(rows, weight, targets.flatten())  # type: ignore[no-untyped-call]
    return loss


class _HeadLoss(torch.autograd.Function):
    """The gradients are made with the loss, while the logits are at hand."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        of_rows, of_weight = torch.empty_like(rows), torch.zeros_like(weight, dtype=torch.float32)
        total = torch.zeros((), device=rows.device)
        buffer = rows.new_empty(LOGIT_ROWS, len(weight))
        parts = (x.split(LOGIT_ROWS) for x in (rows, targets, of_rows))
        for part, wanted, of_part in zip(*parts, strict=True):
            logits = torch.mm(part, weight.T, out=buffer[: len(part)])
            loss, of_logits = _softmax_loss(logits, wanted, 1 / len(rows))
            total += loss
            if any(ctx.needs_input_grad):
                torch.mm(of_logits, weight, out=of_part)
                of_weight += of_logits.T @ part
        ctx.save_for_backward(of_rows, of_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        of_rows, of_weight = ctx.saved_tensors
        return of_rows * grads[0], of_weight * grads[0], None


@fused
def _softmax_loss(logits: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The weighted sum of losses, and its gradient by the logits."""
    log_probs = torch.log_softmax(logits.float(), -1)
    right = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    loss = -torch.where(right, log_probs, 0.0).sum() * weight
    return loss, ((log_probs.exp() - right.float()) * weight).to(logits.dtype)
