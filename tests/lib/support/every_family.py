"""A tiny random model of every family that runs, under one roof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .attaching import attach_to
from .converting import convert
from .hub_checkpoints import build_hub_checkpoint
from .plain_hub_cases import PLAIN_CASES
from .tiny_gemma import GEMMAS, build_gemma
from .tiny_heads import KINDS, TinyHead, build_head
from .tiny_models import FAMILIES, WITH_MTP, TinyModel, build_tiny

WITH_CHECKPOINT_HEAD = tuple(name for name in KINDS if name != "hy_v3")  # which does not run
EVERY_FAMILY = (*FAMILIES, *WITH_CHECKPOINT_HEAD, *GEMMAS, *PLAIN_CASES)
EVERY_WITH_MTP = (*WITH_MTP, *WITH_CHECKPOINT_HEAD)


def build_family(name: str, folder: Path, *, mtp: bool = False, quantise: str = "F32") -> TinyModel:
    if name in PLAIN_CASES:
        own = folder / f"{name}-{quantise}"
        found = build_hub_checkpoint(name, own, as_saved=True)
        path = own / f"{name}.gguf"
        if not path.exists():  # the same weights each time
            convert(found.folder, path, kind=quantise.lower())
        return TinyModel(found.case, found.hf, None, path)
    if name in GEMMAS:
        return build_gemma(name, folder, quantise=quantise)
    if name not in KINDS:
        return build_tiny(name, folder, mtp=mtp, quantise=quantise)
    head = build_checkpoint_head(name, folder, quantise=quantise)
    made = TinyModel(head.kind, head.hf, head.mtp, head.trunk)
    return replace(made, path=attached(head, folder)) if mtp else made


def build_checkpoint_head(name: str, folder: Path, *, quantise: str = "F32") -> TinyHead:
    own = folder / f"{name}-{quantise}"
    own.mkdir(exist_ok=True)
    return build_head(name, own, quantise=quantise)


def attached(head: TinyHead, folder: Path) -> Path:
    """The trunk with its head."""
    path = folder / f"{head.trunk.stem}-attached.gguf"
    if not path.exists():
        attach_to(head.trunk, head.checkpoint, path)
    return path
