"""What a model file is, and a doctor's verdict on speculation with it."""

from __future__ import annotations

from ...core.errors import ConfigError
from ..checkpoint.folder import Checkpoint
from .checkpoint import inspect_checkpoint
from .facts import Facts
from .gguf_file import inspect_gguf
from .opening import OpenedGguf, open_anything
from .pairing import check_pair
from .report import Report

__all__ = ["OpenedGguf", "Report", "examine", "open_anything"]


def examine(
    opened: OpenedGguf | Checkpoint, draft: OpenedGguf | Checkpoint | None = None
) -> Report:
    if isinstance(opened, Checkpoint):
        if draft is not None:
            raise ConfigError("--draft is compared with a GGUF file, not with a checkpoint")
        return inspect_checkpoint(opened)
    report = inspect_gguf(opened)
    if draft is None:
        return report
    if isinstance(draft, Checkpoint) or report.kind != "model":
        raise ConfigError("--draft compares one GGUF model with another")
    facts = Facts(opened.file, opened.has_numbers)
    check_pair(facts, draft.file, report, has_numbers=draft.has_numbers)
    return report
