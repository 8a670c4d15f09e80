"""The gated delta rule over whole sequences, in chunks, with gradients.

Per value head: S_t = exp(g_t) S_{t-1} + k_t u_t^T, u_t = b_t (v_t - exp(g_t) S_{t-1}^T k_t); the
output is S_t^T q_t. Inside a chunk the u_t solve a triangular system; between chunks S is carried.
Everything is float32, as at inference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .fusion import fused

CHUNK = 32


class DeltaTerms(NamedTuple):
    q: Tensor  # (B, T, H, Dh), scaled
    k: Tensor  # (B, T, H, Dh), of unit length
    v: Tensor  # (B, T, H, Dh)
    log_decay: Tensor  # (B, T, H)
    beta: Tensor  # (B, T, H)


def gated_delta_rule(terms: DeltaTerms, chunk: int = CHUNK) -> Tensor:
    """(B, T, H, Dh)"""
    n_rows, n_tokens, n_heads, width = terms.v.shape
    q, scores, *carried = within_chunks(*terms, chunk)
    by_chunk = [x.unflatten(0, (-1, n_rows * n_heads)) for x in carried]
    updates, states = _Carry.apply(*by_chunk)  # type: ignore[no-untyped-call]
    read = torch.bmm(q, states.flatten(0, 1))
    out = torch.baddbmm(read, scores, updates.flatten(0, 1))
    by_head = out.view(-1, n_rows, n_heads, chunk, width)  # (N, B, H, C, Dv)
    return by_head.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :n_tokens]


@fused
def within_chunks(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, chunk: int
) -> tuple[Tensor, ...]:
    """What needs no state of an earlier chunk; (N B H, C, ..) each."""
    q, k, v, log_decay, beta = (_by_chunk(x, chunk) for x in (q, k, v, log_decay, beta))
    total = log_decay.cumsum(-1)  # (N B H, C)
    steps = total.unsqueeze(-1) - total.unsqueeze(-2)  # (.., C, C): decay from column to row
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = steps.masked_fill(~below, float("-inf")).exp()
    grown = total.exp().unsqueeze(-1)
    k_beta = k * beta.unsqueeze(-1)
    system = torch.bmm(k_beta, k.mT) * decay
    right = torch.cat([v * beta.unsqueeze(-1), k_beta * grown], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, from_state = solved.split(v.shape[-1], -1)  # u without S, and what S takes away
    scores = torch.bmm(q, k.mT) * decay
    last = total[:, -1:]
    k_left = k * (last - total).exp().unsqueeze(-1)
    return q * grown, scores, own, from_state, k_left, last.exp().unsqueeze(-1)


def _by_chunk(x: Tensor, chunk: int) -> Tensor:
    """(B, T, H, ..) as (N B H, C, ..); rows of zeros at the end leave the state as it is."""
    x = torch.nn.functional.pad(x, (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % chunk))
    x = x.unflatten(1, (-1, chunk))
    return x.transpose(2, 3).transpose(0, 1).flatten(0, 2)


class _Carry(torch.autograd.Function):
    """The updates u and the state before each chunk, chunk after chunk; all (N, B H, ..).

    Two products a chunk in order, forward and backward; all else is done for all chunks at once.
    """

    @staticmethod
    def forward(ctx: Any, *terms: Tensor) -> tuple[Tensor, Tensor]:
        own, from_state, k_left, shrink = terms
        n_chunks, n_heads, _, width = own.shape
        updates = torch.empty_like(own, memory_format=torch.contiguous_format)
        states = own.new_zeros(n_chunks, n_heads, from_state.shape[-1], width)
        for n in range(n_chunks):
            torch.baddbmm(own[n], from_state[n], states[n], alpha=-1, out=updates[n])
            if n + 1 < n_chunks:
                kept = states[n] * shrink[n]
                torch.baddbmm(kept, k_left[n].mT, updates[n], out=states[n + 1])
        ctx.save_for_backward(from_state, k_left, shrink, updates, states)
        return updates, states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        from_state, k_left, shrink, updates, states = ctx.saved_tensors
        of_own, of_states = (grad.contiguous() for grad in grads)
        of_next = torch.zeros_like(states)  # the gradient of the state behind each chunk
        for n in reversed(range(len(states))):
            if n + 1 < len(states):
                of_own[n].baddbmm_(k_left[n], of_next[n])
            if n:
                torch.addcmul(of_states[n], of_next[n], shrink[n], out=of_next[n - 1])
                of_next[n - 1].baddbmm_(from_state[n].mT, of_own[n], alpha=-1)
        of_k = updates @ of_next.mT
        of_shrink = (states * of_next).sum((-2, -1), keepdim=True)
        return of_own, (of_own @ states.mT).neg_(), of_k, of_shrink
