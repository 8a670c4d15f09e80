"""Causal attention over whole rows, and of drafts that begin at every row, with gradients.

The queries are taken in blocks, so that only a block's scores exist at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

QUERY_BLOCK = 256

Past = list[tuple[Tensor, Tensor]]  # keys and values, (B, H, T, Dh) each


def draft_attention(q: Tensor, past: Past) -> Tensor:
    """Row j continues the draft that began at row j, and attends to what that draft would.

    Of the first pair, the true text's keys and values, that is rows up to j; of each later pair,
    one step of all drafts, row j alone. With one pair this is causal attention.
    """
    (k, v), *own = past
    if not own:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    own_k, own_v = (torch.stack(pair, 3) for pair in zip(*own, strict=True))  # (B, H, T, S, Dh)
    own_scores = (q.unsqueeze(3) * own_k).sum(-1)
    blocks = []
    for start in range(0, q.shape[2], QUERY_BLOCK):
        end = min(q.shape[2], start + QUERY_BLOCK)
        scores = q[:, :, start:end] @ k[:, :, :end].mT
        weights = _weights(torch.cat([scores, own_scores[:, :, start:end]], -1), start, q.shape[-1])
        of_text, of_drafts = weights.split([end, len(own)], -1)
        drafted = (of_drafts.unsqueeze(-1) * own_v[:, :, start:end]).sum(3)
        blocks.append(of_text @ v[:, :, :end] + drafted)
    return torch.cat(blocks, 2)


def _weights(scores: Tensor, start: int, width: int) -> Tensor:
    """Softmax over the text up to each row, and over all columns behind the text."""
    rows = torch.arange(start, start + scores.shape[-2], device=scores.device)[:, None]
    columns = torch.arange(scores.shape[-1], device=scores.device)
    hidden = (columns > rows) & (columns < start + scores.shape[-2])
    scaled = torch.where(hidden, float("-inf"), scores.float() * (1 / math.sqrt(width)))
    return scaled.softmax(-1).to(scores.dtype)
