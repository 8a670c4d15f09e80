"""`verify_begin` and `spec_accept` against the engine's own verifier, and whole texts in rounds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest
from msgspec import structs
from shim.launcher import HostLauncher
from shim.machine import Machine
from support.device_sequences import Ints, call, ints, new_records, new_sequences, verify_rows
from support.picking_rows import requests_of

from nextn.core.backend import step as host_step
from nextn.core.backend.interface import HostOutput
from nextn.core.backend.picking import UNSURE
from nextn.core.engine.sequence import Sequence, SequenceRows, Verifier
from nextn.core.engine.verify import MatchVerifier, SyntheticVerifier
from nextn.core.generation import CONTEXT, EOS, ERROR, LIMIT, GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.acceptance import SYNTHETIC, Acceptance
from nextn.core.speculation.draft import Draft
from nextn.core.state.embedded_rows import ModelPrompt
from nextn.core.state.store import SequenceState
from nextn.cuda_kernels import spec_accept as module
from nextn.cuda_kernels.kernel import FOLDER
from nextn.cuda_kernels.spec_accept import (
    Coins,
    Field,
    Records,
    RoundRecord,
    SequenceTable,
    State,
    VerifyRows,
    read_record,
    sequence_words,
    spec_accept,
    verify_begin,
)

WINDOW = 9
STATES = {None: State.RUNS, EOS: State.STOPPED, LIMIT: State.FULL, CONTEXT: State.FULL,
          ERROR: State.UNSURE}  # fmt: skip


# One round ---------------------------------------------------------------------------------------


class Silent:
    """Text that nobody reads."""

    def push(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


@dataclass
class Text:
    """A sequence as the engine has it, in the middle of decoding."""

    sequence: Sequence
    state: SequenceState

    @classmethod
    def new(
        cls, n_tokens: int, max_tokens: int, n_ctx: int, replay: int, stops: frozenset[int]
    ) -> Text:
        params = GenerateParams(SamplingParams(temperature=0), max_tokens=max_tokens)
        sampler = Sampler(params.sampling, n_vocab=4)
        sequence = Sequence(
            0, ModelPrompt(list(range(100, 100 + n_tokens))), params, n_ctx=n_ctx, eog_ids=stops,
            stream=cast(Any, Silent()), sampler=sampler, verifier=MatchVerifier(),
        )  # fmt: skip
        table: Any = SimpleNamespace(windowed=None)
        state = SequenceState(0, table, WINDOW, n_tokens - 1, replay)
        return cls(sequence, state)

    def round(
        self, draft: list[int], picked: list[int], verifier: Verifier | None = None
    ) -> tuple[list[int], int]:
        """Tokens made, and how many of them were drafted. A row without a pick is broken here."""
        verifier = verifier or MatchVerifier()
        part = SequenceRows(self.sequence, self.state, [self.sequence.tokens[-1]], 1)
        part.max_draft = len(draft)
        part.add_draft(Draft(draft, ["x"] * len(draft)))
        nan = np.full((len(picked), 4), np.nan, np.float32)
        n_made = verifier.accept(part, HostOutput(nan, {}, picked=picked), 0)
        self.state.advance(len(part.tokens), n_made)
        events = [self.sequence.events.popleft() for _ in range(n_made)]
        self.sequence.events.clear()
        return [event.token for event in events], part.n_accepted


def accept(
    machine: Machine, sequences: SequenceTable, rows: VerifyRows, picked: Ints,
    stops: frozenset[int], records: Records, coins: Coins | None = None,
) -> list[RoundRecord]:  # fmt: skip
    before = int(records.counter[0])
    ids = np.array(sorted(stops), np.int32)
    call(machine, spec_accept, sequences, rows, picked, ids, WINDOW, records, coins)
    assert records.counter[0] == records.published[0] == before + 1
    made = records.rows[before % len(records.rows)]
    return [read_record(words) for words in made]


class Round:
    """Some sequences of random texts: those of the device, and the same as the engine has them."""

    STOPS: Final = frozenset({7, 11})

    def __init__(self, seed: int, max_draft: int) -> None:
        self.rng = np.random.default_rng([seed, max_draft])
        self.n, self.max_draft = int(self.rng.integers(1, 7)), max_draft
        self.sequences = new_sequences(self.n, max_draft)
        self.rows = verify_rows(self.n, self.n * (max_draft + 1) + 3)
        self.texts = [self.new_text(sequence) for sequence in range(self.n)]
        self.drafts: list[list[int]] = []
        for sequence, text in enumerate(self.texts):
            draft = self.rng.integers(5, 9, int(self.rng.integers(0, max_draft + 1))).tolist()
            self.sequences.table[Field.DRAFTED, sequence] = len(draft)
            self.sequences.drafts[sequence, : len(draft)] = draft
            self.sequences.chances[sequence, : len(draft)] = self.rng.random(len(draft))
            self.drafts.append(draft[: text.sequence.n_missing - 1])

    def new_text(self, sequence: int) -> Text:
        rng = self.rng
        n_tokens, replay = int(rng.integers(2, 60)), int(rng.integers(0, WINDOW))
        text = Text.new(n_tokens, int(rng.choice([1, 2, 3, 5, 100])), 70, replay, self.STOPS)
        self.sequences.table[:, sequence] = sequence_words(
            state=State.RUNS if rng.random() < 0.8 else rng.choice(list(State)[1:]),
            past=n_tokens - 1,
            n_pending_accepted=replay,
            end=text.sequence.max_len,
            token=text.sequence.tokens[-1],
            id=1000 + sequence,
            fresh=77,
            slot=sequence,
            request=sequence,
        )
        return text

    def picks(self) -> Ints:
        """Mostly what was drafted; some rows are broken."""
        picked, rng = ints(len(self.rows.tokens)), self.rng
        for sequence, draft in enumerate(self.drafts):
            for i, row in enumerate(range(*self.rows.starts[sequence : sequence + 2])):
                is_hit = i < len(draft) and rng.random() < 0.8
                picked[row] = draft[i] if is_hit else rng.integers(5, 13)
                picked[row] = UNSURE if rng.random() < 0.05 else picked[row]
        return picked

    def own(self, sequence: int) -> dict[str, int]:
        return {field.name: int(self.sequences.table[field, sequence]) for field in Field}

    def check_rows(self, sequence: int) -> None:
        start, end = self.rows.starts[sequence : sequence + 2].tolist()
        text = self.texts[sequence]
        assert self.rows.tokens[start:end].tolist() == [
            text.sequence.tokens[-1],
            *self.drafts[sequence],
        ]
        at = np.arange(text.state.n_cells, text.state.n_cells + end - start)
        assert self.rows.positions[start:end].tolist() == at.tolist()
        assert (self.rows.sequence_of[start:end] == sequence).all()

    def check_outcome(
        self, sequence: int, picked: Ints, record: RoundRecord, verifier: Verifier | None = None
    ) -> State:
        start, end = self.rows.starts[sequence : sequence + 2].tolist()
        text, draft, own = self.texts[sequence], self.drafts[sequence], self.own(sequence)
        made, n_accepted = text.round(draft, picked[start:end].tolist(), verifier)
        state = STATES[text.sequence.stop_reason]
        assert record[:4] == (1000 + sequence, state, made, draft)
        assert record.chances == self.sequences.chances[sequence, : len(draft)].tolist()
        assert record.n_accepted == n_accepted
        assert (own["PAST"], own["N_PENDING_ACCEPTED"]) == (
            text.state.n_cells,
            text.state.n_pending_accepted,
        )
        assert (own["STATE"], own["TOKEN"]) == (state, text.sequence.tokens[-1])
        assert (own["DRAFTED"], own["FRESH"], own["FRESH_ROW"]) == (0, len(made), start)
        assert self.sequences.fresh[sequence, : len(made)].tolist() == made
        return state


@pytest.mark.parametrize("max_draft", [0, 1, 3, 8, 40])
def test_a_round_is_that_of_the_engine(machine: Machine, max_draft: int) -> None:
    """Hits and misses anywhere, tokens that end the text among them, little room, broken rows."""
    seen = set()
    for seed in range(40):
        r = Round(seed, max_draft)
        call(machine, verify_begin, r.sequences, max_draft, r.rows)
        before, picked = r.sequences.table.copy(), r.picks()
        records = new_records(3, r.sequences)
        made = accept(machine, r.sequences, r.rows, picked, r.STOPS, records)
        kept = [Field.SLOT, Field.REQUEST, Field.END, Field.ID, Field.MAX_DRAFT]
        assert (r.sequences.table[kept] == before[kept]).all()
        for sequence in range(r.n):
            if before[Field.STATE, sequence] == State.RUNS:
                r.check_rows(sequence)
                seen.add(r.check_outcome(sequence, picked, made[sequence]))
            else:
                assert r.rows.starts[sequence] == r.rows.starts[sequence + 1]
                assert (r.sequences.table[:, sequence] == before[:, sequence]).all()
                assert made[sequence] == (1000 + sequence, r.own(sequence)["STATE"], [], [], [], 0)
        used = int(r.rows.starts[r.n])
        assert (r.rows.sequence_of[used:] == -1).all()
        assert not r.rows.tokens[used:].any()
        assert not r.rows.positions[used:].any()
    assert seen == {State.RUNS, State.STOPPED, State.FULL, State.UNSURE}


def test_coins_are_those_of_the_engine(machine: Machine) -> None:
    """What a coin keeps stays, whatever the model picks; only behind it the pick counts."""
    rates = (0.9, 0.7, 0.8, 0.5)
    acceptance = Acceptance(SYNTHETIC, chances=rates)
    verifier = SyntheticVerifier(acceptance, cast(Any, SimpleNamespace(eog_ids=Round.STOPS)))
    lengths = set()
    for seed in range(60):
        r = Round(seed, 6)
        call(machine, verify_begin, r.sequences, 6, r.rows)
        state, picked = r.sequences.table[Field.STATE].copy(), r.picks()
        seeded = [
            structs.replace(text.sequence.params.sampling, seed=sequence)
            for sequence, text in enumerate(r.texts)
        ]
        for sequence, text in enumerate(r.texts):
            text.sequence.sampler = Sampler(seeded[sequence], n_vocab=4, sequence=2)
        coins = Coins(np.array(rates), requests_of(seeded, 2, 4))
        made = accept(
            machine, r.sequences, r.rows, picked, r.STOPS, new_records(1, r.sequences), coins
        )
        for sequence in range(r.n):
            if state[sequence] == State.RUNS:
                r.check_outcome(sequence, picked, made[sequence], verifier)
                lengths.add(made[sequence].n_accepted)
    assert lengths == {*range(len(rates) + 1)}


# Whole texts -------------------------------------------------------------------------------------


@dataclass
class Target:
    """A model whose cells are all it knows: the token after a row is a hash of those before it."""

    stops: set[int]
    n_cells: int
    n_slots: int
    unsure: float = 0.0  # rows that head_pick cannot decide
    cells: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.cells = ints(self.n_slots, self.n_cells)

    def next(self, tokens: list[int]) -> int:
        value = 17
        for token in tokens:
            value = (value * 31 + token + 1) % 1_000_003
        return value % 50

    def is_unsure(self, tokens: list[int]) -> bool:
        return hash((len(tokens), self.next(tokens))) % 1000 < 1000 * self.unsure

    def run(self, slot: int, past: int, tokens: list[int], *, alone: bool = False) -> list[int]:
        picked = []
        for i, token in enumerate(tokens):
            self.cells[slot, past + i] = token
            before = self.cells[slot, : past + i + 1].tolist()
            can = alone or not self.is_unsure(before)
            picked.append(self.next(before) if can else UNSURE)
        return picked

    def plain(self, prompt: list[int], max_len: int) -> list[int]:
        tokens = list(prompt)
        while len(tokens) < max_len:
            tokens.append(self.next(tokens))
            if tokens[-1] in self.stops:
                break
        return tokens


class Loop:
    """The host's side: rounds are enqueued before the last is read, texts join, and unsure
    sequences are settled."""

    AHEAD = 2

    def __init__(self, machine: Machine, target: Target, n_sequences: int, max_draft: int) -> None:
        self.machine, self.target = machine, target
        self.rng = np.random.default_rng(max_draft)
        self.sequences = new_sequences(n_sequences, max_draft)
        self.most = max_draft
        self.rows = verify_rows(n_sequences, n_sequences * (max_draft + 1))
        self.records = new_records(self.AHEAD + 1, self.sequences)
        self.texts: dict[int, list[int]] = {}
        self.n_read = self.n_unsure = self.n_accepted = 0

    def join(self, sequence: int, text: int, prompt: list[int], max_len: int) -> None:
        """Prefill, and the first token from its last row."""
        self.target.run(sequence, 0, prompt, alone=True)
        tokens = [*prompt, self.target.next(prompt)]
        self.texts[text] = tokens
        self.go_on(sequence, text, max_len, replay=0)

    def go_on(self, sequence: int, text: int, max_len: int, replay: int) -> None:
        tokens = self.texts[text]
        is_over = tokens[-1] in self.target.stops or len(tokens) >= max_len
        state = State.EMPTY if is_over else State.RUNS
        self.sequences.table[:, sequence] = sequence_words(
            state=state, slot=sequence, past=len(tokens) - 1, n_pending_accepted=replay,
            token=tokens[-1], end=max_len, id=text, fresh=1,
            fresh_row=len(self.rows.tokens) + sequence,
        )  # fmt: skip

    def draft(self) -> None:
        """Anything: mostly what the model would say."""
        table, rng = self.sequences.table, self.rng
        for sequence in range(self.sequences.n):
            n = int(rng.integers(0, self.most + 1))
            past, token = int(table[Field.PAST, sequence]), int(table[Field.TOKEN, sequence])
            tokens = [*self.target.cells[sequence, : max(past, 0)].tolist(), token]
            for i in range(n):
                token = self.target.next(tokens) if rng.random() < 0.8 else int(rng.integers(50))
                self.sequences.drafts[sequence, i] = token
                tokens.append(token)
            table[Field.DRAFTED, sequence] = n

    def enqueue(self) -> None:
        self.draft()
        call(self.machine, verify_begin, self.sequences, self.most, self.rows)
        picked = ints(len(self.rows.tokens))
        for sequence in range(self.sequences.n):
            start, end = self.rows.starts[sequence : sequence + 2]
            past = int(self.sequences.table[Field.PAST, sequence])
            tokens = self.rows.tokens[start:end].tolist()
            picked[start:end] = self.target.run(sequence, past, tokens)
        stops = np.array(sorted(self.target.stops), np.int32)
        call(
            self.machine,
            spec_accept,
            self.sequences,
            self.rows,
            picked,
            stops,
            WINDOW,
            self.records,
        )

    def read(self) -> None:
        """One round, as long after it ran as may be."""
        for sequence, words in enumerate(self.records.rows[self.n_read % len(self.records.rows)]):
            record = read_record(words)
            self.n_accepted += record.n_accepted
            if not record.tokens and record.state != State.UNSURE:
                continue
            self.texts[record.id] += record.tokens
            # Told once: a sequence that is unsure has no rows in the rounds after.
            if record.state == State.UNSURE and self.waits(sequence, record.id):
                self.resume(sequence, record.id)
        self.n_read += 1

    def waits(self, sequence: int, text: int) -> bool:
        table = self.sequences.table
        return bool(
            table[Field.STATE, sequence] == State.UNSURE and table[Field.ID, sequence] == text
        )

    def resume(self, sequence: int, text: int) -> None:
        """The host runs the last token by itself, and picks."""
        own = {f.name: int(self.sequences.table[f, sequence]) for f in Field}
        tokens = self.texts[text]
        assert (own["PAST"], own["TOKEN"]) == (len(tokens) - 1, tokens[-1])
        assert self.target.cells[sequence, : own["PAST"]].tolist() == tokens[:-1]
        tokens += self.target.run(sequence, own["PAST"], tokens[-1:], alone=True)
        replay = host_step.pending_accepted_after(own["N_PENDING_ACCEPTED"], 1, 1, WINDOW)
        self.go_on(sequence, text, own["END"], replay)
        self.n_unsure += 1


@pytest.mark.parametrize(
    ("n_sequences", "max_draft", "unsure"), [(1, 0, 0.0), (1, 3, 0.0), (3, 4, 0.0), (4, 8, 0.05)]
)
def test_texts_are_those_of_plain_decoding(
    machine: Machine, n_sequences: int, max_draft: int, unsure: float
) -> None:
    """Texts join, end and make room for others, while rounds run ahead of the host."""
    target = Target({3, 41}, 64, n_sequences, unsure)
    loop = Loop(machine, target, n_sequences, max_draft)
    rng = np.random.default_rng(max_draft)
    waiting = [
        (text, rng.integers(0, 50, int(rng.integers(1, 9))).tolist(), int(rng.integers(10, 64)))
        for text in range(12)
    ]
    asked = {text: (prompt, max_len) for text, prompt, max_len in waiting}
    n_rounds = 0
    while (
        waiting or (loop.sequences.table[Field.STATE] == State.RUNS).any() or loop.n_read < n_rounds
    ):
        for sequence in range(n_sequences):
            ended = loop.sequences.table[Field.STATE, sequence] not in (State.RUNS, State.UNSURE)
            # Rounds that knew the sequence's last text have been read: its slot is free.
            if waiting and ended and loop.n_read == n_rounds:
                loop.join(sequence, *waiting.pop())
        loop.enqueue()
        n_rounds += 1
        if n_rounds - loop.n_read == loop.AHEAD or rng.random() < 0.3:
            while loop.n_read < n_rounds:
                loop.read()
    for text, (prompt, max_len) in asked.items():
        assert loop.texts[text] == target.plain(prompt, max_len)
    assert (loop.n_accepted > 20) == (max_draft > 0)
    assert (loop.n_unsure > 0) == (unsure > 0)


def test_rounds_after_the_end_change_nothing(machine: Machine) -> None:
    sequences = new_sequences(3, 2)
    rows, records = verify_rows(3, 9), new_records(2, sequences)
    sequences.table[:, 1] = sequence_words(
        state=State.STOPPED, past=5, token=7, n_pending_accepted=2, id=9
    )
    before = sequences.table.copy()
    for n_round in range(5):
        call(machine, verify_begin, sequences, 2, rows)
        assert not rows.starts.any()
        assert (rows.sequence_of == -1).all()
        made = accept(machine, sequences, rows, ints(9), frozenset({1}), records)
        assert [record.tokens for record in made] == [[]] * 3
        assert [record.state for record in made] == [State.EMPTY, State.STOPPED, State.EMPTY]
        assert records.published[0] == n_round + 1
    assert (sequences.table == before).all()


def test_a_smaller_graph_takes_the_beginning_of_a_draft(machine: Machine) -> None:
    sequences = new_sequences(2, 6)
    for sequence in range(2):
        sequences.table[:, sequence] = sequence_words(past=4, token=2, end=60, drafted=5 + sequence)
        sequences.drafts[sequence] = np.arange(10, 16)
    rows = verify_rows(2, 8)
    call(machine, verify_begin, sequences, 3, rows)
    assert rows.starts.tolist() == [0, 4, 8]
    assert rows.tokens.tolist() == [2, 10, 11, 12] * 2
    assert sequences.table[Field.DRAFTED].tolist() == [3, 3]


def test_many_lines(machine: Machine) -> None:
    n = 256
    sequences = new_sequences(n, 2)
    drafted = np.arange(n) % 3
    for sequence in range(n):
        sequences.table[:, sequence] = sequence_words(
            past=sequence, token=sequence, end=999, drafted=drafted[sequence]
        )
    sequences.drafts[:] = 4
    rows = verify_rows(n, 3 * n)
    call(machine, verify_begin, sequences, 2, rows)
    assert rows.starts.tolist() == [0, *np.cumsum(drafted + 1)]
    picked = np.full(3 * n, 4, np.int32)
    made = accept(machine, sequences, rows, picked, frozenset({1}), new_records(1, sequences))
    assert [len(record.tokens) for record in made] == (drafted + 1).tolist()


# What both sides know ----------------------------------------------------------------------------


def test_fields_are_those_of_the_kernels() -> None:
    text = (FOLDER / "include/sequences.cuh").read_text()
    for name, enum in (("SequenceField", Field), ("SequenceState", State)):
        found = re.search(rf"enum {name} \{{(.*?)\}}", text, re.DOTALL)
        assert found is not None
        names = [f"SEQ_{member.name}" for member in enum]
        assert re.findall(r"SEQ_\w+", found[1])[: len(names)] == names
    assert f"#define MAX_SEQUENCES {module.MAX_SEQUENCES}" in text
    assert module.KEPT_FACTORS == host_step.KEPT_FACTORS


def test_wrong_shapes_are_told() -> None:
    sequences, launcher = new_sequences(2, 3), HostLauncher()
    rows, records, stops = verify_rows(2, 8), new_records(2, sequences), ints(1)
    other = Records(records.rows[:, :, 1:], records.counter, records.published)
    cases: list[tuple[str, Any]] = [
        ("step of 7 rows", lambda: verify_begin(launcher, sequences, 3, verify_rows(2, 7))),
        ("drafts of 4", lambda: verify_begin(launcher, sequences, 4, rows)),
        ("starts", lambda: verify_begin(launcher, sequences, 3, verify_rows(3, 12))),
        ("7 tokens picked",
         lambda: spec_accept(launcher, sequences, rows, ints(7), stops, 9, records)),
        ("records", lambda: spec_accept(launcher, sequences, rows, ints(8), stops, 9, other)),
        ("0 sequences", lambda: verify_begin(launcher, new_sequences(0, 1), 1, verify_rows(0, 0))),
    ]  # fmt: skip
    for message, attempt in cases:
        with pytest.raises(ValueError, match=message):
            attempt()
