"""`CostModel`: what a round costs, as measured while running: a step of the target by its rows and
its context, a drafter by the tokens it drafts. Knows no clock: times come in through `observe_…`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Self

from ..errors import ConfigError
from ..gguf.atomic_write import atomic_write
from ..gguf.printable import printable
from ..gguf.read_bounded import read_bounded
from .curve import Curve, Line, Slope

FORMAT: Final = "nextn-costs"
_MAX_COUNT: Final = 4096
_MAX_DIGITS: Final = 20  # of a number in a name
_MAX_BYTES: Final = 1 << 24
_N_KEPT: Final = 7
_TELLING: Final = 4  # rows: catching up on fewer is lost in the noise
_ROW: Final = 0.06  # of a plain step: one more row, until it was measured
_DRAFTED: Final = 0.12  # of a plain step: one drafted token, until it was measured
_CAUGHT_UP: Final = 0.04  # of a drafted token: each row that a drafter has to catch up on


class CostModel:
    """`is_frozen`: read from a file, learns nothing more, so that decisions repeat exactly."""

    def __init__(self) -> None:
        self.is_frozen = False
        self._steps = Curve(_ROW)
        self._drafts: dict[str, dict[int, Line]] = {}  # source, sequences
        self._catching_up: dict[str, list[float]] = {}  # ms per row, the last few

    @property
    def version(self) -> int:
        """Moves when something was measured that was hardly known before."""
        return self._steps.version

    @property
    def pace(self) -> int:
        """Moves when the machine has become slower or faster, or had been misjudged."""
        return self._steps.pace

    @property
    def slope(self) -> Slope:
        """Of steps, by their rows."""
        return self._steps.slope()

    # What is measured

    def observe_step(
        self, n_rows: int, n_ctx_total: int, ms: float, *, notices_pace: bool = False
    ) -> None:
        """A step of the target over so many rows, of texts that are so long together. Not to be
        called for steps that held pieces of prompts. `notices_pace`: nobody tries again what is
        believed to be dear, so that it has to be noticed when beliefs are wrong."""
        if not self.is_frozen and ms > 0:
            self._steps.add(n_rows, ms, n_ctx_total, notices_pace=notices_pace)

    def observe_draft(
        self, source: str, n_tokens: int, n_sequences: int, ms: float, n_pending: int = 0
    ) -> None:
        """One call of a drafter: `n_tokens` of the longest draft, for `n_sequences` at once;
        before it, the drafter caught up on `n_pending` rows."""
        if self.is_frozen or not ms > 0 or n_tokens < 1:
            return
        lines = self._drafts.setdefault(source, {})
        line = lines.get(n_sequences)
        if line is None:
            line = lines[n_sequences] = Line()
        if n_pending:
            if n_pending >= _TELLING and line.now >= _TELLING:
                found = self._catching_up.setdefault(source, [])
                found.append(max(ms - self._draft(source, n_sequences, n_tokens), 0.0) / n_pending)
                del found[:-_N_KEPT]
                return
            ms = max(ms - self.catching_up(source, n_pending), 0.5 * ms)
        line.add(n_tokens, ms)

    # What is believed

    def n_timings(self, n_rows: int) -> int:
        """Of steps with so many rows; of a file, more than anybody would ask for."""
        cell = self._steps.cells.get(n_rows)
        return _MAX_COUNT if self.is_frozen else len(cell.samples) if cell is not None else 0

    def age(self, n_rows: int) -> int:
        """Steps since one of so many rows; 0 if nothing is learned."""
        cell = self._steps.cells.get(n_rows)
        return 0 if self.is_frozen or cell is None else self._steps.now - cell.last

    def steps(self, n_max: int, n_ctx_total: int) -> tuple[list[float], list[float]]:
        """(believed, hoped) ms of a step with 0 … `n_max` rows, see `Curve.tables`."""
        return self._steps.tables(n_max, float(max(n_ctx_total, 1)))

    def drafts(self, source: str, n_sequences: int, n_max: int) -> list[float]:
        """ms of a call that drafts 0 … `n_max` tokens for so many sequences."""
        assumed = self._steps.tables(1)[0][1] * _DRAFTED
        lines = {n: line for n, line in self._drafts.get(source, {}).items() if line.now}
        if not lines:
            assumed *= 1 + _ROW * (n_sequences - 1)
            return [assumed * n for n in range(n_max + 1)]
        near = min(lines, key=lambda n: (abs(n - n_sequences), n))
        table = lines[near].table(n_max, assumed)
        if near == n_sequences:
            return table
        scale = (1 + _ROW * n_sequences) / (1 + _ROW * near)
        return [scale * ms for ms in table]

    def catching_up(self, source: str, n_rows: int) -> float:
        """ms before the first token, if the drafter has so many rows to read."""
        if not n_rows:
            return 0.0
        return self._per_row(source) * n_rows

    def _per_row(self, source: str) -> float:
        found = self._catching_up.get(source, [])
        if self.is_frozen and found:
            return found[0]
        # What is assumed counts as one of them: the first may have been disturbed.
        found = sorted([_CAUGHT_UP * self._draft(source, 1, 1), *found])
        return found[(len(found) - 1) // 3]

    def _draft(self, source: str, n_sequences: int, n_tokens: int) -> float:
        return self.drafts(source, n_sequences, n_tokens)[n_tokens]

    # Files

    def save(self, path: str | Path) -> None:
        """For `load`. What was never measured is not in it."""
        steps, slope = self._steps, self._steps.slope()
        content = {
            "format": FORMAT,
            "step": {
                "context_ms": slope.common,  # per token of context
                "context_row_ms": slope.each,  # the same, for each row
                "rows": {
                    str(count): {
                        "ms": cell.level(cell.mean_context, slope.of(count)),
                        "n_ctx": cell.mean_context,
                    }
                    for count, cell in sorted(steps.cells.items())
                },
            },
            "draft": {
                source: {
                    str(n): {
                        str(k): cell.level(0.0, 0.0) for k, cell in sorted(curve.cells.items())
                    }
                    for n, curve in sorted(curves.items())
                }
                for source, curves in sorted(self._drafts.items())
            },
            "catch_up": {source: self._per_row(source) for source in sorted(self._catching_up)},
        }
        with atomic_write([Path(path)], overwrite=True) as (file,):
            file.write(json.dumps(content, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Frozen."""
        try:
            content = json.loads(read_bounded(Path(path), _MAX_BYTES))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from error
        except RecursionError:
            raise ConfigError(f"{path}: is not JSON that anybody wrote: too deep") from None
        read = _Reader(str(path))
        if read.table(content, "the file").get("format") != FORMAT:
            raise ConfigError(f'{path}: is not a file of costs (no "format": "{FORMAT}")')
        model = cls()
        model.is_frozen = True
        step = read.table(content.get("step"), "step")
        model._steps.given_slope = Slope(
            read.number(step.get("context_ms", 0), "step.context_ms"),
            read.number(step.get("context_row_ms", 0), "step.context_row_ms"),
        )
        for count, cell in read.counted(step.get("rows"), "step.rows"):
            place = f"step.rows.{count}"
            entry = read.table(cell, place)
            ms = read.time(entry.get("ms"), f"{place}.ms")
            model._steps.give(count, ms, read.number(entry.get("n_ctx", 0), f"{place}.n_ctx"))
        if not model._steps.cells:
            raise ConfigError(f"{path}: step.rows is empty: no cost of a step is given")
        for source, lines in read.table(content.get("draft", {}), "draft").items():
            of_source = model._drafts[source] = {}
            for n, cells in read.counted(lines, f"draft.{source}"):
                line = of_source[n] = Line()
                for count, ms in read.counted(cells, f"draft.{source}.{n}"):
                    line.add(count, read.time(ms, f"draft.{source}.{n}.{count}"))
        for source, ms in read.table(content.get("catch_up", {}), "catch_up").items():
            model._catching_up[source] = [read.number(ms, f"catch_up.{source}")]
        return model


class _Reader:
    """Values of a file that may hold anything; the first that cannot be one is said."""

    def __init__(self, path: str) -> None:
        self._path = path

    def table(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{self._path}: {place} must be an object of names and values")
        return value

    def counted(self, value: Any, place: str) -> list[tuple[int, Any]]:
        found = []
        for name, entry in self.table(value, place).items():
            is_number = name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS
            if not (is_number and 1 <= int(name) <= _MAX_COUNT):
                raise ConfigError(
                    f"{self._path}: {place} has {printable(name)} where a count from 1 to "
                    f"{_MAX_COUNT} belongs"
                )
            found.append((int(name), entry))
        return found

    def number(self, value: Any, place: str) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value < 1e9):  # neither NaN nor what no float can be
            raise ConfigError(
                f"{self._path}: {place} must be a number from 0 on, got {printable(value)}"
            )
        return float(value)

    def time(self, value: Any, place: str) -> float:
        ms = self.number(value, place)
        if not ms:
            raise ConfigError(f"{self._path}: {place} is 0 ms, which nothing takes")
        return ms
