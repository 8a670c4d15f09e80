"""What recurrent layers have in common: states that move on row by row, and can be moved again.

    S_t = g_t S_{t-1} + u_t k_t^T

(k_t, u_t, g_t) are all that is needed to make the same update again, bit by bit. They are kept for
the last window, so that a rejected draft costs nothing: its factors are not applied.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..step import Step, n_kept
from .state import RecurrentLayer

Spread = Callable[[Tensor], Tensor]  # (Hk, D) to (Hv, D): the key head that each value head uses


def advance_state(state: Tensor, decay: Tensor, update: Tensor, key: Tensor) -> Tensor:
    """The one place where a state moves on, so that a replay repeats every rounding."""
    columns = decay[:, None, None] if decay.ndim == 1 else decay[:, None, :]
    return state * columns + update[:, :, None] * key[:, None, :]


def with_pending(layer: RecurrentLayer, slot: int, n: int, spread: Spread) -> tuple[Tensor, Tensor]:
    """The state and the last inputs of a slot after the first n pending rows."""
    state = layer.S[slot]
    for t in range(n):
        key = spread(layer.keys[slot, t])
        state = advance_state(state, layer.decays[slot, t], layer.updates[slot, t], key)
    return state, torch.cat([layer.conv[slot], layer.inputs[slot, :n]])[n:]


class RunningState:
    """Of one sequence in a step; stores what is final and the factors of what is not."""

    def __init__(
        self, layer: RecurrentLayer, window: int, step: Step, b: int, spread: Spread
    ) -> None:
        self.layer, self.slot, self.spread = layer, int(step.slots[b]), spread
        if step.past[b] == 0:
            layer.S[self.slot], layer.conv[self.slot] = 0, 0
        at, replay = step.rows(b), int(step.n_pending_accepted[b])
        n_rows = at.stop - at.start
        self.S, self.history = with_pending(layer, self.slot, replay, spread)
        self.kept = n_kept(replay, n_rows, window)  # factors that stay
        if not self.kept:
            layer.S[self.slot], layer.conv[self.slot] = self.S, self.history
        self.n_final = max(0, n_rows - window)

    def advance(self, t: int, decay: Tensor, update: Tensor, key: Tensor, inputs: Tensor) -> None:
        """By row t of the sequence's; `inputs`: what its convolution read."""
        layer, slot = self.layer, self.slot
        self.S = advance_state(self.S, decay, update, self.spread(key))
        if t < self.n_final:
            layer.S[slot] = self.S
            layer.conv[slot] = torch.cat([layer.conv[slot], inputs[None]])[1:]
            return
        i = t - self.n_final + self.kept
        layer.keys[slot, i], layer.updates[slot, i] = key, update
        layer.decays[slot, i], layer.inputs[slot, i] = decay, inputs


def convolved(inputs: Tensor, history: Tensor, weight: Tensor) -> Tensor:
    """A causal convolution of each channel: (T, channels) and the rows before, (channels, kernel)
    with the newest row's weight last."""
    windows = torch.cat([history, inputs]).unfold(0, weight.shape[1], 1)  # oldest first
    return (windows * weight).sum(-1)


def neighbours(n_value_heads: int) -> Spread:
    """Value heads that share a key head lie side by side."""
    return lambda x: x.repeat_interleave(n_value_heads // max(len(x), 1), dim=0)
