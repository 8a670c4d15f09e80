"""`draft_begin` and `draft_pick` draft what the host loop drafts: tokens, rows, cells, chances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from shim.launcher import HostLauncher
from shim.machine import HostMachine, Machine
from support.device_sequences import (
    Floats,
    Ints,
    Rows,
    TinyHead,
    call,
    draft_rows,
    ints,
    new_sequences,
)
from support.picking_rows import requests_of

from nextn.core.backend.draft_loop import HostDraftLoop
from nextn.core.backend.interface import (
    MAXIMA_BLOCK,
    DraftLoopPlan,
    Drafts,
    DraftSettings,
    HostOutput,
)
from nextn.core.backend.step import Step
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.cuda_kernels.draft_pick import DraftHead, draft_pick
from nextn.cuda_kernels.head_pick import Logits, head_summits
from nextn.cuda_kernels.spec_accept import (
    DraftRows,
    Field,
    SequenceTable,
    State,
    draft_begin,
    sequence_words,
)

K, N_CELLS, SEQUENCE = 4, 40, 0
PAGES = np.zeros((1, 1), np.int32)
# The device decides every row of these: where it does not, its drafts end, and a host's go on.
SURE = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_k=200, top_p=0.93, min_p=0.0, temperature=1.3),
    SamplingParams(top_k=3, logit_bias=((5, 2.0), (70, -math.inf), (71, 4.5), (299, 1.0))),
    SamplingParams(temperature=0, logit_bias=tuple((token, 1.5) for token in range(0, 300, 6))),
)


@dataclass
class Scene:
    """Texts with tokens that wait to be read, and what is wanted of each."""

    sequences: SequenceTable
    params: list[SamplingParams]
    taps: Floats  # the model's hidden rows
    n_vocab: int
    vocab_subset: Ints | None
    stops: list[int]

    @property
    def n_logits(self) -> int:
        return self.n_vocab if self.vocab_subset is None else len(self.vocab_subset)

    def field(self, field: Field) -> list[int]:
        values: list[int] = self.sequences.table[field].tolist()
        return values


def scene(seed: int, n_sequences: int = 5, *, short: bool = False) -> Scene:
    rng = np.random.default_rng(seed)
    sequences, n_vocab = new_sequences(n_sequences, K), 300
    vocab_subset = (
        np.sort(rng.choice(n_vocab, 90, replace=False)).astype(np.int32) if short else None
    )
    params = [
        structs.replace(SURE[int(rng.integers(len(SURE)))], seed=sequence)
        for sequence in range(n_sequences)
    ]
    fresh_row = 0
    for sequence in range(n_sequences):
        n_fresh = int(rng.integers(1, K + 2))
        past = int(rng.integers(n_fresh, N_CELLS - 2 * K))
        sequences.fresh[sequence, :n_fresh] = rng.integers(0, n_vocab, n_fresh)
        sequences.table[:, sequence] = sequence_words(
            state=State.RUNS if rng.random() < 0.8 else rng.choice(list(State)[1:]),
            slot=n_sequences - 1 - sequence,
            request=sequence,
            past=past,
            token=sequences.fresh[sequence, n_fresh - 1],
            end=past + 2 + int(rng.choice([0, 1, 2, 100])),
            max_draft=int(rng.choice([0, 1, 3, 50, K])),
            p_min=float(rng.choice([0.0, 0.0, 0.02, 0.3])),
            draft_first=int(rng.integers(0, past - n_fresh + 2)),
            fresh=n_fresh,
            fresh_row=fresh_row,
        )
        fresh_row += K + 1
    taps = rng.normal(0, 1, (fresh_row, TinyHead.WIDTH)).astype(np.float32)
    stops = rng.choice(n_vocab, 20).tolist()
    return Scene(sequences, params, taps, n_vocab, vocab_subset, stops)


# The host loop -----------------------------------------------------------------------------------


def by_host(s: Scene, most: int) -> tuple[Drafts, TinyHead, list[int]]:
    """And the sequences that took part."""
    head = TinyHead(s.n_logits, s.sequences.n, N_CELLS)
    table = s.sequences.table
    running = [
        sequence for sequence in range(s.sequences.n) if table[Field.STATE, sequence] == State.RUNS
    ]
    samplers = [Sampler(params, n_vocab=s.n_vocab, sequence=SEQUENCE) for params in s.params]
    asks: list[DraftSettings] = []
    tokens: list[int] = []
    positions: list[int] = []
    hidden: list[Floats] = []
    starts, past = [0], []
    for sequence in running:
        own = {field.name: int(table[field, sequence]) for field in Field}
        n, first = own["FRESH"], own["PAST"] + 1 - own["FRESH"]
        tokens += s.sequences.fresh[sequence, :n].tolist()
        positions += range(first, first + n)
        hidden += [s.taps[own["FRESH_ROW"] + i] for i in range(n)]
        starts.append(len(tokens))
        past.append(first - own["DRAFT_FIRST"])
        n_missing = own["END"] - own["PAST"] - 1
        length = min(own["MAX_DRAFT"], most, n_missing - 1)  # as the scheduler gives it
        p_min = float(table[Field.P_MIN, sequence : sequence + 1].view(np.float32)[0])
        asks.append(DraftSettings(DraftSampler(samplers[sequence]), length, p_min))
    slots = table[Field.SLOT][running]
    step = Step(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(starts, np.int32),
        slots,
        np.array(past, np.int32),
        np.zeros(len(running), np.int32),
        np.repeat(PAGES, len(running), axis=0),
        np.zeros(0, np.int32),
        np.array(hidden, np.float32),
    )

    def run(step: Step) -> HostOutput:
        assert step.hidden is not None
        logits, taps = head.run(
            Rows(step.tokens, step.positions, step.starts, step.past, step.slots,
                 step.out_rows, step.hidden)
        )  # fmt: skip
        return HostOutput(logits, {"h": taps})

    plan = DraftLoopPlan(99, most, s.n_vocab, "h", s.vocab_subset, frozenset(s.stops))
    return HostDraftLoop(run, plan, window=8)(step, asks), head, running


# The device --------------------------------------------------------------------------------------


def logits_of(machine: Machine, rows: Floats) -> Logits:
    shape = len(rows), -(-rows.shape[1] // MAXIMA_BLOCK)
    made = Logits(rows, np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    call(machine, head_summits, made)
    return made


def laid_out(s: Scene, rows: DraftRows, taps: Floats) -> Rows:
    assert rows.hidden_rows is not None
    hidden = taps[rows.hidden_rows]
    slots = s.sequences.table[Field.SLOT]
    return Rows(rows.tokens, rows.positions, rows.starts, rows.past, slots, rows.out_rows, hidden)


def by_device(machine: Machine, s: Scene, most: int) -> TinyHead:
    n = s.sequences.n
    head = TinyHead(s.n_logits, n, N_CELLS)
    first, following = draft_rows(n, n * (K + 1)), draft_rows(n, n + 1)
    requests, stops = requests_of(s.params, SEQUENCE, s.n_vocab), np.array(s.stops, np.int32)
    call(machine, draft_begin, s.sequences, most, first, following)
    ran, taps = first, s.taps
    for step in range(most):
        rows, taps = head.run(laid_out(s, ran, taps))
        made = DraftHead(logits_of(machine, rows), requests, stops, s.vocab_subset)
        call(machine, draft_pick, s.sequences, made, step, ran, following)
        ran = following
    return head


def assert_same(machine: Machine, s: Scene, most: int) -> None:
    want, host, running = by_host(s, most)
    device = by_device(machine, s, most)
    drafted = s.field(Field.DRAFTED)
    for sequence in range(s.sequences.n):
        if sequence not in running:
            assert drafted[sequence] == 0
            continue
        b = running.index(sequence)
        n = drafted[sequence]
        assert s.sequences.drafts[sequence, :n].tolist() == want.tokens[b]
        np.testing.assert_allclose(s.sequences.chances[sequence, :n], want.chances[b], rtol=2e-6)
        # The cells of the text. Those of a draft are nobody's as soon as it ends.
        slot = s.field(Field.SLOT)[sequence]
        end = s.field(Field.PAST)[sequence] + 1 - s.field(Field.DRAFT_FIRST)[sequence]
        np.testing.assert_array_equal(device.cells[slot, :end], host.cells[slot, :end])


@pytest.mark.parametrize("short", [False, True])
def test_drafts_are_those_of_the_host_loop(machine: Machine, short: bool) -> None:
    lengths = set()
    for seed in range(24):
        s = scene(seed, 1 + seed % 6, short=short)
        assert_same(machine, s, most=K - seed % 3)
        lengths |= set(s.field(Field.DRAFTED))
    assert lengths == {*range(K + 1)}


def test_a_line_never_leaves_the_cells_that_it_may_have(machine: Machine) -> None:
    """Whether its draft ends early or not: a text of END tokens has END - 1 cells."""
    for seed in range(12):
        s = scene(seed)
        head = by_device(machine, s, K)
        for sequence in range(s.sequences.n):
            table = s.sequences.table
            past, first = table[Field.PAST, sequence], table[Field.DRAFT_FIRST, sequence]
            used = np.flatnonzero(head.cells[table[Field.SLOT, sequence]].any(axis=1))
            if table[Field.STATE, sequence] != State.RUNS:
                assert not len(used)
            else:
                assert used.max() + first < table[Field.END, sequence] - 1
                assert used.max() + first < past + max(K, 1)


def test_without_sums_every_chance_is_one(machine: Machine) -> None:
    s = scene(3)
    n = s.sequences.n
    s.sequences.table[Field.P_MIN] = np.float32(0.99).view(np.int32)
    first, following = draft_rows(n, n * (K + 1), hidden=False), draft_rows(n, n, hidden=False)
    call(machine, draft_begin, s.sequences, K, first, following)
    rows = np.random.default_rng(0).normal(0, 1, (n, s.n_vocab)).astype(np.float32)
    made = logits_of(machine, rows)
    requests = requests_of([SamplingParams(temperature=0)] * n, SEQUENCE, s.n_vocab)
    head = DraftHead(replace(made, sums=None), requests, ints(0))
    call(machine, draft_pick, s.sequences, head, 0, first, following)
    runs = [i for i in range(n) if s.field(Field.LENGTH)[i] > 0]
    assert s.sequences.drafts[runs, 0].tolist() == rows[runs].argmax(axis=1).tolist()
    assert (s.sequences.chances[runs, 0] == 1).all()


def test_broken_logits_end_a_draft(machine: Machine) -> None:
    """And the row that is left has a token all the same."""
    sequences = new_sequences(2, K)
    for sequence in range(2):
        words = sequence_words(past=3, token=11 + sequence, end=60, max_draft=K, fresh=1)
        sequences.table[:, sequence] = words
    first, following = draft_rows(2, 2 * (K + 1)), draft_rows(2, 2)
    requests = requests_of([SamplingParams(temperature=0)], SEQUENCE, 70)
    call(machine, draft_begin, sequences, K, first, following)
    rows, ran = np.zeros((2, 70), np.float32), first
    rows[1, 4], rows[0, 9] = math.nan, 1.0
    for step in range(3):
        head = DraftHead(logits_of(machine, rows), requests, ints(0))
        call(machine, draft_pick, sequences, head, step, ran, following)
        ran = following
        assert following.tokens.tolist() == [9, 12]
        assert following.positions.tolist() == [4 + step] * 2
    assert sequences.table[Field.DRAFTED].tolist() == [3, 0]


def test_padding_is_harmless(machine: Machine) -> None:
    """Rows of nobody: token 0, position 0, hidden row 0."""
    s = scene(5)
    n = s.sequences.n
    first, following = draft_rows(n, n * (K + 1)), draft_rows(n, n + 3)
    call(machine, draft_begin, s.sequences, K, first, following)
    for rows in (first, following):
        used = int(rows.starts[n])
        assert rows.hidden_rows is not None
        for array in (rows.tokens, rows.positions, rows.hidden_rows):
            assert not array[used:].any()
            assert (array[:used] < 2**20).all()


def test_many_lines(machine: Machine) -> None:
    """More than there are warps, and as many as threads."""
    for n in (9, 40, 256):
        sequences = new_sequences(n, K)
        rng = np.random.default_rng(n)
        for sequence in range(n):
            if sequence % 3:
                sequences.table[:, sequence] = sequence_words(
                    past=10 + sequence, end=1000, max_draft=sequence % 5, fresh=sequence % (K + 2)
                )
        sequences.fresh[:] = rng.integers(0, 1000, sequences.fresh.shape)
        first, following = draft_rows(n, n * (K + 1)), draft_rows(n, n)
        call(machine, draft_begin, sequences, K, first, following)
        counts = np.where(np.arange(n) % 3, sequences.table[Field.FRESH], 0)
        follow = np.where(counts > 0, np.minimum(sequences.table[Field.MAX_DRAFT], K) > 1, False)
        assert first.starts.tolist() == [0, *np.cumsum(counts)]
        assert following.starts.tolist() == [0, *np.cumsum(follow)]
        want = [sequences.fresh[i, j] for i in range(n) for j in range(counts[i])]
        assert first.tokens[: len(want)].tolist() == want


def test_wrong_shapes_are_told() -> None:
    sequences, launcher = new_sequences(2, K), HostLauncher()
    first, following = draft_rows(2, 2 * (K + 1)), draft_rows(2, 2)
    made = logits_of(HostMachine(0), np.zeros((2, 70), np.float32))
    requests: NDArray[np.int64] = np.zeros((1, 161), np.int64)
    head = DraftHead(made, requests, ints(0))
    small, vocab_subset = draft_rows(2, 9), replace(head, vocab_subset=ints(3))
    cases: list[tuple[str, Any]] = [
        ("step of 9 rows", lambda: draft_begin(launcher, sequences, K, small, following)),
        ("drafts of 5", lambda: draft_begin(launcher, sequences, K + 1, first, following)),
        ("drafts of 5", lambda: draft_pick(launcher, sequences, head, K, first, following)),
        ("vocab_subset", lambda: draft_pick(
            launcher, sequences, vocab_subset, 0, first, following)),
        ("for 3 sequences", lambda: draft_pick(launcher, new_sequences(3, K), head, 0,
                                           draft_rows(3, 3), draft_rows(3, 3))),
        ("257 sequences", lambda: draft_begin(
            launcher, new_sequences(257, K), K, first, following)),
    ]  # fmt: skip
    for message, attempt in cases:
        with pytest.raises(ValueError, match=message):
            attempt()
