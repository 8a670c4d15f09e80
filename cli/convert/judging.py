"""The verdict on a file, as `inspect` and `check` ask for it: opened, judged, tried, printed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...core.errors import ConfigError, NextnError
from ..auditing import difference_line
from ..console import Console, print_error
from ..flags import SectionedCommand, flag, flag_group
from ..open_model import open_runtime
from ..shared_options import PlaceOptions
from ..usage import UsageError, describe
from .inspect_text import report_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...convert.checkpoint import ModelCheckpoint
    from ...convert.verify import FileReport, OpenedGguf
    from ...convert.verify.scan import Scanned
    from ...core.speculation.drafter_results import DrafterResult

    Opened = OpenedGguf | ModelCheckpoint


class VerdictCommand(SectionedCommand):
    """With --json a mistake on the command line is an object, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            parsed: list[str] = super().parse_args(ctx, args)
        except UsageError as error:
            if "--json" in args:
                found = {"sound": False, "error": describe(error)}
                Console().line(json.dumps(found, ensure_ascii=False))
            raise
        return parsed


@flag_group("Verdict")
class VerdictOptions:
    strict: bool = flag(
        "--strict", "Exit code 1 for what is suspicious or broken in llama.cpp, too."
    )
    ignore: list[str] | None = flag(
        "--ignore RULE", "A rule that does not count, by its name. May be given several times."
    )
    predict: int = flag("--predict -n N", "Tokens of each trial run.", 48, min=1)
    json: bool = flag("--json", "One JSON object instead of text, also if nothing can be read.")


@dataclass(frozen=True)
class Wanted:
    model: str
    draft: str | None = None
    target: str | None = None
    revision: str | None = None
    scans: bool = False  # reads every number
    runs: bool = False


def give_verdict(
    wanted: Wanted, options: VerdictOptions, place: PlaceOptions, output: Console
) -> None:
    from ...convert.verify.rules import check_rule_names

    with failures_as_json(wanted.model, output, as_json=options.json):
        check_rule_names(options.ignore or [])
        report = _Judge(wanted, options, place, output).report()
    if options.json:
        output.line(json.dumps(report.json(), ensure_ascii=False))
    else:
        for line, style in report_lines(report, output.width):
            output.text(line, style)
            output.line("")
    _exit(report, strict=options.strict)


@contextmanager
def failures_as_json(model: str, output: Console, *, as_json: bool) -> Iterator[None]:
    """With --json, an error is an object as well: the report on a file that cannot be read."""
    from ...convert.verify import unreadable

    try:
        yield
    except NextnError as error:
        if as_json:
            found = {"sound": False, "error": str(error)}
            if not isinstance(error, ConfigError):
                found = unreadable(model, error).json()
            output.line(json.dumps(found, ensure_ascii=False))
        raise


def open_named(where: str, revision: str | None, output: Console) -> Opened:
    from ...convert.verify import open_anything
    from ...core.model_names import find_model

    # smollm2 and nano name what is installed.
    if where and "/" not in where and "\\" not in where:
        where = str(find_model(where))
    output.progress(f"reading {where}", 0.0)  # which is seen of slow servers only
    with output.cleared():
        return open_anything(where, revision)


