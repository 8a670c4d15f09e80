"""`DraftNetwork`: a network that drafts from hidden rows of a target.

The features of a row are the target's tapped rows at that position, side by side. The drafter's row
for position p takes the token at p and the features of p - 1, and predicts the token at p + 1. Rows
of drafted tokens take the network's own hidden row of the position before instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from ..model_weights import Weights, choose_rows

if TYPE_CHECKING:
    from ...backend.interface import Backend, Forward, HostOutput, Ops, Output, State, Taps
    from ...backend.layers import Matrix
    from ...backend.step import Ints, Step
    from ...gguf.reader import GgufFile


class DraftNetwork(Protocol):
    taps: tuple[str, ...]  # of the target, in the order in which features lie side by side
    n_features: int  # width of the features of a row
    n_embd: int  # width of the hidden rows that `forward` reads and leaves
    tap: str  # of `forward`: the hidden row from which the next drafted token continues
    # Turns features (T, n_features), given as `step.hidden`, into rows (T, n_embd), which it leaves
    # as `Ops.head` leaves logits. None: features are such rows already.
    encode: Forward | None
    # Its rows become cells of its own keys and values. Otherwise it reads the target's, and drafts
    # from the newest row alone, at one position.
    fills_cells: bool = True
    # A head over part of the vocabulary: logit i is that of token vocab_subset[i], ascending.
    vocab_subset: Ints | None

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        """Logits of the tokens behind `step.tokens`; `step.hidden` (T, n_embd) is as above."""

    def shortened(self, backend: Backend, vocab_subset: Ints) -> DraftNetwork:
        """The same network with a head over these tokens only, ascending."""


class BlockNetwork(DraftNetwork):
    """Drafts a block of tokens in one pass.

    Its cell for position p comes from the features of p - 1 alone; `tap` and `encode` are not used,
    and `n_embd` is `n_features`. A block's rows lie behind the cells: the newest token, then masks.
    """

    tap, encode = "", None
    n_unread: int  # rows of a block before the one that predicts the first drafted token
    most_drafted: int
    mask_token: int
    correction: RowCorrection | None

    @abstractmethod
    def read(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        """Cells from the features `step.hidden` (T, n_features); `step.out_rows` is empty."""


class RowCorrection(Protocol):
    """Changes the logits of a block's rows, one after the other, by the token before each."""

    taps: Taps  # of `BlockNetwork.forward`, whose rows it reads

    def compile(self, backend: Backend, max_rows: int) -> None:
        """Before the first call, with up to so many tokens."""

    def shortened(self, backend: Backend, vocab_subset: Ints) -> RowCorrection:
        """For the network with a head over these tokens only."""

    def correct(self, tokens: Ints, output: HostOutput, at: Sequence[BlockPlace]) -> list[float]:
        """Change the logits of a row of each sequence, in place, by the token before it.

        Returns how sure the network is of each row; nothing if it does not say.
        """


class BlockPlace(NamedTuple):
    """Of a row of a block, in what a pass over several blocks leaves."""

    out: int  # among the rows with logits
    row: int  # among all rows


class HeadRows(Struct, frozen=True):
    """Where the rows of a whole head are stored."""

    file: GgufFile
    stem: str
    n_vocab: int
    n_embd: int

    def chosen(self, backend: Backend, tokens: Ints) -> Matrix:
        """A copy of the rows of these tokens.

        Few tokens make up most of what a model writes, and the output matrix is most of what a
        drafted token costs.
        """
        part = Weights(self.file, backend).part(self.stem, self.n_vocab, self.n_embd)
        assert part is not None, "the file was checked when it was loaded"
        return backend.matrix([choose_rows(part, tokens)])
