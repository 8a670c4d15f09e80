"""Rows as text: csv, jsonl and sql, in the shapes that llama-bench prints."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

from .record import BenchReport
from .rows import Row, flat, rows_of

TABLE: Final = "spec_bench"
_NUL: Final = "\0"


def as_jsonl(report: BenchReport) -> str:
    """One object per row."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows_of(report))
    return "".join(f"{line}\n" for line in lines)


def as_csv(report: BenchReport) -> str:
    """Every value in quotes; the names are not."""
    rows = [flat(row) for row in rows_of(report)]
    out = io.StringIO()
    if rows:
        out.write(",".join(rows[0]) + "\n")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return out.getvalue()


def as_sql(report: BenchReport) -> str:
    """A table that is made if it is not there, and rows to go into it: `… -o sql | sqlite3 FILE`
    collects runs."""
    rows = [flat(row) for row in rows_of(report)]
    if not rows:
        return ""
    columns = ",\n".join(f"  {name} {_kind(name, rows)}" for name in rows[0])
    names = ", ".join(rows[0])
    lines = [f"CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);\n"]
    for row in rows:
        values = ", ".join(map(_literal, row.values()))
        lines.append(f"INSERT INTO {TABLE} ({names}) VALUES ({values});")
    return "\n".join(lines) + "\n"


def _kind(name: str, rows: Sequence[Row]) -> str:
    """By what is in it; by its name where nothing is, so that the next run finds the same table."""
    kinds = {type(row[name]) for row in rows} - {type(None)}
    if kinds:
        whole = kinds <= {int, bool}
        return "INTEGER" if whole else "REAL" if kinds <= {int, bool, float} else "TEXT"
    if name.startswith("n_") or name.endswith("_ns"):
        return "INTEGER"
    return "REAL" if "speedup" in name or name.endswith(("_ts", "_len", "_rate")) else "TEXT"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    # A NUL would end the statement for most readers.
    return "'" + str(value).replace("'", "''").replace(_NUL, "") + "'"
