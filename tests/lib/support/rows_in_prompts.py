"""Prompts with the rows of the embedding in place of its tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import numpy as np

from nextn.core.backend.layers import Floats
from nextn.core.runtime import Runtime
from nextn.core.state.embedded_rows import ModelPrompt


@cache
def embedding(path: Path) -> Floats:
    (table,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    found: Floats = gguf.dequantize(table.data, table.tensor_type)
    return found


def rows_of(runtime: Runtime, tokens: list[int]) -> Floats:
    """What the model's embedding makes of tokens."""
    return embedding(runtime.file.path)[tokens] * np.float32(runtime.model.embedding_scale)


def with_rows(runtime: Runtime, tokens: list[int], first: int, end: int) -> ModelPrompt:
    return ModelPrompt.of([tokens[:first], rows_of(runtime, tokens[first:end]), tokens[end:]])
