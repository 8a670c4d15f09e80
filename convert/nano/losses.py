"""The losses: of the next token, and of the MTP head's drafts of the tokens after it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from .nano_network import Network, Past

MTP_WEIGHT = 0.3
MTP_ROWS = 4  # one row of the batch in so many trains the head beside the trunk
STEP_WEIGHTS = (1.0, 0.7, 0.5)  # of a draft's tokens, when the head is trained alone
CHAIN = len(STEP_WEIGHTS)
AHEAD = 1 + CHAIN  # tokens that a row needs beyond the trunk's inputs


def joint(network: Network, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The trunk's loss over `rows` (B, T + AHEAD), and the head's (zero without a head)."""
    n = rows.shape[1] - AHEAD
    hidden = network.model(rows[:, :n])
    trunk = cross_entropy(network.lm_head(hidden), rows[:, 1 : n + 1])
    if not network.shape.num_mtp_layers:
        return trunk, torch.zeros((), device=rows.device)
    few = max(1, len(rows) // MTP_ROWS)
    kept = hidden.split([few, len(rows) - few])[0] if few < len(rows) else hidden
    drafted = network.draft_rows(rows[:few, 1 : n + 1], kept)
    return trunk, cross_entropy(network.lm_head(drafted), rows[:few, 2 : n + 2])


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


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
