"""Recording: ops become entries (kernel, arguments), and buffers are shared among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .formats.tile_format import Record
from .inputs import SPARE_ROWS, AdapterRows, RowCount, StepInputs
from .kernels.pack import write_pack
from .machine_code import Kernels, Writer
from .memory import Buffer, BufferPool
from .team import Program

Words = NDArray[np.int64]


class ProgramEntry(Struct):
    kernel: str
    arguments: Words
    meet: bool


class FloatRows:
    """Rows of float32 in a borrowed buffer."""

    __slots__ = ("buffer", "row_set", "width")

    def __init__(self, recording: Recording, width: int, row_set: RowSetLike) -> None:
        self.width, self.row_set = width, row_set
        self.buffer = Buffer(recording.row_pool, 4 * width * row_set_capacity(recording, row_set))

    @property
    def address(self) -> int:
        return self.buffer.address

    def array(self) -> NDArray[np.float32]:
        """All rows that there is room for."""
        return self.buffer.data.view(np.float32).reshape(-1, self.width)


class PackedActivations:
    """Activations for a product, as floats, as records, or both: whatever consumers read.

    The producer's argument words `rows_word` and `records_word` are filled in at the first use;
    a producer that cannot write records is followed by a packing entry. Word `split_word` says
    whether records have a scale for each half of a block, where the producer can write such.
    `made_of` is what the producer reads: it must not get the same buffers, so they are not given
    back before these.
    """

    def __init__(
        self,
        recording: Recording,
        width: int,
        row_set: RowSetLike,
        *,
        rows: FloatRows | None = None,
        producer: Words | None = None,
        words: tuple[int, int] | None = None,
        split_word: int | None = None,
        made_of: object = None,
    ) -> None:
        self.recording, self.width, self.row_set = recording, width, row_set
        self.made_of = made_of
        self.rows, self.producer, self.words = rows, producer, words
        self.split_word = split_word
        self.records: Buffer | None = None
        self.is_split = False

    def float_address(self) -> int:
        return self.float_rows().address

    def float_rows(self) -> FloatRows:
        if self.rows is None:
            assert self.producer is not None
            assert self.words is not None
            self.rows = FloatRows(self.recording, self.width, self.row_set)
            self.producer[self.words[0]] = self.rows.address
        return self.rows

    def record_address(self, *, wants_split: bool = False) -> int:
        if self.records is None:
            can_split = self.producer is None or self.split_word is not None
            self.is_split = wants_split and can_split
            n_bytes = self.width // Record.BLOCK * Record.SIZE
            capacity = row_set_capacity(self.recording, self.row_set)
            self.records = Buffer(self.recording.record_pool, n_bytes * capacity)
            if self.producer is not None and self.words is not None:
                self.producer[self.words[1]] = self.records.address
                if self.split_word is not None:
                    self.producer[self.split_word] = int(self.is_split)
            else:
                split = self.is_split
                self.recording.add(
                    f"pack_{self.width}{'_split' if split else ''}",
                    lambda e: write_pack(e, self.width, split=split),
                    [self.row_set.address, self.float_address(), self.records.address],
                )
        return self.records.address


class PairSet:
    """The row set of an expert table: (row, expert) pairs."""

    def __init__(self, words: Words, capacity: int, held: list[Words]) -> None:
        self.words, self.capacity, self.held = words, capacity, held
        self.address = words.ctypes.data


RowSetLike = RowCount | PairSet


def row_set_capacity(recording: Recording, row_set: RowSetLike) -> int:
    if isinstance(row_set, PairSet):
        return row_set.capacity
    return recording.inputs.max_rows + SPARE_ROWS


@dataclass
class Recording:
    inputs: StepInputs
    entries: list[ProgramEntry] = field(default_factory=list)
    writers: dict[str, Writer] = field(default_factory=dict)
    kinds: dict[str, object] = field(default_factory=dict)
    late: list[tuple[Words, int, str]] = field(default_factory=list)  # words that hold addresses
    row_pool: BufferPool = field(default_factory=BufferPool)
    record_pool: BufferPool = field(default_factory=BufferPool)
    held: list[object] = field(default_factory=list)  # arrays that arguments point to
    given: NDArray[np.float32] | None = None  # where `step.hidden` goes
    adapters: AdapterRows | None = None  # if the model has some

    def add(self, kernel: str, write: Writer, arguments: list[int], *, meet: bool = True) -> Words:
        """Append an entry; returns its argument words, which may still be changed."""
        self.writers.setdefault(kernel, write)
        words = np.array(arguments, np.int64)
        self.entries.append(ProgramEntry(kernel, words, meet))
        return words

    def function(self, words: Words, index: int, name: str, write: Writer, kind: object) -> None:
        """Let a word become the address of another function, once that is compiled."""
        self.writers.setdefault(name, write)
        self.kinds[name] = kind
        self.late.append((words, index, name))

    def finish(self, kernels: Kernels, report: Callable[[int, int], None] | None) -> Program:
        addresses = kernels.get(self.writers, report, self.kinds)
        for words, index, name in self.late:
            words[index] = addresses[name]
        # Writers know the rows they write for, which know this recording: a circle that would
        # keep all its buffers until the garbage collector runs.
        self.writers.clear()
        self.entries[-1].meet = True
        return Program(
            [(addresses[x.kernel], x.arguments.ctypes.data, x.meet) for x in self.entries]
        )
