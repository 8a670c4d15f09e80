"""The report as one HTML file: no network, no scripts, readable in ten years."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from . import plots
from .page_style import STYLE
from .reconciling import counted_rows
from .record import BenchReport, GateResult, Summary
from .words import identical, interval, number, overall, share, size, spread

_HEAD: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
MANY_ROWS: Final = 24  # and more are folded
MANY_GATES: Final = 4
_COLUMNS: Final = (
    "configuration", "users", "tokens/s", "±", "speed-up", "with prompt", "tokens/round",
    "accepted", "TTFT ms p50 / p95", "ms/token p50 / p95", "ms/chunk p50 / p95", "same text",
)  # fmt: skip


def html_page(report: BenchReport) -> str:
    parts = [
        _HEAD,
        f"<title>{escape(_title(report))}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(_title(report))}</h1>",
        f'<p class="soft">{escape(_subtitle(report))}</p>',
        _gates(report),
        _warnings(report),
        _together(report),
        *(_section(title, figures) for title, figures in plots.sections(report)),
        _categories(report),
        _sources(report),
        _counted(report),
        _memory(report),
        _provenance(report),
        "</body></html>\n",
    ]
    return "".join(parts)


def _title(report: BenchReport) -> str:
    name = report.provenance.get("model_name") or report.provenance.get("model_filename")
    return f"bench-spec: {name}" if name else "bench-spec"


def _subtitle(report: BenchReport) -> str:
    known, settings = report.provenance, report.settings
    law = "greedy" if not settings.temperature else f"temperature {settings.temperature:g}"
    n = len(report.configurations)
    said = f"{report.prompt_set} prompts, {n} configurations, {law}, seed {settings.seed}"
    where = (known.get(name) for name in ("device", "cpu_kernels", "cpu_info", "test_time"))
    return ", ".join([said, *(str(each) for each in where if each)])


def _gates(report: BenchReport) -> str:
    if not report.gates:
        return ""
    missed = [gate for gate in report.gates if not gate.ok]
    held = [gate for gate in report.gates if gate.ok]
    found = "<h2>Gates</h2>"
    if missed:
        found += f"<ul>{''.join(map(_gate, missed))}</ul>"
    if len(held) > MANY_GATES:
        title = f"{len(held)} gates were held"
        return found + _folded(title, f"<ul>{''.join(map(_gate, held))}</ul>", "good")
    return found + (f"<ul>{''.join(map(_gate, held))}</ul>" if held else "")


def _gate(gate: GateResult) -> str:
    kind, said = ("good", "PASS") if gate.ok else ("bad", "FAIL")
    return f'<li class="{kind}">{said} {escape(gate.gate)} {escape(gate.line)}</li>'


def _folded(title: str, inside: str, kind: str = "") -> str:
    return f'<details><summary class="{kind}">{escape(title)}</summary>{inside}</details>'


def _warnings(report: BenchReport) -> str:
    if not report.warnings:
        return ""
    items = "".join(f'<li class="warn">{escape(line)}</li>' for line in report.warnings)
    return f"<h2>Warnings</h2><ul>{items}</ul>"


def _together(report: BenchReport) -> str:
    rows = [_cells(each, report) for each in overall(report)]
    if not rows:  # a sweep has its curve alone
        return ""
    return (
        "<h2>All together</h2>"
        + _table(_COLUMNS, rows)
        + '<p class="soft">Tokens/s of decoding, for each user. The speed-up is that of decoding '
        f"against {escape(report.baseline)}, paired, with its 95% interval; tokens/round includes "
        "rounds without a draft; shares of accepted drafts cannot be compared between lengths.</p>"
    )


def _cells(summary: Summary, report: BenchReport) -> list[str]:
    counts, times = summary.counts, summary.times
    is_base = summary.configuration == report.baseline
    same = identical(summary)
    return [
        summary.configuration,
        str(summary.concurrency),
        number(times.avg_ts),
        number(times.stddev_ts),
        "baseline" if is_base else interval(times.speedup),
        "" if is_base else interval(times.wall_speedup),
        number(counts.mean_len),
        share(counts.accept_rate),
        spread(times.ttft),
        spread(times.itl_token),
        spread(times.itl_chunk),
        "" if is_base else f"{same} ({counts.first_difference})" if same == "no" else same,
    ]


def _section(title: str, figures: Sequence[plots.Figure]) -> str:
    if not figures:
        return ""
    drawn = "".join(
        f"<figure><h3>{escape(each.title)}</h3>{each.svg}"
        f"<figcaption>{escape(each.caption)}</figcaption></figure>"
        for each in figures
    )
    return f'<h2>{escape(title)}</h2><div class="plots">{drawn}</div>'


def _categories(report: BenchReport) -> str:
    rows = [[each.category, *_cells(each, report)] for each in report.summaries if each.category]
    if not rows:
        return ""
    table = _table(("category", *_COLUMNS), rows)
    if len(rows) > MANY_ROWS:
        table = _folded(f"a table of {len(rows)} rows", table)
    return "<h2>By category</h2>" + table


def _sources(report: BenchReport) -> str:
    rows = [
        [each.configuration, name, str(of.drafted), str(of.accepted),
         share(of.accepted / of.drafted if of.drafted else None), number(of.ms)]
        for each in overall(report)
        for name, of in each.counts.by_source.items()
    ]  # fmt: skip
    if not rows:
        return ""
    names = ("configuration", "drafted by", "tokens", "accepted", "share", "ms in all")
    return "<h2>Who drafted</h2>" + _table(names, rows)


def _counted(report: BenchReport) -> str:
    heads, *rows = counted_rows(report)
    if not rows:
        return ""
    return "<h2>Counted here, and by the servers themselves</h2>" + _table(heads, rows)


def _memory(report: BenchReport) -> str:
    every = [each for each in report.configurations if each.memory]
    kinds = list(dict.fromkeys(what for each in every for what in each.memory))
    rows = [
        [each.name, *(size(each.memory[what]) if what in each.memory else "" for what in kinds)]
        for each in every
    ]
    return "<h2>Memory</h2>" + _table(("configuration", *kinds), rows) if rows else ""


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
        f"<tr><th>{escape(str(name))}</th><td>{escape(_said(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<div class="scroll"><table class="facts">{rows}</table></div>'


def _said(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _table(names: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{table}</table></div>'
