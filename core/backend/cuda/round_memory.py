"""The memory of a session of rounds: arrays that kernels write, and steps over them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from ....cuda_kernels.head_pick import REQUEST_WORDS
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.spec_accept import (
    DraftRows,
    Field,
    Records,
    SequenceTable,
    VerifyRows,
    record_width,
)
from .device_contract import Device, Numpy
from .device_step import DeviceStep, StepKey

KEPT_ROUNDS = 4  # whose records the host has not read, at most
MARKS = 3  # of the clock: before drafting, before verifying, at the end


class RoundSize(Struct, frozen=True):
    n_sequences: int
    max_draft: int
    n_pages: int  # of a page table
    width: int  # of hidden rows; 0: no drafter
    tables: tuple[str, ...] = ("pages",)  # page tables, by the names that `Step` has for them


class RoundMemory:
    """For so many sequences and tokens of a draft. Made once, used by many sessions."""

    def __init__(self, device: Device, size: RoundSize) -> None:
        zeros, n, k = device.zeros, size.n_sequences, size.max_draft
        self.size, self.n_rows = size, n * (k + 1)
        self._device, self._history = device, None
        self.sequences = SequenceTable(
            zeros((len(Field), n), "int32"),
            zeros((n, k + 1), "int32"),
            zeros((n, k), "int32"),
            zeros((n, k), "float32"),
        )
        # Those of drafters are others: they count cells from the page of their first one.
        self.tables, self.draft_tables = (
            {name: zeros((n, size.n_pages), "int32") for name in size.tables} for _ in "vd"
        )
        self.requests = zeros((n, REQUEST_WORDS), "int64")
        self.picked = zeros((self.n_rows,), "int32")
        self._all = VerifyRows(
            zeros((self.n_rows,), "int32"),
            zeros((self.n_rows,), "int32"),
            zeros((n + 1,), "int32"),
            zeros((self.n_rows,), "int32"),
        )
        self._numbers = device.put(np.arange(self.n_rows, dtype=np.int32))
        self._no_rows = device.zeros((0,), "int32")
        self.first, self.following = (
            _draft_rows(device, n, rows) if size.width else None for rows in (self.n_rows, n)
        )
        # The model's hidden rows of a round; behind them those that sequences join with.
        self.taps: Array = zeros((2 * self.n_rows, size.width), "float32")
        rows, self._records = device.shared((KEPT_ROUNDS, n, record_width(k)), "int32")
        published, self._published = device.shared((1,), "int32")
        self.records = Records(rows, zeros((1,), "int32"), published)
        self.times, self._times = device.shared((KEPT_ROUNDS, MARKS), "int64")

    def history(self, n_rounds: int) -> Array:
        """Room for a hidden row of each sequence in so many rounds."""
        if self._history is None:
            sizes = n_rounds, self.size.n_sequences, self.size.width
            self._history = self._device.empty(sizes, "float32")
        return self._history

    # what the host reads while the device runs

    @property
    def n_published(self) -> int:
        return int(self._published[0])

    def record(self, number: int) -> Numpy:
        words: Numpy = self._records[number % KEPT_ROUNDS]
        return words

    def marks(self, number: int) -> list[int]:
        found: list[int] = self._times[number % KEPT_ROUNDS].tolist()
        return found

    def reset(self, device: Device) -> None:
        """Nothing is under way: rounds are numbered anew."""
        device.write(self.records.counter, np.zeros(1, np.int32))
        self._published[0] = 0

    # steps

    def verify_rows(self, most: int) -> VerifyRows:
        n, rows = self.size.n_sequences * (most + 1), self._all
        return VerifyRows(rows.tokens[:n], rows.positions[:n], rows.starts, rows.sequence_of[:n])

    def verify_step(self, most: int, cells: int) -> DeviceStep:
        rows, table = self.verify_rows(most), self.sequences.table
        n = self.size.n_sequences * (most + 1)
        past = table[int(Field.PAST)]
        arrays = {
            "tokens": rows.tokens,
            "positions": rows.positions,
            "starts": rows.starts,
            "slots": table[int(Field.SLOT)],
            "past": past,
            "n_pending_accepted": table[int(Field.N_PENDING_ACCEPTED)],
            "out_rows": self._numbers[:n],
        }
        return self._step(arrays | self.tables, most + 1, cells)

    def draft_step(self, rows: DraftRows, hidden: Array, cells: int, n_out: int) -> DeviceStep:
        """`hidden`: of which each row takes one. `n_out` 0: no logits are read."""
        n_rows, n_sequences = int(rows.tokens.shape[0]), self.size.n_sequences
        arrays = {
            "tokens": rows.tokens,
            "positions": rows.positions,
            "starts": rows.starts,
            "past": rows.past,
            "out_rows": rows.out_rows if n_out else self._no_rows,
            "hidden": hidden,
            "hidden_rows": rows.hidden_rows,
        }
        return self._step(arrays | self.draft_tables, n_rows // n_sequences, cells)

    def _step(self, arrays: dict[str, Array], max_rows: int, cells: int) -> DeviceStep:
        """Models see a step of as many rows, whose numbers are on the device alone."""
        n_rows, n_sequences = int(arrays["tokens"].shape[0]), self.size.n_sequences
        n_out, n_pages = int(arrays["out_rows"].shape[0]), self.size.n_pages
        key = StepKey(
            n_rows, n_sequences, n_out, max_rows, cells, n_pages, "hidden" in arrays, False
        )
        rows, sequences = np.zeros(n_rows, np.int32), np.zeros(n_sequences, np.int32)
        return DeviceStep(
            rows,
            rows,
            np.zeros(n_sequences + 1, np.int32),
            sequences,
            sequences,
            sequences,
            np.zeros((n_sequences, n_pages), np.int32),
            np.zeros(n_out, np.int32),
            key=key,
            arrays=arrays,
            is_padded=True,
        )


def _draft_rows(device: Device, n_sequences: int, n_rows: int) -> DraftRows:
    sizes = n_rows, n_rows, n_sequences + 1, n_sequences, n_sequences, n_rows
    return DraftRows(*(device.zeros((n,), "int32") for n in sizes))
