"""`spec convert check`: the verdict of inspect, a scan of all numbers, and trial runs."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...core.errors import NextnError
from ..auditing import difference_line
from ..console import Console, one_line, print_error
from ..flags import argument, flag, flag_group, takes_flags
from ..open_model import open_runtime
from ..shared_options import PlaceOptions, VoiceOptions
from .writing import size

if TYPE_CHECKING:
    from ...convert.verify import FileReport, OpenedGguf
    from ...convert.verify.scan import Scanned
    from ...convert.verify.trial import Trial

SHOWN = 10  # faults of one kind


@flag_group("File")
class CheckOptions:
    file: Path = argument("FILE", "A GGUF file; of shards, the first.")
    draft: Path | None = flag(
        "--draft -md FILE", "Draft model, or file of a drafter or MTP head, for the trial runs."
    )
    no_run: bool = flag("--no-run", "No trial runs.")
    predict: int = flag("--predict -n N", "Tokens of each trial run.", 48, min=1)
    json: bool = flag("--json", "One JSON object instead of text.")


class CheckLines:
    """Printed lines, with the failures and warnings among them."""

    def __init__(self, output: Console, *, prints: bool) -> None:
        self.output, self.prints = output, prints
        self.failed: list[str] = []
        self.warnings: list[str] = []

    def say(self, title: str, text: str) -> None:
        if self.prints:
            line = one_line(f"{title:<10} {text}")
            if (width := self.output.width) is not None:
                line = textwrap.fill(line, width - 1, subsequent_indent=" " * 11)
            self.output.line(line)

    def fail(self, title: str, texts: list[str]) -> None:
        self.failed += texts
        for text in texts[:SHOWN]:
            self.say(title, f"FAILED: {text}")
        if len(texts) > SHOWN:
            self.say(title, f"FAILED: and {len(texts) - SHOWN} more of this kind")

    def warn(self, title: str, text: str) -> None:
        self.warnings.append(text)
        self.say(title, f"warning: {text}")


@takes_flags
def check(options: CheckOptions, place: PlaceOptions, voice: VoiceOptions) -> None:
    """Check that a GGUF file is sound and runs.

    spec convert check model.gguf

    Looks for NaN, infinity and absurd scales in every tensor, for all that inspect calls broken and
    llama.cpp would not load, and writes a short text with each drafter that the file has and
    without: the texts must be the same. Exit code 1 if anything failed.
    """
    from ...convert.verify.opening import open_whole_gguf

    output = voice.console()
    lines = CheckLines(output, prints=not options.json)
    result: dict[str, Any] = {"file": str(options.file)}
    paths = [options.file, *([options.draft] if options.draft else [])]
    runs = not options.no_run
    for path in paths:
        opened = open_whole_gguf(path)
        with opened.file:
            record, report = look_through(opened, lines, output)
        result.setdefault("files", []).append(record)
        runs &= path == options.draft or can_run(report, lines)
    if runs and not lines.failed:
        result["trials"] = run(options, place, lines, output)
    elif runs:
        lines.say("run", "left out: what is above comes first")
    conclude(options, result, lines)


def look_through(
    opened: OpenedGguf, lines: CheckLines, output: Console
) -> tuple[dict[str, Any], FileReport]:
    from ...convert.verify import examine
    from ...convert.verify.scan import scan

    file, architecture = opened.file, opened.file.metadata.architecture
    n_params = sum(tensor.n_elements for tensor in file.tensors.values())
    lines.say(
        "file",
        f"{file.label}: {architecture}, {n_params / 1e6:.1f} M parameters in "
        f"{len(file.tensors)} tensors",
    )
    with output.cleared():
        scanned = scan(file, output.progress)
    say_scanned(scanned, lines)
    report = examine(opened, was_scanned=True)
    if report.broken:
        lines.fail("rules", report.broken)
    else:
        lines.say("rules", f"what llama.cpp requires of {architecture} holds")
    for text in report.suspicions:
        lines.warn("rules", text)
    record = {
        "path": str(file.path),
        "architecture": architecture,
        "parameters": n_params,
        "tensors": len(file.tensors),
        "bytes": scanned.n_bytes,
        "bad_tensors": [str(fault) for fault in scanned.faults],
        "suspicious_tensors": [str(fault) for fault in scanned.suspicious],
        "broken_rules": report.broken,
        "scan_seconds": round(scanned.seconds, 3),
    }
    return record, report


def say_scanned(scanned: Scanned, lines: CheckLines) -> None:
    if scanned.faults:
        lines.fail("numbers", [str(fault) for fault in scanned.faults])
    else:
        lines.say(
            "numbers",
            f"{size(scanned.n_bytes)} without NaN, infinity or absurd scales "
            f"({size(scanned.bytes_per_second)}/s)",
        )
    for fault in scanned.suspicious:
        lines.warn("numbers", str(fault))


def can_run(report: FileReport, lines: CheckLines) -> bool:
    if report.kind == "mtp-head":
        lines.say("run", "left out: only an MTP head; check the model with --draft and this file")
    elif report.kind == "drafter":
        lines.say("run", "left out: only a drafter; check its model with --draft and this file")
    elif report.kind == "mmproj":
        lines.say("run", "left out: only a vision tower; --mmproj takes it beside its model")
    elif not report.runs_here:
        lines.say("run", f"left out: {report.architecture} cannot be run here")
    return report.kind not in ("mtp-head", "drafter", "mmproj") and report.runs_here


def run(
    options: CheckOptions, place: PlaceOptions, lines: CheckLines, output: Console
) -> list[dict[str, Any]]:
    from ...convert.verify.trial import trials

    made: list[dict[str, Any]] = []
    try:
        with (
            output.cleared(),
            open_runtime(
                options.file, place, output, drafts=[options.draft] if options.draft else []
            ) as runtime,
        ):
            for trial in trials(runtime, options.predict):
                output.clear_progress()
                made.append(trial.as_json())
                difference = trial.verdict.difference
                if difference is not None:
                    line = difference_line(difference, runtime.tokenizer)
                    lines.fail(trial.drafter, [f"{trial.drafter} is not lossless: {line}"])
                else:
                    lines.say(trial.drafter, trial_line(trial))
                if trial.is_hopeless:
                    lines.warn(
                        trial.drafter,
                        f"none of {trial.stats.draft_n} drafted tokens was accepted: a head or "
                        "draft of another model, or random weights?",
                    )
    except NextnError as error:
        lines.fail("run", [str(error)])
    return made


def trial_line(trial: Trial) -> str:
    stats, plain = trial.stats, trial.plain
    drafts = "drafted nothing"
    if stats.draft_n:
        share = 100 * stats.draft_n_accepted / stats.draft_n
        drafts = (
            f"{stats.draft_n_accepted} of {stats.draft_n} drafted accepted ({share:.0f}%), "
            f"{stats.mean_accept_len:.2f} per step"
        )
    return (
        f"{stats.predicted_n} tokens, the same as without; {drafts}; "
        f"{stats.predicted_per_second:.1f} tokens/s, plain {plain.predicted_per_second:.1f}"
    )


def conclude(options: CheckOptions, result: dict[str, Any], lines: CheckLines) -> None:
    n = len(lines.failed)
    if options.json:
        result |= {"sound": not n, "failed": lines.failed, "warnings": lines.warnings}
        lines.output.line(json.dumps(result))
    if n:
        more = f", and {n - 1} more" if n > 1 else ""
        print_error(f"{options.file}: {lines.failed[0]}{more}")
        raise typer.Exit(1)
    lines.say("result", "sound")