def _exit(report: FileReport, *, strict: bool) -> None:
    from ...convert.verify.rules import Severity

    bad = report.broken + report.suspicions if strict else report.of(Severity.BROKEN)
    if bad:
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        print_error(f"{report.label}: {bad[0]}{more}")
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Judge:
    wanted: Wanted
    options: VerdictOptions
    place: PlaceOptions
    output: Console

    def report(self) -> FileReport:
        wanted = self.wanted
        if wanted.draft is not None and wanted.target is not None:
            raise ConfigError("give --draft to compare a drafter with MODEL, or --target, not both")
        opened = open_named(wanted.model, wanted.revision, self.output)
        named = wanted.draft if wanted.target is None else wanted.target
        other = None if named is None else open_named(named, None, self.output)
        scanned = self._scan(opened) if wanted.target is None else None
        report = self._compare(opened, other, scanned)
        if wanted.runs and wanted.target is None:
            self._try(opened, other, report)
        if wanted.runs and other is not None and report.is_sound:
            trials = report.trials
            report = self._compare(opened, other, scanned, self._measure())
            report.trials = trials
        return report

    def _compare(
        self,
        opened: Opened,
        other: Opened | None,
        scanned: Scanned | None,
        measured: DrafterResult | None = None,
    ) -> FileReport:
        from ...convert.verify import add_scanned, examine, examine_pair

        if self.wanted.target is not None and other is not None:
            report = examine_pair(opened, other, measured)
        else:
            report = examine(opened, other, scanned=scanned, measured=measured)
            if other is not None and (more := self._scan(other)) is not None:
                add_scanned(more, report, str(self.wanted.draft))
        report.ignore(self.options.ignore or [])
        return report

    def _scan(self, opened: Opened) -> Scanned | None:
        """None for a file of which only the header is here, and for a checkpoint."""
        from ...convert.verify import OpenedGguf
        from ...convert.verify.scan import scan

        if not self.wanted.scans or not isinstance(opened, OpenedGguf) or not opened.has_numbers:
            return None
        with self.output.cleared():
            return scan(opened.file, self.output.progress)

    def _try(self, opened: Opened, other: Opened | None, report: FileReport) -> None:
        """A short text with each drafter."""
        from ...convert.verify import OpenedGguf

        if not report.is_sound:
            report.not_tried = "what is below comes first"
        elif why := _why_not_tried(report):
            report.not_tried = why
        elif isinstance(opened, OpenedGguf) and not opened.has_numbers:
            report.not_tried = "only its header was read"
        else:
            self._run_trials(report)
            self._explain_poor_head(opened, other, report)
            report.ignore(self.options.ignore or [])

    def _run_trials(self, report: FileReport) -> None:
        from ...convert.verify.trial import trials
        from ...convert.verify.verdict import Subject

        model, draft = self.wanted.model, self.wanted.draft
        drafts = [Path(draft)] if draft else []
        try:
            with (
                self.output.cleared(),
                open_runtime(_path(model), self.place, self.output, drafts=drafts) as runtime,
            ):
                for trial in trials(runtime, self.options.predict):
                    self.output.clear_progress()
                    report.trials.append(trial.facts)
                    if trial.verdict.difference is not None:
                        line = difference_line(trial.verdict.difference, runtime.tokenizer)
                        text = f"{trial.drafter} is not lossless: {line}"
                        report.add("run-lossless", Subject.MODEL, text)
                    if trial.facts.is_hopeless:
                        report.add("head-hopeless", Subject.MODEL, _hopeless(trial.facts))
        except NextnError as error:
            report.add("run", Subject.MODEL, f"it cannot be run: {error}")

    def _explain_poor_head(self, opened: Opened, other: Opened | None, report: FileReport) -> None:
        from ...convert.verify import OpenedGguf
        from ...convert.verify.exchanges import find_exchange, is_poor
        from ...convert.verify.verdict import Subject
        from ...core.speculation.options import MTP

        head = opened if other is None else other
        is_bad = any(trial.drafter == MTP and is_poor(trial) for trial in report.trials)
        if not is_bad or not isinstance(head, OpenedGguf):
            return
        self.output.progress("looking for exchanged parts of the head", 0.0)
        with self.output.cleared():
            found = find_exchange(_path(self.wanted.model), head.file)
        if found is not None:
            text = f"the head drafts as if parts were exchanged: with {found}"
            report.add("head-swapped", Subject.HEAD, text, "convert the head again")

    def _measure(self) -> DrafterResult:
        from ...core.load_runtime import load_runtime
        from ...core.speculation.options import SpecOptions
        from ...core.try_drafter import try_drafter

        model, draft = _path(self.wanted.model), self.wanted.draft
        if self.wanted.target is not None:
            model, draft = _path(self.wanted.target), self.wanted.model
        self.output.progress(f"loading {model}", 0.0)
        with (
            self.output.cleared(),
            load_runtime(model, "cpu", draft=draft, spec=SpecOptions()) as runtime,
        ):
            self.output.progress("drafting two short texts", 0.0)
            (loaded,) = runtime.draft_files
            return try_drafter(runtime, loaded.drafter)


def _path(name: str) -> Path:
    from ...core.model_names import find_model

    return Path(name) if "/" in name or "\\" in name else find_model(name)


def _hopeless(trial: Any) -> str:
    return (
        f"{trial.drafter}: none of {trial.draft_n} drafted tokens was accepted: a head or draft of "
        "another model, or random weights?"
    )


def _why_not_tried(report: FileReport) -> str:
    alone = {
        "mtp-head": "only an MTP head; give its model, and this file with --draft",
        "drafter": "only a drafter; give its model, and this file with --draft",
        "mmproj": "only a vision tower; --mmproj takes it beside its model",
        "checkpoint": "a checkpoint; spec convert hf makes a file that can be run",
        "drafter-checkpoint": "a checkpoint; spec convert hf makes a file that can be run",
    }
    if report.kind in alone:
        return alone[report.kind]
    if report.kind != "model":
        return f"this is {report.what}"
    return "" if report.runs_here else f"{report.architecture} cannot be run here"
