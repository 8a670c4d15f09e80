"""Where a report goes: stdout in the form that was asked for, and a file."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import Output

if TYPE_CHECKING:
    from ..core.bench.record import BenchReport


def write_report(report: BenchReport, form: str, output: Output) -> None:
    from ..core.bench.exports import as_csv, as_jsonl, as_sql
    from ..core.bench.report_tables import as_markdown

    if form == "json":
        output.line(dumps(whole(report), indent=1))
    else:
        forms = {"md": as_markdown, "jsonl": as_jsonl, "csv": as_csv, "sql": as_sql}
        output.text(forms[form](report))


def print_charts(report: BenchReport, output: Output) -> None:
    """On stderr, also with --quiet."""
    from ..core.bench.text_charts import text_charts
    from .output import columns, print_prompt

    print_prompt("".join(f"{line}\n" for line in text_charts(report, columns())))


def check_place(path: Path, flag: str) -> None:
    """Before the run, not behind it."""
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{flag} {path}: {path.parent} is not a folder")
    if path.is_dir():
        raise typer.BadParameter(f"{flag} {path} is a folder, not a file")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{flag} {path}: no permission to write to {path.parent}")


def save_report(report: BenchReport, path: Path) -> None:
    """A job that is killed leaves the report of its last repetition."""
    save_text(dumps(whole(report)) + "\n", path)


def save_page(report: BenchReport, path: Path) -> None:
    from ..core.bench.report_page import html_page

    save_text(html_page(report), path)


def save_gha(report: BenchReport, path: Path) -> None:
    from ..core.bench.exports import as_gha

    save_text(as_gha(report), path)


def save_text(text: str, path: Path) -> None:
    """Complete or not at all."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def whole(report: BenchReport) -> dict[str, Any]:
    """With the rows of the other formats, for tools that know llama-bench's names."""
    from ..core.bench.exports import rows_of

    return report.to_json() | {"results": list(rows_of(report))}


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
