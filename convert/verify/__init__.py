"""What a model file is, what is wrong with it, and which speculation it supports: one verdict.

`spec convert inspect` prints it; `spec convert check` adds a scan of all numbers and trial runs.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...core.errors import ConfigError, ModelError
from ...core.gguf.reader import GgufFile
from ...core.models.drafters.foreign_names import in_names_of_today
from ..checkpoint.folder import ModelCheckpoint
from .checkpoint_verdict import inspect_checkpoint
from .gguf_facts import GgufFacts
from .gguf_verdict import inspect_gguf
from .opening import OpenedGguf, open_anything
from .pairing import check_pair
from .verdict import FileReport, Subject

__all__ = ["FileReport", "OpenedGguf", "examine", "open_anything"]


def examine(
    opened: OpenedGguf | ModelCheckpoint,
    draft: OpenedGguf | ModelCheckpoint | None = None,
    *,
    was_scanned: bool = False,
) -> FileReport:
    """The report on a file. `was_scanned`: `scan` has searched its numbers for NaN already."""
    if isinstance(opened, ModelCheckpoint):
        if draft is not None:
            raise ConfigError("--draft is compared with a GGUF file, not with a checkpoint")
        return inspect_checkpoint(opened)
    file, written_for, fault = _in_names_of_today(opened.file)
    report = inspect_gguf(replace(opened, file=file), was_scanned=was_scanned)
    if written_for:
        report.refusal(_foreign(written_for))
    if fault:
        report.problem(Subject.DRAFTER, fault)
    if draft is None:
        return report
    if isinstance(draft, ModelCheckpoint) or report.kind != "model":
        raise ConfigError("--draft compares one GGUF model with another")
    facts = GgufFacts(opened.file, opened.has_numbers)
    draft_file, written_for, fault = _in_names_of_today(draft.file)
    check_pair(facts, draft_file, report, has_numbers=draft.has_numbers)
    if written_for:
        report.refusal(f"{draft.file.label}: {_foreign(written_for)}")
    if fault:
        report.problem(Subject.DRAFTER, f"{draft.file.label}: {fault}")
    return report


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
