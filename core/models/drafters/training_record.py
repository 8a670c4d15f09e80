"""What the file of a drafter says of its own training, under keys that llama.cpp passes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec import Struct

from ...errors import ModelError

if TYPE_CHECKING:
    from ...gguf.reader import GgufFile

PREFIX: Final = "nextn.training."


class TrainingRecord(Struct, frozen=True):
    target: str  # fingerprint of the model that it was trained for
    model: str  # its name
    texts: str  # their source
    kinds: tuple[str, ...]  # each with the number of its texts
    text_count: int
    token_count: int  # that were learned from
    steps: int
    minutes: float
    seed: int
    temperature: float  # of the texts
    acceptance: tuple[float, ...]  # of drafts behind held-out prompts, those right at each place
    tokens_per_step: float  # there, with as many tokens drafted at each step


def read_training_record(file: GgufFile) -> TrainingRecord | None:
    """None for a file without one; ModelError for one that is no record."""
    found = {
        key.removeprefix(PREFIX): np.asarray(value).tolist()
        for key, value in file.metadata.items()
        if key.startswith(PREFIX)
    }
    if not found:
        return None
    try:
        return msgspec.convert(found, TrainingRecord)
    except msgspec.ValidationError as error:
        raise ModelError(f"{file.label}: {PREFIX}*: {error}") from None


def record_entries(record: TrainingRecord) -> dict[str, object]:
    """As `write_gguf` takes them."""
    return {PREFIX + name: value for name, value in msgspec.to_builtins(record).items()}
