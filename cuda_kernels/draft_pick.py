"""The next token of each sequence's draft, and the row that it becomes: see spec_accept.py."""

from __future__ import annotations

from dataclasses import dataclass

from .head_pick import PICK_THREADS, Logits, check_requests
from .kernel import Array, Kernel, Launcher, Source
from .shapes import require_shape
from .spec_accept import DraftRows, SequenceTable

SOURCE = Source("draft_pick.cu")
DRAFT_PICK = Kernel(
    "draft_pick", SOURCE, "HostDraftLoop", threads=PICK_THREADS, registers=144, shared=40_000
)
KERNELS = (DRAFT_PICK,)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """What a draft is picked with."""

    logits: Logits  # (B, stride): row i is of sequence i. Without `sums` all chances are 1
    requests: Array  # see `head_pick`
    stops: Array  # int32 (any,) tokens that a draft ends before
    vocab_subset: Array | None = None  # int32 (n,) a short head: logit i is that of token taken[i]


def draft_pick(
    launcher: Launcher,
    sequences: SequenceTable,
    head: DraftHead,
    step: int,
    ran: DraftRows,
    following: DraftRows,
    *,
    advances: bool = True,
) -> None:
    """The draft's token number `step` of each sequence, from the logits of the step that `ran`.

    A draft ends, as in `HostDraftLoop`, before one of `stops`, before a token less probable than
    P_MIN or one that only the definition can pick, and when it has LENGTH tokens. Otherwise the
    token becomes the sequence's row of `following`: one position and one cell further or, without
    `advances`, at the place of PAST again.
    """
    sequences.check(step + 1)
    logits = head.logits
    logits.check()
    check_requests(head.requests)
    ran.check(sequences.n, 1)
    following.check(sequences.n, sequences.n)
    if logits.rows.shape[0] != sequences.n:
        raise ValueError(f"{logits.rows.shape[0]} rows of logits for {sequences.n} sequences")
    if head.vocab_subset is not None:
        require_shape("vocab_subset", head.vocab_subset, (logits.n_logits,))
    launcher.launch(
        DRAFT_PICK,
        sequences.n,
        [logits.rows, int(logits.rows.shape[1]), logits.n_logits, logits.maxima, logits.sums,
         int(logits.maxima.shape[1]), head.vocab_subset, head.requests, head.stops,
         int(head.stops.shape[0]), sequences.table, sequences.n, sequences.drafts,
         sequences.chances, sequences.max_draft, step, ran.out_rows, following.tokens,
         following.positions, following.starts, following.past, following.hidden_rows,
         int(advances)],
    )  # fmt: skip
