"""A drafter's GGUF file in the names that llama.cpp reads today."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ...core.errors import ConfigError, ModelError
from ...core.gguf.checks import check_vocabulary
from ...core.gguf.encode import exact_types
from ...core.gguf.reader import GgufFile
from ...core.gguf.types import Typed
from ...core.models.drafters.foreign_names import in_names_of_today
from ..files.attach_head import copied
from ..files.layer_keys import entries_of
from ..files.output_file import OutputFile, Progress, write
from .drafter_files import describe, is_drafter
from .drafter_tensors import find_tensor_faults

_MASK: Final = "tokenizer.ggml.mask_token_id"


class RenamedDrafter(Struct):
    file: GgufFile
    written_for: str
    words: str  # "a DFlash drafter"
    entries: dict[str, Typed]
    notes: list[str]  # what llama.cpp will not do with it

    def write(self, output: OutputFile, progress: Progress) -> list[Path]:
        tensors = [copied(self.file, name) for name in self.file.tensors]
        return write(output, self.entries, tensors, [self.file], progress)


def plan_renaming(file: GgufFile, tokenizer: dict[str, Any] | None) -> RenamedDrafter:
    """`tokenizer`: its target's keys, for a file that has none. Raises ModelError for a file that
    would not be whole, ConfigError where there is nothing to do."""
    found, written_for = in_names_of_today(file)
    if not is_drafter(found):
        raise ModelError(f"{file.label} holds no drafter of a kind that is known")
    entries, has_tokens = entries_of(found.metadata), check_vocabulary(found) > 0
    if not written_for and (has_tokens or tokenizer is None):
        raise ConfigError(f"{file.label} has llama.cpp's names already: there is nothing to do")
    described = describe(found)
    faults = find_tensor_faults(found, described, has_numbers=True)
    wrong = [*described.complaints, *faults.misshapen.values(), *faults.of_map]
    if faults.missing:
        wrong.insert(0, f"tensors are missing: {', '.join(faults.missing[:4])}")
    if wrong:
        raise ModelError(f"{file.label}: {wrong[0]}")
    notes = [*described.refusals, *described.remarks]
    if not has_tokens and tokenizer is None:
        notes.append(
            "it has no tokenizer, without which llama.cpp does not load it: name its model with "
            "--target-model-dir"
        )
    elif not has_tokens and tokenizer is not None:
        mask = entries.get(_MASK)
        own = {_MASK: mask} if mask is not None else {}
        entries |= exact_types(tokenizer) | own
    return RenamedDrafter(found, written_for, described.words, entries, notes)
