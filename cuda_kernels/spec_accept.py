"""Rounds of speculation without a host: which rows run, what is accepted, what comes out.

The sequences that decode together have a table in device memory; kernels read and change it, so
that a round needs nothing from the host:

    draft_begin                    rows for the drafter: what came out last, and the next steps
    k times: drafter, draft_pick   a token for each sequence; it becomes the row of the next step
    verify_begin                   rows for the model: last token and draft of each sequence
    model, head_pick               the model's own token after each row
    spec_accept                    what holds; a record for the host

Without a drafter it is the last three alone; a host that drafts writes `drafts` and DRAFTED before
them. All numbers of rows are counted on the device: a sequence may draft less than the others; one
that has ended has no rows. Rows beyond `starts[-1]` are padding: token 0 of no sequence.

Rows of the table are what the model's kernels read as `Step.slots`, `past` and `replay`, and what
`head_pick` finds its requests by: RowPlaces(rows.sequence_of, rows.positions, table[REQUEST]).

Fields of a sequence, int32, `table[field, sequence]`. The host writes a whole column when a
sequence joins (`sequence_words`). It may change the fields marked H any time, the others only of a
sequence that does not run.

    STATE        RUNS; or why not: STOPPED (one of `stops` came out), FULL (END is reached), UNSURE
                 (the host has to pick: the last token that holds has not been run), EMPTY
    SLOT         H  recurrent state, `Step.slots`
    REQUEST      H  row of the requests, see head_pick.py; -1: only the host can pick, each token
    PAST         cells of the cache, `Step.past`: the position of TOKEN
    N_PENDING_ACCEPTED  pending recurrent factors that are accepted, as in `Step`
    TOKEN        the last token, which has not been run
    END          H  most tokens of prompt and text together
    MAX_DRAFT    H  tokens that a draft may have
    P_MIN        H  bits of a float32: a draft ends before a token less probable
    DRAFT_FIRST  H  first cell that the drafter sees; its `past` counts from there
    LENGTH       tokens that the draft of this round may have
    DRAFTED      tokens that it has
    FRESH        tokens that the drafter has not read: fresh[sequence, :FRESH], the last one TOKEN
    FRESH_ROW    row of the model's taps that goes with the first of them; the others follow
    ID           H  the host's number of the sequence

A sequence joins with FRESH = 1, its first token in `fresh`, and its hidden row copied to a row of
the taps that is not a row of the step (there may be spare ones behind). The same after UNSURE, when
the host has run the last token and picked: the numbers of a row do not depend on other rows.

A record, `Records.rows[round % n, sequence]`, is ID, STATE, tokens made, drafted, accepted; then
the tokens made, the draft, and its chances (bits of float32), with room for the longest of each.
The host may read it once `published`, in memory that both can see, has passed that round.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .head_pick import check_requests
from .kernel import Argument, Array, Kernel, Launcher, Source
from .shapes import require_shape

SOURCE = Source("spec_accept.cu")
_OPS = "HostDraftLoop", "Match.accept"
DRAFT_BEGIN = Kernel("draft_begin", SOURCE, _OPS[0], threads=256, registers=48, shared=2200)
VERIFY_BEGIN = Kernel("verify_begin", SOURCE, "Part.add_draft", 256, registers=48, shared=1100)
SPEC_ACCEPT = Kernel("spec_accept", SOURCE, _OPS[1], threads=256, registers=64)
KERNELS = (DRAFT_BEGIN, VERIFY_BEGIN, SPEC_ACCEPT)

MAX_SEQUENCES = 256
RECORD_HEAD = 5
KEPT_FACTORS = 4  # of `n_kept` in core/backend/step.py

Field = IntEnum(
    "Field",
    "STATE SLOT REQUEST PAST N_PENDING_ACCEPTED TOKEN END MAX_DRAFT P_MIN DRAFT_FIRST LENGTH "
    "DRAFTED FRESH "
    "FRESH_ROW ID",
    start=0,
)
State = IntEnum("State", "RUNS STOPPED FULL UNSURE EMPTY", start=0)


@dataclass(frozen=True, slots=True)
class SequenceTable:
    table: Array  # int32 (len(Field), B)
    fresh: Array  # int32 (B, K + 1), K: tokens that a draft can have at most
    drafts: Array  # int32 (B, K)
    chances: Array  # float32 (B, K)

    @property
    def n(self) -> int:
        return int(self.table.shape[1])

    @property
    def max_draft(self) -> int:
        return int(self.drafts.shape[1])

    def check(self, most: int) -> None:
        if not 1 <= self.n <= MAX_SEQUENCES:
            raise ValueError(f"{self.n} sequences, 1 to {MAX_SEQUENCES} decode together")
        require_shape("table", self.table, (len(Field), self.n))
        require_shape("drafts", self.drafts, (self.n, self.max_draft))
        require_shape("chances", self.chances, (self.n, self.max_draft))
        require_shape("fresh", self.fresh, (self.n, self.max_draft + 1))
        if not 0 <= most <= self.max_draft:
            raise ValueError(f"drafts of {most} tokens, there is room for {self.max_draft}")


@dataclass(frozen=True, slots=True)
class DraftRows:
    """A drafter's step, all int32. Row `out_rows[i]` gives the logits of sequence i."""

    tokens: Array  # (R,)
    positions: Array  # (R,)
    starts: Array  # (B + 1,)
    past: Array  # (B,) as the drafter counts cells
    out_rows: Array  # (B,); 0 of a sequence without rows, whose logits are not read
    # (R,) which row of the taps of the step before goes with each row: for the first step those of
    # the model, then the drafter's own. None: the drafter needs none.
    hidden_rows: Array | None = None

    def check(self, n_sequences: int, n_rows: int) -> None:
        n = int(self.tokens.shape[0])
        if n < n_rows:
            raise ValueError(f"a drafter's step of {n} rows, there may be {n_rows}")
        require_shape("positions", self.positions, (n,))
        require_shape("starts", self.starts, (n_sequences + 1,))
        require_shape("past", self.past, (n_sequences,))
        require_shape("out_rows", self.out_rows, (n_sequences,))
        if self.hidden_rows is not None:
            require_shape("hidden_rows", self.hidden_rows, (n,))

    @property
    def arguments(self) -> list[Argument]:
        rows = [self.tokens, self.positions, self.starts, self.past, self.out_rows]
        return [*rows, self.hidden_rows, int(self.tokens.shape[0])]


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """The model's step, all int32; SLOT, PAST and N_PENDING_ACCEPTED of the table belong to it."""

    tokens: Array  # (R,)
    positions: Array  # (R,)
    starts: Array  # (B + 1,)
    sequence_of: Array  # (R,) the sequence of each row; -1: padding

    def check(self, n_sequences: int) -> int:
        n = int(self.tokens.shape[0])
        require_shape("positions", self.positions, (n,))
        require_shape("sequence_of", self.sequence_of, (n,))
        require_shape("starts", self.starts, (n_sequences + 1,))
        return n


