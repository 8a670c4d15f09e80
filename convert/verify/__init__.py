"""What a model file is, what is wrong with it, and which speculation it supports: one verdict.

`spec convert inspect` prints it; `spec convert check` adds a scan of all numbers and trial runs.
"""

from __future__ import annotations

from ...core.errors import ConfigError
from ..checkpoint.folder import ModelCheckpoint
from .checkpoint_verdict import inspect_checkpoint
from .gguf_facts import GgufFacts
from .gguf_verdict import inspect_gguf
from .opening import OpenedGguf, open_anything
from .pairing import check_pair
from .verdict import FileReport

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
    report = inspect_gguf(opened, was_scanned=was_scanned)
    if draft is None:
        return report
    if isinstance(draft, ModelCheckpoint) or report.kind != "model":
        raise ConfigError("--draft compares one GGUF model with another")
    facts = GgufFacts(opened.file, opened.has_numbers)
    check_pair(facts, draft.file, report, has_numbers=draft.has_numbers)
    return report
