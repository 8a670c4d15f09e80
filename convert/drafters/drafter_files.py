"""The architectures of drafters: one row each."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from ...core.gguf.reader import GgufFile
from .assistant_file import describe_assistant
from .dflash_file import describe_dflash
from .drafter_shapes import DrafterDescription
from .eagle3_file import describe_eagle3

ARCHITECTURES: Final[MappingProxyType[str, Callable[[GgufFile], DrafterDescription]]] = (
    MappingProxyType(
        {
            "eagle3": describe_eagle3,
            "dflash": describe_dflash,
            "gemma4-assistant": describe_assistant,
        }
    )
)


def is_drafter(file: GgufFile) -> bool:
    return file.metadata.architecture in ARCHITECTURES


def describe(file: GgufFile) -> DrafterDescription:
    """Raises ModelError for a key that is missing or cannot be read."""
    return ARCHITECTURES[file.metadata.architecture](file)
