"""Conversions as tests want them: a folder in, a GGUF file out, F32 unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.files.output_file import OutputFile
from nextn.convert.hf import Conversion, Options, plan_conversion


def check_line(error: Exception) -> None:
    """What a person gets to read."""
    assert str(error)
    assert "\n" not in str(error)


def plan(folder: Path, **options: Any) -> Conversion:
    """Without writing; its tensors must not be read any more."""
    with open_checkpoint(folder) as checkpoint:
        return plan_conversion(checkpoint, folder, Options(**{"kind": "f32"} | options))


def convert(folder: Path, out: Path, *, max_shard_bytes: int | None = None, **options: Any) -> Path:
    with open_checkpoint(folder) as checkpoint:
        made = plan_conversion(checkpoint, folder, Options(**{"kind": "f32"} | options))
        return made.write(OutputFile(out, max_bytes=max_shard_bytes))[0]
