"""What a model file is, what is wrong with it, and which speculation it supports: one verdict.

`spec convert inspect` prints it, with `--run` after a scan of all numbers and trial runs.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...core.errors import ConfigError, ModelError, NextnError
from ...core.gguf.reader import GgufFile
from ...core.models.drafters.foreign_names import in_names_of_today
from ...core.speculation.drafter_results import DrafterResult, ResultFile
from ..checkpoint.folder import ModelCheckpoint
from ..files.gguf_facts import GgufFacts
from .checkpoint_verdict import inspect_checkpoint
from .gguf_verdict import inspect_gguf
from .opening import OpenedGguf, open_anything
from .pairing import check_pair, judge_by_result
from .scan import Scanned
from .verdict import FileReport, ReadFacts, Subject

__all__ = [
    "FileReport", "OpenedGguf", "add_scanned", "examine", "examine_pair", "open_anything",
    "unreadable",
]  # fmt: skip


def examine(
    opened: OpenedGguf | ModelCheckpoint,
    draft: OpenedGguf | ModelCheckpoint | None = None,
    *,
    scanned: Scanned | None = None,
    measured: DrafterResult | None = None,
) -> FileReport:
    """The report on a file. `scanned`: what `scan` found in all of its numbers. `measured`: what
    `draft` has just brought."""
    if isinstance(opened, ModelCheckpoint):
        if draft is not None:
            raise ConfigError("--draft is compared with a GGUF file, not with a checkpoint")
        return inspect_checkpoint(opened)
    file, written_for, fault = _in_names_of_today(opened.file)
    report = inspect_gguf(replace(opened, file=file), was_scanned=scanned is not None)
    if scanned is not None:
        report.numbers = ReadFacts(scanned.n_bytes, scanned.seconds)
        add_scanned(scanned, report)
    if written_for:
        report.add("drafter-names", Subject.LLAMA_CPP, _foreign(written_for))
    if fault:
        report.add("drafter", Subject.DRAFTER, fault)
    if draft is not None:
        if isinstance(draft, ModelCheckpoint) or report.kind != "model":
            raise ConfigError("--draft compares one GGUF model with another")
        _add_pair(opened, draft, report, measured)
    return report


def unreadable(label: str, error: NextnError) -> FileReport:
    """The report on a file that cannot be opened."""
    report = FileReport(label=label, kind="unreadable", what="it cannot be read", format="")
    report.add("file-unreadable", Subject.MODEL, str(error).removeprefix(f"{label}: "))
    return report


def add_scanned(scanned: Scanned, report: FileReport, label: str = "") -> None:
    """`label`: of another file than the one reported on."""
    before = f"{label}: " if label else ""
    for rule, faults in (("numbers", scanned.faults), ("numbers-zero", scanned.suspicious)):
        for fault in faults:
            report.add(rule, Subject.MODEL, f"{before}{fault}")


def examine_pair(
    draft: OpenedGguf | ModelCheckpoint,
    target: OpenedGguf | ModelCheckpoint,
    measured: DrafterResult | None = None,
) -> FileReport:
    """The report on whether a drafter goes with a model, and on nothing else."""
    if isinstance(draft, ModelCheckpoint) or isinstance(target, ModelCheckpoint):
        raise ConfigError("--target compares GGUF files, not checkpoints")
    if (found := inspect_gguf(target)).kind != "model":
        raise ConfigError(f"--target: {target.file.label} is {found.what or found.kind}")
    file = draft.file
    report = FileReport(
        label=file.label,
        kind="pair",
        what=f"as a drafter for {target.file.label}",
        format="gguf",
        files=len(file.paths),
        bytes=draft.n_bytes,
        architecture=file.metadata.architecture,
        runs_here=True,
    )
    _add_pair(target, draft, report, measured)
    return report


def _add_pair(
    target: OpenedGguf, draft: OpenedGguf, report: FileReport, measured: DrafterResult | None
) -> None:
    """Whether the drafter fits, and what it has brought to the model so far."""
    file, written_for, fault = _in_names_of_today(draft.file)
    facts = GgufFacts(target.file, target.has_numbers)
    check_pair(facts, file, report, has_numbers=draft.has_numbers)
    if written_for:
        text = f"{draft.file.label}: {_foreign(written_for)}"
        report.add("drafter-names", Subject.LLAMA_CPP, text)
    if fault:
        report.add("drafter", Subject.DRAFTER, f"{draft.file.label}: {fault}")
    if measured is None and target.has_numbers and draft.has_numbers:
        measured = ResultFile(target.file, file).read()
    if measured is not None:
        judge_by_result(report, measured)


def _in_names_of_today(file: GgufFile) -> tuple[GgufFile, str, str]:
    """With what it was written for, and why it cannot be read."""
    try:
        return *in_names_of_today(file), ""
    except ModelError as error:
        return file, "", str(error).removeprefix(f"{file.label}: ")


def _foreign(written_for: str) -> str:
    return (
        f"its names are those of {written_for}, which llama.cpp does not read; "
        "spec convert drafter writes llama.cpp's"
    )
