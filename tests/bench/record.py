"""Records: runs with their provenance, and of each section the figures of the latest run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_run(out: Path | None, run: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """The record's text, also written to `out`.

    A record that is there already is added to: so a long run may be made in pieces. Each section
    says which run it is from, by its place in `runs`.
    """
    record: dict[str, Any] = {"runs": [], "sections": {}}
    if out is not None and out.exists():
        record = json.loads(out.read_text(encoding="utf-8"))
    number = len(record["runs"])
    record["runs"].append(run)
    record["sections"] |= {name: {"run": number, **found} for name, found in sections.items()}
    text = json.dumps(record, indent=2) + "\n"
    if out is not None:
        out.write_text(text, encoding="utf-8")
    return text
