"""The report as one HTML file: no network, no scripts, readable in ten years."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from .page_style import STYLE
from .record import BenchReport, GateResult
from .report_charts import ReportChart, report_charts
from .report_tables import report_tables
from .tables import TextTable

_HEAD: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
MANY_ROWS: Final = 24  # and more are folded
MANY_GATES: Final = 4
_SPEEDS_NOTE: Final = (
    '<p class="soft">Tokens/s of decoding, for each user. Speed-ups are those of pairs against the '
    "baseline, with a 95% interval.</p>"
)


def html_page(report: BenchReport) -> str:
    tables = list(report_tables(report))
    first, rest = tables[:1], tables[1:]
    parts = [
        _HEAD,
        f"<title>{escape(_title(report))}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(_title(report))}</h1>",
        f'<p class="soft">{escape(_subtitle(report))}</p>',
        _gates(report),
        _warnings(report),
        *map(_table, first),
        *(_section(title, charts) for title, charts in report_charts(report)),
        *map(_table, rest),
        _provenance(report),
        "</body></html>\n",
    ]
    return "".join(parts)


def _title(report: BenchReport) -> str:
    name = report.provenance.get("model_name") or report.provenance.get("model_filename")
    return f"bench-spec: {name}" if name else "bench-spec"


def _subtitle(report: BenchReport) -> str:
    known, settings = report.provenance, report.settings
    how = "greedy" if not settings.temperature else f"temperature {settings.temperature:g}"
    n = len(report.configurations)
    what = f"{report.prompt_set} prompts, {n} configurations, {how}, seed {settings.seed}"
    where = (known.get(name) for name in ("device", "cpu_kernels", "cpu_info", "test_time"))
    return ", ".join([what, *(str(each) for each in where if each)])


def _gates(report: BenchReport) -> str:
    if not report.gates:
        return ""
    missed = [gate for gate in report.gates if not gate.ok]
    passed = [gate for gate in report.gates if gate.ok]
    found = "<h2>Gates</h2>"
    if missed:
        found += f"<ul>{''.join(map(_gate, missed))}</ul>"
    if len(passed) > MANY_GATES:
        title = f"{len(passed)} gates were passed"
        return found + _folded(title, f"<ul>{''.join(map(_gate, passed))}</ul>", "good")
    return found + (f"<ul>{''.join(map(_gate, passed))}</ul>" if passed else "")


def _gate(gate: GateResult) -> str:
    kind, word = ("good", "PASS") if gate.ok else ("bad", "FAIL")
    return f'<li class="{kind}">{word} {escape(gate.gate)} {escape(gate.line)}</li>'


def _folded(title: str, inside: str, kind: str = "") -> str:
    return f'<details><summary class="{kind}">{escape(title)}</summary>{inside}</details>'


def _warnings(report: BenchReport) -> str:
    if not report.warnings:
        return ""
    items = "".join(f'<li class="warn">{escape(line)}</li>' for line in report.warnings)
    return f"<h2>Warnings</h2><ul>{items}</ul>"


def _section(title: str, charts: Sequence[ReportChart]) -> str:
    if not charts:
        return ""
    drawn = "".join(
        f"<figure><h3>{escape(each.title)}</h3>{each.svg}"
        f"<figcaption>{escape(each.caption)}</figcaption></figure>"
        for each in charts
    )
    return f'<h2>{escape(title)}</h2><div class="plots">{drawn}</div>'


def _table(table: TextTable) -> str:
    title = escape(table.title or "All together")
    drawn = table.html()
    if len(table.rows) > MANY_ROWS:
        drawn = _folded(f"a table of {len(table.rows)} rows", drawn)
    note = "" if table.title else _SPEEDS_NOTE
    return f"<h2>{title}</h2>{drawn}{note}"


def _provenance(report: BenchReport) -> str:
    facts: dict[str, Any] = {
        **report.provenance,
        "prompt set": f"{report.prompt_set}, sha256 {report.prompt_set_sha256}",
    }
    tables = [_folded("run and machine", _facts(facts))]
    tables += [
        _folded(f"configuration {c.name}", _facts(c.details))
        for c in report.configurations
        if c.details
    ]
    return "<h2>Where this comes from</h2>" + "".join(tables)


def _facts(facts: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(_fact(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<div class="scroll"><table class="facts">{rows}</table></div>'


def _fact(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
