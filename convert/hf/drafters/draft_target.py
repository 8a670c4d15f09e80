"""The model that a drafter drafts for, as a GGUF file or as a checkpoint: its sizes, and its
tokenizer, which drafters mostly lack. Of a checkpoint, weights are not needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ....core.errors import FileFormatError
from ....core.gguf.checks import check_vocabulary
from ....core.gguf.printable import printable_path
from ....core.gguf.reader import GgufFile, open_gguf
from ....core.models.hparams import MAX_LAYERS, MAX_WIDTH
from ...checkpoint import FilePlace, ModelCheckpoint, open_place
from ...checkpoint.folder import read_json
from ...drafters import TargetSizes
from ...drafters.drafter_shapes import count_vocabulary
from ..families import FAMILIES
from ..model_config import ModelConfig
from ..tokenizer import tokenizer_keys
from ..tokenizer.tokenizer_traits import USUAL

FLAG = "--target-model-dir"


class DraftTarget(Protocol):
    sizes: TargetSizes
    has_sections: bool  # whether its rope has sections, for images

    def close(self) -> None: ...

    @abstractmethod
    def tokenizer(self, n_rows: int, pre: str | None) -> tuple[dict[str, Any], list[str]]:
        """Keys below `tokenizer.`, and notes. `n_rows`: tokens that there have to be."""


def open_target(where: str, revision: str | None = None) -> DraftTarget:
    path = Path(where)
    if path.is_file():
        return TargetFile(open_gguf(path))
    if path.is_dir() and not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        firsts = [each for each in found if "-of-" not in each.name or "-00001-of-" in each.name]
        if len(firsts) == 1:
            return TargetFile(open_gguf(firsts[0]))
        raise FileFormatError(
            f"{FLAG} {printable_path(path)}: the folder has no config.json"
            + (f", and {len(firsts)} GGUF files: give one of them" if firsts else " and no GGUF")
        )
    return TargetFolder(open_place(where, revision))


class TargetFile:
    def __init__(self, file: GgufFile) -> None:
        meta = file.metadata
        self._file = file
        n_blocks = meta.int("block_count", low=1, high=MAX_LAYERS)
        self.sizes = TargetSizes(
            file.label,
            meta.architecture,
            n_blocks - meta.int("nextn_predict_layers", 0, high=n_blocks - 1),
            meta.int("embedding_length", low=1, high=MAX_WIDTH),
            count_vocabulary(file),
        )
        self.has_sections = meta.has("rope.dimension_sections")

    def tokenizer(self, n_rows: int, pre: str | None) -> tuple[dict[str, Any], list[str]]:
        if not check_vocabulary(self._file):
            raise FileFormatError(f"{self._file.label} has no tokenizer: give another {FLAG}")
        meta = self._file.metadata
        keys: dict[str, Any] = {
            name: meta.typed(name) for name in meta if name.startswith("tokenizer.")
        }
        unused = f"--pre is not used: {self._file.label} has a tokenizer"
        return keys, [] if pre is None else [unused]

    def close(self) -> None:
        self._file.close()


class TargetFolder:
    def __init__(self, place: FilePlace) -> None:
        self._checkpoint = ModelCheckpoint(
            place.label, place, read_json(place, "config.json"), {}, []
        )
        config = ModelConfig.of(place.label, self._checkpoint.config)
        family = FAMILIES.get(config.model_type)  # one that is not converted may be a target
        self._traits = USUAL if family is None else family.tokenizer
        config = config.with_defaults({} if family is None else family.defaults)
        self.sizes = TargetSizes(
            place.label,
            config.model_type if family is None else family.architecture,
            config.size("num_hidden_layers"),
            config.size("hidden_size"),
            config.size("vocab_size"),
        )
        self.has_sections = _has_sections(config)

    def close(self) -> None:
        self._checkpoint.close()

    def tokenizer(self, n_rows: int, pre: str | None) -> tuple[dict[str, Any], list[str]]:
        return tokenizer_keys(self._checkpoint, self._traits, n_rows, pre)


def verifier_of(config: Mapping[str, Any]) -> str:
    """What a drafter's config.json itself says of its target; "" if it does not."""
    match config.get("speculators_config"):
        case {"verifier": {"name_or_path": str(name)}}:
            return name
    return ""


def _has_sections(config: ModelConfig) -> bool:
    rope = config.get("rope_parameters", "rope_scaling")
    return isinstance(rope, Mapping) and "mrope_section" in rope
