"""Where a report goes: stdout in the form that was asked for, and a file."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .bench_tables import tables
from .output import Output

if TYPE_CHECKING:
    from ..core.bench.record import Report


def write_report(report: Report, form: str, output: Output) -> None:
    from ..core.bench.rows import flat, rows_of

    if form == "json":
        output.line(dumps(whole(report), indent=1))
    elif form == "jsonl":
        for row in rows_of(report):
            output.line(dumps(row))
    elif form == "csv":
        rows = [flat(row) for row in rows_of(report)]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        output.text(text.getvalue())
    else:
        for line in tables(report):
            output.line(line)


def check_place(path: Path) -> None:
    """Before the run, not behind it."""
    if not path.parent.is_dir():
        raise typer.BadParameter(f"--save {path}: {path.parent} is not a folder")
    if path.is_dir():
        raise typer.BadParameter(f"--save {path} is a folder, not a file")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"--save {path}: no permission to write to {path.parent}")


def save_report(report: Report, path: Path) -> None:
    """Complete or not at all: a job that is killed leaves the report of its last repetition."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_text(dumps(whole(report)) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def whole(report: Report) -> dict[str, Any]:
    """With the rows of the other formats, for tools that know llama-bench's names."""
    from ..core.bench.rows import rows_of

    return report.to_json() | {"results": list(rows_of(report))}


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
