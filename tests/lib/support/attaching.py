"""Attaching heads without a command line, and what of a file can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextn.convert.files.attach_head import Attached, attach_head
from nextn.convert.files.gguf_head import read_gguf_head
from nextn.convert.files.head_source import open_source
from nextn.convert.files.head_types import TypeChoice
from nextn.convert.files.output_file import OutputFile
from nextn.convert.heads.from_checkpoint import read_checkpoint_head
from nextn.convert.quantize.type_rules import parse_rule
from nextn.core.gguf.reader import GgufFile, open_gguf


def attach_to(
    target: Path,
    source: Path,
    path: Path,
    kind: str = "keep",
    *rules: str,
    keep_copies: bool = False,
    **more: Any,
) -> Attached:
    choice = TypeChoice(kind, tuple(map(parse_rule, rules)))
    with open_gguf(target) as file, open_source(str(source)) as opened:
        if isinstance(opened, GgufFile):
            head = read_gguf_head(opened)
            return attach_head(file, head, OutputFile(path, True), choice, source=opened, **more)
        names, arch = file.tensors, file.metadata.architecture
        head = read_checkpoint_head(opened, arch, names, keep_copies=keep_copies)
        return attach_head(file, head, OutputFile(path, True), choice, **more)


def contents(path: Path) -> dict[str, tuple[Any, ...]]:
    """Type, shape and bytes of every tensor."""
    with open_gguf(path) as file:
        return {
            name: (tensor.format.name, tensor.shape, tensor.data.tobytes())
            for name, tensor in file.tensors.items()
        }


def metadata(path: Path) -> list[tuple[Any, ...]]:
    """Keys in their order, with exact types and values."""
    with open_gguf(path) as file:
        found = []
        for key in file.metadata:
            typed = file.metadata.typed(key)
            value = typed.value.tolist() if hasattr(typed.value, "tolist") else typed.value
            found.append((key, typed.type, typed.element, value))
        return found
