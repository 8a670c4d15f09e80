"""`spec convert check`: are a file's numbers, keys and texts sound."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from ...core.errors import NextnError
from ..auditing import difference_line
from ..flags import takes_flags
from ..loading import open_runtime
from ..options import PlaceOptions, VoiceOptions
from ..output import Output, one_line, print_error
from .writing import size

if TYPE_CHECKING:
    from ...convert.check.scan import Scanned
    from ...convert.check.trial import Trial
    from ...core.gguf.reader import GgufFile

SHOWN = 10  # faults of one kind


@dataclass(frozen=True, slots=True)
class CheckOptions:
    SECTION: ClassVar = "File"

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file; of shards, the first.")]
    draft: Annotated[
        Path | None,
        typer.Option(
            "--draft", "-md", metavar="FILE",
            help="A draft model, or a file with an MTP head, to be tried with it.",
        ),
    ] = None  # fmt: skip
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Look through numbers and keys only.")
    ] = False
    predict: Annotated[
        int, typer.Option("--predict", "-n", metavar="N", min=1, help="Tokens of each trial.")
    ] = 48
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


class Findings:
    """Lines as they come, and what failed."""

    def __init__(self, output: Output, *, speaks: bool) -> None:
        self.output, self.speaks = output, speaks
        self.failed: list[str] = []
        self.warnings: list[str] = []

    def say(self, title: str, text: str) -> None:
        if self.speaks:
            line = one_line(f"{title:<11}{text}")
            width = self.output.width
            if width is not None:
                indent = " " * 11
                line = textwrap.fill(line, width - 1, subsequent_indent=indent)
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

    Looks for NaN, infinity and absurd scales in every tensor, for what llama.cpp would not load,
    and writes a short text with each drafter that the file has and without: the texts must be the
    same. Exit code 1 if anything failed.
    """
    from ...core.gguf.reader import open_gguf

    output = Output(quiet=voice.quiet, verbose=voice.verbose)
    findings = Findings(output, speaks=not options.json)
    result: dict[str, Any] = {"file": str(options.file)}
    paths = [options.file, *([options.draft] if options.draft else [])]
    runs = not options.no_run
    for path in paths:
        with open_gguf(path) as file:
            result.setdefault("files", []).append(look_through(file, findings, output))
            runs &= path == options.draft or can_run(file, findings)
    if runs and not findings.failed:
        result["trials"] = run(options, place, findings, output)
    elif runs:
        findings.say("run", "left out: what is above comes first")
    conclude(options, result, findings)


def look_through(file: GgufFile, findings: Findings, output: Output) -> dict[str, Any]:
    from ...convert.check.rules import broken_rules
    from ...convert.check.scan import scan
    from ...core.gguf.checks import check_vocabulary

    metadata = file.metadata
    n_params = sum(tensor.n_elements for tensor in file.tensors.values())
    findings.say(
        "file",
        f"{file.label}: {metadata.architecture}, {n_params / 1e6:.1f} M parameters in "
        f"{len(file.tensors)} tensors",
    )
    try:
        scanned = scan(file, output.progress)
    finally:
        output.clear_progress()
    say_scanned(scanned, findings)
    broken = []
    try:
        check_vocabulary(file)
        broken = broken_rules(file)
    except NextnError as error:
        broken = [str(error)]
    if broken:
        findings.fail("rules", broken)
    else:
        findings.say("rules", f"what llama.cpp asks of {metadata.architecture} holds")
    return {
        "path": str(file.path),
        "architecture": metadata.architecture,
        "parameters": n_params,
        "tensors": len(file.tensors),
        "bytes": scanned.n_bytes,
        "bad_tensors": [str(fault) for fault in scanned.faults],
        "suspicious_tensors": [str(fault) for fault in scanned.suspicious],
        "broken_rules": broken,
        "scan_seconds": round(scanned.seconds, 3),
    }


def say_scanned(scanned: Scanned, findings: Findings) -> None:
    if scanned.faults:
        findings.fail("numbers", [str(fault) for fault in scanned.faults])
    else:
        findings.say(
            "numbers",
            f"{size(scanned.n_bytes)} without NaN, infinity or absurd scales "
            f"({size(scanned.bytes_per_second)}/s)",
        )
    for fault in scanned.suspicious:
        findings.warn("numbers", str(fault))


def can_run(file: GgufFile, findings: Findings) -> bool:
    from ...core.models import ARCHITECTURES, is_head_only

    if file.metadata.architecture not in ARCHITECTURES:
        findings.say("run", f"left out: {file.metadata.architecture} cannot be run here")
        return False
    if is_head_only(file):
        findings.say(
            "run", "left out: only an MTP head; check the model with --draft and this file"
        )
        return False
    return True


def run(
    options: CheckOptions, place: PlaceOptions, findings: Findings, output: Output
) -> list[dict[str, Any]]:
    from ...convert.check.trial import trials

    made: list[dict[str, Any]] = []
    try:
        with open_runtime(options.file, place, output, draft=options.draft) as runtime:
            for trial in trials(runtime, options.predict):
                output.clear_progress()
                made.append(trial.as_json())
                difference = trial.verdict.difference
                if difference is not None:
                    line = difference_line(difference, runtime.tokenizer)
                    findings.fail(trial.drafter, [f"{trial.drafter} is not lossless: {line}"])
                else:
                    findings.say(trial.drafter, trial_line(trial))
                if trial.is_hopeless:
                    findings.warn(
                        trial.drafter,
                        f"none of {trial.stats.draft_n} drafted tokens was accepted: a head or "
                        "draft of another model, or random weights?",
                    )
    except NextnError as error:
        findings.fail("run", [str(error)])
    finally:
        output.clear_progress()
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


def conclude(options: CheckOptions, result: dict[str, Any], findings: Findings) -> None:
    n = len(findings.failed)
    if options.json:
        result |= {"sound": not n, "failed": findings.failed, "warnings": findings.warnings}
        findings.output.line(json.dumps(result))
    if n:
        more = f", and {n - 1} more" if n > 1 else ""
        print_error(f"{options.file}: {findings.failed[0]}{more}")
        raise typer.Exit(1)
    findings.say("result", "sound")
