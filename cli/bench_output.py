"""Where a report goes: stdout, files, and the exit code."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from .bench_options import FORMATS
from .console import Console, columns, print_failure, print_prompt

if TYPE_CHECKING:
    from ..core.bench.record import BenchReport, GateResult
    from .bench_options import ReportOptions

MISSED: Final = 3
INTERRUPTED: Final = 130


def check_results(results: ReportOptions) -> None:
    """Refuse places that cannot be written to before the run, so that no result is lost."""
    if results.output not in FORMATS:
        raise typer.BadParameter(f"-o is one of {', '.join(FORMATS)}, got {results.output!r}")
    places = {"--save": results.save, "--html": results.html, "--gha-json": results.gha_json}
    for flag, path in places.items():
        if path is not None:
            check_place(path, flag)


def deliver(report: BenchReport, results: ReportOptions, output: Console) -> NoReturn:
    """To stdout and into files; ends the command with its exit code."""
    from ..core.bench.exports import as_gha
    from ..core.bench.report_page import html_page
    from ..core.bench.text_charts import text_charts

    if results.save is not None:
        save_report(report, results.save)
    if results.html is not None:
        save_text(html_page(report), results.html)
    if results.gha_json is not None:
        save_text(as_gha(report), results.gha_json)
    write_report(report, results.output, output)
    if results.plot:  # also with --quiet
        print_prompt("".join(f"{line}\n" for line in text_charts(report, columns())))
    for warning in report.warnings:
        output.remark(f"warning: {warning}")
    raise typer.Exit(finish(report, output))


def finish(report: BenchReport, output: Console) -> int:
    """The lines of gates, and the exit code."""
    is_missed = say_gates(report.gates, output)
    if report.provenance.get("interrupted"):
        return INTERRUPTED
    if is_missed:
        return MISSED
    return int(any(sample.error for sample in report.samples))


def say_gates(gates: Sequence[GateResult], output: Console) -> bool:
    """Print a line for each gate, and return whether one is missed."""
    missed = [gate for gate in gates if not gate.ok]
    for gate in gates:
        if gate.ok:
            output.remark(f"ok   {gate.gate} {gate.line}")
    for gate in missed:
        print_failure(f"FAIL {gate.gate} {gate.line}")
    return bool(missed)


def write_report(report: BenchReport, form: str, output: Console) -> None:
    from ..core.bench.exports import as_csv, as_jsonl, as_sql
    from ..core.bench.report_tables import as_markdown

    if form == "json":
        output.line(dumps(whole(report), indent=1))
    else:
        forms = {"md": as_markdown, "jsonl": as_jsonl, "csv": as_csv, "sql": as_sql}
        output.text(forms[form](report))


def check_place(path: Path, flag: str) -> None:
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{flag} {path}: {path.parent} is not a folder")
    if path.is_dir():
        raise typer.BadParameter(f"{flag} {path} is a folder, not a file")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{flag} {path}: no permission to write to {path.parent}")


def save_report(report: BenchReport, path: Path) -> None:
    """A job that is killed leaves the report of its last repetition."""
    save_text(dumps(whole(report)) + "\n", path)


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
    """The report with the rows of the other formats, for tools that know llama-bench's names."""
    from ..core.bench.exports import rows_of

    return report.to_json() | {"results": list(rows_of(report))}


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