@dataclass(frozen=True, slots=True)
class Records:
    rows: Array  # int32 (rounds that are kept, B, record_width(K))
    counter: Array  # int32 (1,) rounds so far, on the device
    published: Array  # int32 (1,) the same for the host


@dataclass(frozen=True, slots=True)
class Coins:
    """For benchmarks: coins decide how much of a draft holds, as by `Synthetic` in the engine."""

    rates: Array  # float64 (any,): of each place in a draft, if those before held
    requests: Array  # see head_pick.py: whose seeds the coins are of


class RoundRecord(NamedTuple):
    """What a round did to a sequence."""

    id: int
    state: State
    tokens: list[int]  # that came out
    drafted: list[int]
    chances: list[float]  # of these, as the drafter saw them
    n_accepted: int  # of these


def record_width(max_draft: int) -> int:
    return RECORD_HEAD + 3 * max_draft + 1


def read_record(words: NDArray[np.int32]) -> RoundRecord:
    max_draft = (len(words) - RECORD_HEAD - 1) // 3
    text, state, n_made, n_drafted, n_accepted = words[:RECORD_HEAD].tolist()
    drafted = RECORD_HEAD + max_draft + 1
    chances = drafted + max_draft
    return RoundRecord(
        text,
        State(state),
        words[RECORD_HEAD : RECORD_HEAD + n_made].tolist(),
        words[drafted : drafted + n_drafted].tolist(),
        words[chances : chances + n_drafted].view(np.float32).tolist(),
        n_accepted,
    )


