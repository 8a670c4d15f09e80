"""The mmproj file that lies beside a model: found by what files say of themselves."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from ..errors import NextnError
from ..gguf.folder_files import gguf_files, peek_architecture
from ..gguf.reader import GgufFile, open_gguf
from ..models.model_weights import Inventory, Weights
from .load_images import check_pair
from .projectors import find_projector
from .tower_sizes import ARCHITECTURE, TowerSizes, projector_type

logger = logging.getLogger(__name__)
_BEST_TYPES: Final = (1, 32, 7, 0)  # `general.file_type`: F16, BF16, Q8_0, F32


def find_mmproj(model: Path) -> Path | None:
    """One that makes rows for the model; of several the first type of `_BEST_TYPES`."""
    candidates = [
        path for path in gguf_files(model.parent) if peek_architecture(path) == ARCHITECTURE
    ]
    if not candidates:
        return None
    ranked: list[tuple[int, str, Path]] = []
    with open_gguf(model) as target:
        for path in candidates:
            try:
                with open_gguf(path) as file:
                    _check(file, target)
                    ranked.append((_rank(file), path.name, path))
            except NextnError as error:
                logger.info("%s beside the model is not used: %s", path.name, error)
    return min(ranked)[2] if ranked else None


def _check(file: GgufFile, target: GgufFile) -> None:
    projector = find_projector(projector_type(file), file.label)
    weights = Weights(file, Inventory())
    check_pair(
        file, projector.width_of(TowerSizes.from_gguf(file, projector.merge_key), weights), target
    )


def _rank(file: GgufFile) -> int:
    kind = file.metadata.int("general.file_type", -1)
    return _BEST_TYPES.index(kind) if kind in _BEST_TYPES else len(_BEST_TYPES)
