"""A table of sequences with its arrays, and a model of few numbers that runs steps over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shim.machine import Machine

from nextn.cuda_kernels.spec_accept import (
    DraftRows,
    Field,
    Records,
    SequenceTable,
    State,
    VerifyRows,
    record_width,
    sequence_words,
)

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
JUNK = 0x55555555  # what is in arrays that nobody has filled


def ints(*shape: int, fill: int = JUNK) -> Ints:
    return np.full(shape, fill, np.int32)


def call(machine: Machine, function: Callable[..., None], *arguments: Any) -> None:
    """A launcher's function with copies of all arrays there; what is in them then comes back."""
    copies: dict[int, tuple[Any, Any]] = {}

    def put(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if id(value) not in copies:
                copies[id(value)] = value, machine.put(value)
            return copies[id(value)][1]
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: put(getattr(value, f.name)) for f in fields(value)})
        return value

    function(machine.launcher, *map(put, arguments))
    for array, copy in copies.values():
        array[...] = machine.get(copy)


def new_sequences(n: int, max_draft: int) -> SequenceTable:
    """All of them empty."""
    chances = np.full((n, max_draft), np.nan, np.float32)
    sequences = SequenceTable(
        ints(len(Field), n), ints(n, max_draft + 1), ints(n, max_draft), chances
    )
    for sequence in range(n):
        sequences.table[:, sequence] = sequence_words(state=State.EMPTY, request=-1)
    return sequences


def draft_rows(n_sequences: int, n_rows: int, *, hidden: bool = True) -> DraftRows:
    return DraftRows(
        ints(n_rows),
        ints(n_rows),
        ints(n_sequences + 1),
        ints(n_sequences),
        ints(n_sequences),
        ints(n_rows) if hidden else None,
    )


def verify_rows(n_sequences: int, n_rows: int) -> VerifyRows:
    return VerifyRows(ints(n_rows), ints(n_rows), ints(n_sequences + 1), ints(n_rows))


def new_records(n_rounds: int, sequences: SequenceTable) -> Records:
    rows = ints(n_rounds, sequences.n, record_width(sequences.max_draft))
    return Records(rows, ints(1, fill=0), ints(1, fill=0))


@dataclass
class Rows:
    """A step as either side lays it out."""

    tokens: Ints
    positions: Ints
    starts: Ints
    past: Ints
    slots: Ints
    out_rows: Ints
    hidden: Floats  # (R, WIDTH)


class TinyHead:
    """Logits and taps of a row depend on its token, position, hidden row and on what lies in the
    cells before it; in float32, one row after the other, so that the bits are always the same."""

    WIDTH = 6

    def __init__(self, n_logits: int, n_slots: int, n_cells: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._embedding = rng.normal(0, 1, (97, self.WIDTH)).astype(np.float32)
        self._mix = rng.normal(0, 1, (self.WIDTH, self.WIDTH)).astype(np.float32)
        self._out = rng.normal(0, 1.5, (n_logits, self.WIDTH)).astype(np.float32)
        self.cells = np.zeros((n_slots, n_cells, self.WIDTH), np.float32)

    def run(self, rows: Rows) -> tuple[Floats, Floats]:
        """Logits of `out_rows`, taps of all rows."""
        taps = np.zeros((len(rows.tokens), self.WIDTH), np.float32)
        for b, slot in enumerate(rows.slots):
            for i, row in enumerate(range(rows.starts[b], rows.starts[b + 1])):
                cell = rows.past[b] + i
                own = self._embedding[rows.tokens[row] % 97] + rows.hidden[row]
                self.cells[slot, cell] = np.tanh(own + np.float32(0.01) * rows.positions[row])
                seen = self.cells[slot, : cell + 1].sum(axis=0, dtype=np.float32)
                taps[row] = np.tanh(self._mix @ seen)
        logits = np.zeros((len(rows.out_rows), len(self._out)), np.float32)
        for i, row in enumerate(rows.out_rows):
            logits[i] = self._out @ taps[row]
        return logits, taps
