"""Several tokens drafted in one call: what goes in, what comes out, and the call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, field

from ..step import Ints, Step
from .rows import HostOutput, Taps

NO_REQUEST: Final = 0


class TokenPicker(Protocol):
    """Picks the tokens of one sequence's draft."""

    # Address of a request as `picking.py` lays it out, which has to stay there; `NO_REQUEST` if
    # only `pick` will do. Where there is one, a backend may leave out `pick` and `accept`.
    request: int

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        """The token at `position`, its index in the sequence, from a row of logits (n_vocab,).
        `UNSURE` ends the draft."""

    def accept(self, token: int) -> None:
        """The token has become part of the draft."""


class DraftSettings(Struct):
    """How to draft for one sequence. Made once, changed from round to round."""

    picker: TokenPicker
    length: int  # tokens at most; 0: its rows are only run
    p_min: float = 0.0  # the draft ends before a token less probable than this
    inverse_temperature: float = 1.0  # factor of the logits when `chances` are computed


class Drafts(Struct):
    """What came out, by sequence of the step."""

    tokens: list[list[int]]
    # The drafter's own probability of each token: the softmax over all its logits, each multiplied
    # by `inverse_temperature`.
    chances: list[list[float]]
    # Drafts that ended without a pick: the logits are not finite, or only the definition can
    # decide. Empty: not recorded.
    unsure: list[bool] = field(default_factory=list)


class DraftLoop(Protocol):
    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        """Run the rows of `step`, then draft from the last row of each sequence.

        The token picked from a row of position p is the sequence's token p + 1. It becomes a row of
        its own, with the `tap` row of the row before it as hidden row, until the draft is long
        enough or ends before a token: one of `stops`, one less probable than `p_min`, or one out
        of broken numbers. The last token drafted is not run. Without `DraftLoopPlan.advances` all
        rows of the draft have the position and the cell of the first; it goes on as it would with.

        `step.out_rows` is ignored. Page tables must have cells for all rows, those of the draft
        included; the contents of these cells are undefined afterwards. A recurrent state advances
        with every row: a draft that may be taken back has to run on a copy of the slot.

        The same `Step` object may be run again with other numbers in all of its arrays, which is
        quicker than a new one: see `StepArrays`.
        """


class BlockDraft(Protocol):
    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        """Run blocks of rows, and pick a token from each row of logits: all of a draft at once.

        `step.out_rows` has the rows of one sequence behind those of another, as many as the draft
        may have tokens. The token picked from a row of position p is the sequence's token
        p + `DraftLoopPlan.ahead`. A draft ends before a token as `DraftLoop` says; no row depends
        on a token of another.
        """


class DraftLoopPlan(Struct, frozen=True):
    """What all calls of a draft loop have in common."""

    max_rows: int  # of a step, catching up included
    max_draft: int  # tokens
    n_vocab: int  # width of the logits that pickers see
    tap: str | None = None  # the hidden rows that the next row's `step.hidden` is; None: none
    vocab_subset: Ints | None = None  # ascending; logit i is that of token vocab_subset[i]
    stops: Collection[int] = ()
    # Each row of a draft is one position and one cell further than the row before. Otherwise all
    # have the place of the first, which is for a forward pass that writes no cells.
    advances: bool = True
    ahead: int = 1  # of `BlockDraft`: from a row's position to the index of the token picked there

    @property
    def taps(self) -> Taps:
        return frozenset() if self.tap is None else frozenset({self.tap})

    def __post_init__(self) -> None:
        vocab_subset = self.vocab_subset
        if vocab_subset is not None and not (
            len(vocab_subset)
            and vocab_subset[0] >= 0
            and vocab_subset[-1] < self.n_vocab
            and (np.diff(vocab_subset) > 0).all()
        ):
            raise ValueError("the tokens of a short head must ascend, within the vocabulary")


class _NoPicker(TokenPicker):
    request = NO_REQUEST

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        raise AssertionError("nothing is drafted")

    def accept(self, token: int) -> None:
        raise AssertionError("nothing is drafted")


NO_DRAFT: Final = DraftSettings(_NoPicker(), 0)  # the rows of a sequence are only run
