"""Kinds of mmproj files by the word that `clip.projector_type` has for them: one row each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import ModelError
from ...gguf.printable import printable

if TYPE_CHECKING:
    from ..projector import Projector

PROJECTORS = {
    "qwen2vl_merger": "qwen_vl:Qwen2VlProjector",
    "qwen2.5vl_merger": "qwen_vl:Qwen25VlProjector",
    "qwen3vl_merger": "qwen_vl:Qwen3VlProjector",
    "idefics3": "idefics3:Idefics3Projector",
    "pixtral": "pixtral:PixtralProjector",
    "gemma3": "gemma3_vision:Gemma3Projector",
    "gemma4v": "gemma4_vision:Gemma4Projector",
    "internvl": "internvl:InternVlProjector",
}


def find_projector(name: str, label: str) -> type[Projector]:
    """`label`: of the file that says so."""
    if name not in PROJECTORS:
        raise ModelError(
            f"{label}: clip.projector_type {printable(name)} cannot be run (those that can: "
            f"{', '.join(PROJECTORS)})"
        )
    module, _, class_name = PROJECTORS[name].partition(":")
    found: type[Projector] = getattr(import_module(f".{module}", __name__), class_name)
    return found
