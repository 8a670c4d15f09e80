"""A copy of a GGUF file that recommends sampling values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextn.convert.files.attach_head import copied
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import write_gguf


def recommending(source: Path, path: Path, **values: Any) -> Path:
    """`values` by the ends of the keys `general.sampling.*`."""
    with open_gguf(source) as file:
        keys = {key: file.metadata.typed(key) for key in file.metadata}
        keys |= {f"general.sampling.{name}": value for name, value in values.items()}
        write_gguf(path, keys, [copied(file, name) for name in file.tensors])
    return path
