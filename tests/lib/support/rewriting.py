"""Files with other keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf


def rewritten(source: Path, path: Path, changes: dict[str, Any]) -> Path:
    """With other values of keys; None takes a key away."""
    with open_gguf(source) as file:
        keys = {key: file.metadata.typed(key) for key in file.metadata} | changes
        tensors = [
            TensorData(t.name, t.shape, t.format, t.data.tobytes()) for t in file.tensors.values()
        ]
    write_gguf(path, {k: v for k, v in keys.items() if v is not None}, tensors)
    return path
