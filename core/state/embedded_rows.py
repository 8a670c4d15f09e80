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
from typing import Any, Final, NamedTuple, overload

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..backend.layers import Floats
from ..backend.step import FIRST_ROW_ID, Ints
from ..errors import ConfigError, FileFormatError

# Of a saved run: first place, rows, width, bytes of axes, or `_BIDIRECTIONAL`
_HEAD: Final = struct.Struct("<4q")
_BIDIRECTIONAL: Final = -1


class ImageRows(NamedTuple):
    """Rows (n, width) of an image, for models that read them in another way than other rows.

    Either with positions in time, height and width (n, 3) counted from the first one, for a rope
    that has axes: what follows them is behind the largest of these. Or without, for bidirectional
    layers, where each of these rows sees all of them.
    """

    rows: NDArray[np.floating[Any]]
    axes: NDArray[np.integer[Any]] | None = None

    @classmethod
    def of_grid(cls, rows: NDArray[np.floating[Any]], width: int) -> ImageRows:
        """The rows of one image, line by line."""
        if width < 1:
            raise ConfigError(f"the lines of an image have at least 1 row, not {width}")
        at = np.arange(len(rows), dtype=np.int32)
        return cls(rows, np.stack([np.zeros_like(at), at // width, at % width], axis=1))


class RowRun(Struct, frozen=True, eq=False):
    """Rows (n, width) that follow each other, from a place on."""

    first: int
    rows: Floats
    axes: Ints | None = None  # as in `ImageRows`
    bidirectional: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @property
    def n_shared(self) -> int:
        """By how much fewer positions than places it takes."""
        return 0 if self.axes is None else len(self.rows) - (int(self.axes.max()) + 1)


class ModelPrompt(Struct, frozen=True, eq=False):
    tokens: list[int]  # one for each place; of a row, its id
    runs: tuple[RowRun, ...] = ()  # in order

    @classmethod
    def of(cls, parts: Iterable[int | Sequence[int] | Floats | ImageRows]) -> ModelPrompt:
        """Token ids, arrays of floats (rows, width) and images, in any order."""
        tokens: list[int] = []
        runs = []
        for part in parts:
            if isinstance(part, ImageRows):
                rows, axes = as_rows(np.asarray(part.rows)), None
                if part.axes is not None:
                    axes = as_axes(np.asarray(part.axes), len(rows))
                runs.append(RowRun(len(tokens), rows, axes, bidirectional=axes is None))
                tokens += row_ids(runs[-1])
            elif isinstance(part, np.ndarray) and part.dtype.kind == "f":
                runs.append(RowRun(len(tokens), as_rows(part)))
                tokens += row_ids(runs[-1])
            else:
                tokens += as_tokens(part, len(tokens))
        return cls(tokens, tuple(run for run in runs if len(run.rows)))

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self.tokens[at]

    @property
    def end_of_rows(self) -> int:
        """The place behind the last row."""
        return self.runs[-1].end if self.runs else 0

    @property
    def n_rows(self) -> int:
        return sum(len(run.rows) for run in self.runs)

    @property
    def has_axes(self) -> bool:
        return any(run.axes is not None for run in self.runs)

    @property
    def n_shared(self) -> int:
        """By how much the positions behind the prompt are less than the places."""
        return sum(run.n_shared for run in self.runs)

    def positions(self, first: int, n: int) -> Ints:
        """Of n places from `first` on, in time, height and width (n, 3)."""
        end, n_shared = first + n, 0
        made = np.repeat(np.arange(first, end, dtype=np.int32)[:, None], 3, axis=1)
        for run in self.runs:
            if run.axes is None or run.first >= end:
                continue
            start, stop = max(first, run.first), min(end, run.end)
            if start < stop:
                at = run.axes[start - run.first : stop - run.first]
                made[start - first : stop - first] = at + (run.first - n_shared)
            made[max(run.end - first, 0) :] -= run.n_shared
            n_shared += run.n_shared
        return made

    def ahead(self, first: int, n: int) -> Ints | None:
        """Of n places from `first` on, how many of them follow that each sees as well; None if
        there is no such place."""
        made = None
        for run in self.runs:
            start, stop = max(first, run.first), min(first + n, run.end)
            if run.bidirectional and start < stop:
                made = np.zeros(n, np.int32) if made is None else made
                made[start - first : stop - first] = np.arange(stop - start)[::-1]
        return made

    def end_of_piece(self, first: int, end: int) -> int:
        """The last place up to `end` before which a step from `first` on may end: it holds all of
        an image whose rows see each other, even one that is longer."""
        for run in self.runs:
            if run.bidirectional and run.first < end < run.end:
                return run.first if run.first > first else run.end
        return end

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
            axes = b"" if run.axes is None else run.axes.tobytes()
            kind = _BIDIRECTIONAL if run.bidirectional else len(axes)
            parts += [_HEAD.pack(run.first, *run.rows.shape, kind), run.rows.tobytes(), axes]
        return b"".join(parts)

    @classmethod
    def from_saved(cls, tokens: list[int], rows: bytes) -> ModelPrompt:
        """`rows`: what `rows_to_bytes` returned."""
        runs: list[RowRun] = []
        at = 0
        while at < len(rows):
            if len(rows) - at < _HEAD.size:
                raise _damaged()
            first, n, width, kind = _HEAD.unpack_from(rows, at)
            n_axes = 0 if kind == _BIDIRECTIONAL else kind
            at += _HEAD.size
            least = runs[-1].end if runs else 0
            if min(first - least, n - 1, width - 1) < 0 or n_axes not in (0, 12 * n):
                raise _damaged()
            if 4 * n * width + n_axes > len(rows) - at:
                raise _damaged()
            data = rows[at : at + 4 * n * width]
            behind = rows[at + len(data) : at + len(data) + n_axes]
            axes = np.frombuffer(behind, np.int32).reshape(n, 3) if n_axes else None
            if axes is not None and (axes.min() < 0 or axes.max() >= n):
                raise _damaged()
            numbers = np.frombuffer(data, np.float32).reshape(n, width)
            runs.append(RowRun(first, numbers, axes, kind == _BIDIRECTIONAL))
            at += len(data) + n_axes
        made = cls(tokens, tuple(runs))
        for run in runs:
            if tokens[run.first : run.end] != row_ids(run):
                raise _damaged()
        return made


def real_tokens(tokens: Sequence[int]) -> Sequence[int]:
    """Those that do not stand for rows; the same object if none does."""
    if not len(tokens) or max(tokens) < FIRST_ROW_ID:
        return tokens
    return [token for token in tokens if token < FIRST_ROW_ID]


def as_tokens(part: object, place: int) -> list[int]:
    """One token or several, which stand from this place of a prompt on."""
    several = isinstance(part, Sequence | np.ndarray) and not isinstance(part, str | bytes)
    found: list[Any] = list(part) if several else [part]  # type: ignore[call-overload]
    for i, token in enumerate(found):
        if not isinstance(token, int | np.integer):
            raise ConfigError(
                f"place {place + i} of the prompt holds a {type(token).__name__}: only token ids, "
                "arrays of floats and ImageRows can stand there"
            )
    return [int(token) for token in found]


def as_rows(rows: NDArray[np.floating[Any]]) -> Floats:
    if rows.ndim != 2:
        raise ConfigError(f"rows of a prompt have two dimensions, and these have {rows.ndim}")
    return np.ascontiguousarray(rows, np.float32)


def as_axes(axes: NDArray[np.integer[Any]], n: int) -> Ints:
    is_right = axes.dtype.kind in "iu" and axes.shape == (n, 3)
    if not is_right or axes.min(initial=0) < 0 or axes.max(initial=0) >= max(n, 1):
        raise ConfigError(f"positions of {n} rows are three whole numbers of each, 0 to {n - 1}")
    return np.ascontiguousarray(axes, np.int32)


def row_ids(run: RowRun) -> list[int]:
    """An id for each row, which all rows together determine, and where they are."""
    n, width = run.rows.shape
    digest = shake_256(_HEAD.pack(0, n, width, _BIDIRECTIONAL if run.bidirectional else 0))
    digest.update(run.rows.data if run.rows.size else b"")
    digest.update(b"" if run.axes is None else run.axes.tobytes())
    words = np.frombuffer(digest.digest(4 * n), "<u4")
    found: list[int] = (words % FIRST_ROW_ID + FIRST_ROW_ID).tolist()
    return found


def _damaged() -> FileFormatError:
    return FileFormatError("the saved sequence holds damaged rows of its prompt")
