"""The gated delta rule over whole sequences, in chunks, with gradients.

Per value head: S_t = exp(g_t) S_{t-1} + k_t u_t^T, u_t = b_t (v_t - exp(g_t) S_{t-1}^T k_t); the
output is S_t^T q_t. Inside a chunk the u_t solve a triangular system; between chunks S is carried.
Everything is float32, as at inference.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 32


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, chunk: int = CHUNK
) -> Tensor:
    """q, k, v: (B, H, T, Dh), q scaled, k of unit length; log_decay, beta: (B, H, T)."""
    n_tokens = q.shape[2]
    padding = -n_tokens % chunk
    if padding:  # rows of zeros with b = 0 and g = 0 leave the state as it is
        q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        log_decay, beta = (torch.nn.functional.pad(x, (0, padding)) for x in (log_decay, beta))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, v))  # (B, H, N, C, Dh)
    total = log_decay.unflatten(2, (-1, chunk)).cumsum(-1)  # (B, H, N, C)
    beta = beta.unflatten(2, (-1, chunk)).unsqueeze(-1)

    steps = total.unsqueeze(-1) - total.unsqueeze(-2)  # (.., C, C): decay from column to row
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = steps.masked_fill(~below, float("-inf")).exp()
    grown = total.exp().unsqueeze(-1)
    k_beta = k * beta
    system = (k_beta @ k.transpose(-1, -2)) * decay
    right = torch.cat([v * beta, k_beta * grown], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, from_state = solved.split(v.shape[-1], -1)  # u without S, and what S takes away
    scores = (q @ k.transpose(-1, -2)) * decay
    last = total[..., -1:]
    k_left = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    out = _carry(q * grown, scores, own, from_state, k_left, last.exp().unsqueeze(-1))
    return out.flatten(2, 3)[:, :, :n_tokens]


def _carry(
    q: Tensor, scores: Tensor, own: Tensor, from_state: Tensor, k_left: Tensor, shrink: Tensor
) -> Tensor:
    """Chunk after chunk; all arguments (B, H, N, ..), result (B, H, N, C, Dv).

    Unbound at once: the gradient of an indexed chunk would be a whole array of zeros.
    """
    state = own.new_zeros(*own.shape[:2], from_state.shape[-1], own.shape[-1])
    updates, read = [], []
    chunks = [x.unbind(2) for x in (q, own, from_state, k_left, shrink)]
    for q_n, own_n, from_state_n, k_n, shrink_n in zip(*chunks, strict=True):
        u = own_n - from_state_n @ state
        read.append(q_n @ state)
        updates.append(u)
        state = state * shrink_n + k_n @ u
    return torch.stack(read, 2) + scores @ torch.stack(updates, 2)
