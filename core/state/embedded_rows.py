"""`ModelPrompt`: tokens, and rows that take the place of tokens' embeddings, such as an image's.

A row has a place in the prompt like a token, and an id there that its content determines. So caches
and saved sequences, which know places by ids, find rows again like tokens. Two different rows have
one id by chance only, 1 in 2^30; a cache would have to be wrong about all rows of an image at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import shake_256
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from ..backend.layers import Floats
from ..backend.step import FIRST_ROW_ID
from ..errors import ConfigError, FileFormatError

_HEAD: Final = struct.Struct("<3q")  # of a saved run: first place, rows, width


class RowRun(Struct, frozen=True, eq=False):
    """Rows (n, width) that follow each other, from a place on."""

    first: int
    rows: Floats

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class ModelPrompt(Struct, frozen=True, eq=False):
    tokens: list[int]  # one for each place; of a row, its id
    runs: tuple[RowRun, ...] = ()  # in order

    @classmethod
    def of(cls, parts: Iterable[int | Sequence[int] | Floats]) -> ModelPrompt:
        """Token ids, and arrays of floats (rows, width), in any order."""
        tokens: list[int] = []
        runs = []
        for part in parts:
            if isinstance(part, np.ndarray) and part.dtype.kind == "f":
                runs.append(RowRun(len(tokens), as_rows(part)))
                tokens += row_ids(runs[-1].rows)
            elif isinstance(part, int | np.integer):
                tokens.append(int(part))
            else:
                tokens += [int(token) for token in part]
        return cls(tokens, tuple(run for run in runs if len(run.rows)))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: slice) -> list[int]:
        return self.tokens[at]

    @property
    def end_of_rows(self) -> int:
        """The place behind the last row."""
        return self.runs[-1].end if self.runs else 0

    @property
    def n_rows(self) -> int:
        return sum(len(run.rows) for run in self.runs)

    def texts(self) -> Iterator[tuple[int, list[int]]]:
        """Runs of real tokens, each with its first place."""
        edges = [0, *(edge for run in self.runs for edge in (run.first, run.end)), len(self)]
        for first, end in list(pairwise(edges))[::2]:
            if end > first:
                yield first, self.tokens[first:end]

    def real_tokens(self) -> list[int]:
        """Without those that stand for rows."""
        return [token for _, tokens in self.texts() for token in tokens]

    def copy_rows(self, first: int, out: Floats) -> bool:
        """Put the rows of places from `first` on where they belong in `out`, a row for each place.
        Whether there are any."""
        end, is_any = first + len(out), False
        for run in self.runs:
            start, stop = max(first, run.first), min(end, run.end)
            if start < stop:
                out[start - first : stop - first] = run.rows[start - run.first : stop - run.first]
                is_any = True
        return is_any

    def check_rows(self, width: int) -> None:
        """A ConfigError names the first row that the model cannot go on from."""
        for run in self.runs:
            if run.rows.shape[1] != width:
                raise ConfigError(
                    f"the rows at place {run.first} of the prompt are {run.rows.shape[1]} numbers "
                    f"wide, and this model's are {width}"
                )
            if not np.isfinite(run.rows).all():
                row = int(np.flatnonzero(~np.isfinite(run.rows).all(axis=1))[0])
                raise ConfigError(
                    f"the row at place {run.first + row} of the prompt holds a number that is not "
                    "finite"
                )

    # saving

    def rows_to_bytes(self) -> bytes:
        parts = []
        for run in self.runs:
            parts += [_HEAD.pack(run.first, *run.rows.shape), run.rows.tobytes()]
        return b"".join(parts)

    @classmethod
    def from_saved(cls, tokens: list[int], rows: bytes) -> ModelPrompt:
        """`rows`: what `rows_to_bytes` returned."""
        runs: list[RowRun] = []
        at = 0
        while at < len(rows):
            if len(rows) - at < _HEAD.size:
                raise _damaged()
            first, n, width = _HEAD.unpack_from(rows, at)
            at += _HEAD.size
            least = runs[-1].end if runs else 0
            if min(first - least, n - 1, width - 1) < 0 or n * width > (len(rows) - at) // 4:
                raise _damaged()
            data = rows[at : at + 4 * n * width]
            runs.append(RowRun(first, np.frombuffer(data, np.float32).reshape(n, width)))
            at += len(data)
        made = cls(tokens, tuple(runs))
        for run in runs:
            if tokens[run.first : run.end] != row_ids(run.rows):
                raise _damaged()
        return made


def real_tokens(tokens: Sequence[int]) -> Sequence[int]:
    """Those that do not stand for rows; the same object if none does."""
    if not len(tokens) or max(tokens) < FIRST_ROW_ID:
        return tokens
    return [token for token in tokens if token < FIRST_ROW_ID]


def as_rows(rows: Floats) -> Floats:
    if rows.ndim != 2:
        raise ConfigError(f"rows of a prompt have two dimensions, and these have {rows.ndim}")
    return np.ascontiguousarray(rows, np.float32)


def row_ids(rows: Floats) -> list[int]:
    """An id for each row, which all rows together determine."""
    digest = shake_256(_HEAD.pack(len(rows), rows.shape[1], 0))
    digest.update(rows.data if rows.size else b"")
    words = np.frombuffer(digest.digest(4 * len(rows)), "<u4")
    found: list[int] = (words % FIRST_ROW_ID + FIRST_ROW_ID).tolist()
    return found


def _damaged() -> FileFormatError:
    return FileFormatError("the saved sequence holds damaged rows of its prompt")
