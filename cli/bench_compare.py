"""`spec bench-spec compare`: two reports beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .bench_reading import flag_names, read_report
from .flags import argument, flag, flag_group, takes_flags
from .shared_options import VoiceOptions
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.bench.comparing import Comparison

FORMATS = ("md", "json")


@flag_group("Reports")
class ComparedOptions:
    a: Path = argument("A.json", "A report (-o json, --save).")
    b: Path = argument("B.json", "Another: what has become of it.")
    output: str = flag(f"--output -o {'|'.join(FORMATS)}", "What stdout gets.", "md")
    force: bool = flag("--force", "Compare speeds of different machines and models, too.")


@takes_flags
def bench_compare(compared: ComparedOptions, voice: VoiceOptions) -> None:
    """Two reports of bench-spec: what has changed from A to B.

    Prompts that both have are paired. Counts are compared as they are; speeds, with an interval,
    only if machine and model are the same.
    """
    if compared.output not in FORMATS:
        raise typer.BadParameter(f"-o is one of {', '.join(FORMATS)}, got {compared.output!r}")
    from ..core.bench.comparing import compare_reports

    output = voice.console()
    a, b = read_report(compared.a, "report"), read_report(compared.b, "report")
    with flag_errors(flag_names):
        found = compare_reports(a, b, force=compared.force)
    output.text(_text(found, compared.output))


def _text(found: Comparison, form: str) -> str:
    from ..core.bench.record import encode
    from ..core.bench.report_tables import comparison_markdown

    if form == "json":
        return json.dumps(encode(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return comparison_markdown(found)
