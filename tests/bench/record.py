"""Records: runs with their provenance, and of each section the figures of the latest run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Record:
    """Of this run; or, where `out` is there already, of all runs that it holds and this one.

    So a long run may be made in pieces. Each section says which run it is from, by its place in
    `runs`. What was measured is written at once: a later section may fail.
    """

    def __init__(self, out: Path | None, run: Mapping[str, Any]) -> None:
        self.out = out
        self._all: dict[str, Any] = {"runs": [], "sections": {}}
        if out is not None and out.exists():
            self._all = _read(out)
        self._number = len(self._all["runs"])
        self._all["runs"].append(dict(run))

    def add(self, section: str, found: Mapping[str, Any]) -> None:
        self._all["sections"][section] = {"run": self._number, **found}
        if self.out is not None:
            self.out.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        return json.dumps(self._all, indent=2) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SystemExit(f"{path} is not a record ({error}); name another file") from None
    if not isinstance(record, dict) or not {"runs", "sections"} <= record.keys():
        raise SystemExit(f"{path} is not a record of these benchmarks; name another file")
    return record