def sequence_words(p_min: float = 0.0, **fields: int) -> NDArray[np.int32]:
    """A column of the table, from fields by their names in small letters; what is left out is 0."""
    words = np.zeros(len(Field), np.int32)
    for name, value in fields.items():
        words[Field[name.upper()]] = value
    words[Field.P_MIN] = np.float32(p_min).view(np.int32)
    return words


def draft_begin(
    launcher: Launcher, sequences: SequenceTable, most: int, first: DraftRows, following: DraftRows
) -> None:
    """Lays out the drafter's first step, and one row a sequence of all further ones. A sequence
    may draft `most` tokens, at most MAX_DRAFT, and as many as fit before END."""
    sequences.check(most)
    first.check(sequences.n, sequences.n * (sequences.max_draft + 1))
    following.check(sequences.n, sequences.n)
    launcher.launch(
        DRAFT_BEGIN,
        1,
        [sequences.table, sequences.n, sequences.fresh, sequences.max_draft + 1, most,
         *first.arguments, *following.arguments],
    )  # fmt: skip


def verify_begin(launcher: Launcher, sequences: SequenceTable, most: int, rows: VerifyRows) -> None:
    """Lays out the model's step, with `most` tokens of each draft at most."""
    sequences.check(most)
    n_rows = rows.check(sequences.n)
    if n_rows < sequences.n * (most + 1):
        raise ValueError(
            f"a step of {n_rows} rows, {sequences.n} sequences may have {most + 1} each"
        )
    launcher.launch(
        VERIFY_BEGIN,
        1,
        [sequences.table, sequences.n, sequences.drafts, sequences.max_draft, most,
         rows.tokens, rows.positions, rows.starts, rows.sequence_of, n_rows],
    )  # fmt: skip


def spec_accept(
    launcher: Launcher,
    sequences: SequenceTable,
    rows: VerifyRows,
    picked: Array,
    stops: Array,
    window: int,
    records: Records,
    coins: Coins | None = None,
) -> None:
    """Settles a step whose tokens are `picked`, int32 (R,), by `head_pick`. `stops`, int32 (any,):
    tokens that end a text. `window`: of the recurrent state."""
    sequences.check(0)
    n_rows = rows.check(sequences.n)
    if picked.shape[0] < n_rows:
        raise ValueError(f"{picked.shape[0]} tokens picked for {n_rows} rows")
    n_records = int(records.rows.shape[0])
    width = record_width(sequences.max_draft)
    require_shape("records", records.rows, (n_records, sequences.n, width))
    if n_records < 1:
        raise ValueError("no room for a record")
    thrown: list[Argument] = [None, 0, None]
    if coins is not None:
        check_requests(coins.requests)
        thrown = [coins.rates, int(coins.rates.shape[0]), coins.requests]
    launcher.launch(
        SPEC_ACCEPT,
        1,
        [sequences.table, sequences.n, rows.tokens, rows.starts, picked, sequences.fresh,
         sequences.chances, sequences.max_draft, stops, int(stops.shape[0]), window, KEPT_FACTORS,
         *thrown, records.rows, width, n_records, records.counter, records.published],
    )  # fmt: skip
