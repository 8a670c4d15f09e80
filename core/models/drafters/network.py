"""`DraftNetwork`: a network that drafts from hidden rows of a target.

The features of a row are the target's tapped rows at that position, side by side. The drafter's row
for position p takes the token at p and the features of p - 1, and predicts the token at p + 1. Rows
of drafted tokens take the network's own hidden row of the position before instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...backend.interface import Backend, Forward, Ops, Output, State, Taps
    from ...backend.step import Ints, Step


class DraftNetwork(Protocol):
    taps: tuple[str, ...]  # of the target, in the order in which features lie side by side
    n_features: int  # width of the features of a row
    n_embd: int  # width of the hidden rows that `forward` reads and leaves
    tap: str  # of `forward`: the hidden row from which the next drafted token continues
    # Turns features (T, n_features), given as `step.hidden`, into rows (T, n_embd), left as logits
    # of all rows. None: features are such rows already.
    encode: Forward | None
    # A head over part of the vocabulary: logit i is that of token vocab_subset[i], ascending.
    vocab_subset: Ints | None

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        """Logits of the tokens behind `step.tokens`; `step.hidden` (T, n_embd) is as above."""

    def shortened(self, backend: Backend, vocab_subset: Ints) -> DraftNetwork:
        """The same network with a head over these tokens only, ascending."""
