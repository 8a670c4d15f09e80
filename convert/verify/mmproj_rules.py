"""The mmproj file of a vision tower: what it makes of images, and whether it is complete."""

from __future__ import annotations

from typing import Final

from ...core.errors import NextnError
from ...core.gguf.printable import listing
from ...core.models.model_weights import Inventory, Weights
from ...core.vision.projectors import find_projector
from ...core.vision.tower_sizes import TowerSizes, projector_type
from ..files.gguf_facts import GgufFacts
from .verdict import FileReport, ImageFacts, Subject

_AUDIO: Final = ("a.", "mm.a.")  # tensors of a tower for sound


def examine_mmproj(facts: GgufFacts, report: FileReport) -> None:
    file = facts.file
    report.context = report.width = None
    try:
        name = projector_type(file)
        kind = find_projector(name, file.label)
    except NextnError as error:
        report.add("mmproj-kind", Subject.MMPROJ, _own(error, file.label))
        return
    try:
        sizes = TowerSizes.from_gguf(file, kind.merge_key)
        weights = Weights(file, Inventory())
        for prefix in _AUDIO:
            weights.leave_out(prefix)
        kind(sizes, weights, None)
        row_width = kind.width_of(sizes, weights)
    except NextnError as error:
        report.add("mmproj", Subject.MMPROJ, _own(error, file.label))
        return
    found = weights.findings
    if found.missing:
        report.add(
            "tensor-missing", Subject.MMPROJ, f"tensors are missing: {listing(found.missing)}"
        )
    for text in found.misshapen:
        report.add("tensor-shape", Subject.MMPROJ, text)
    report.runs_here = report.is_sound
    report.what = f"a vision tower ({name}), for --mmproj beside its model"
    report.images = ImageFacts(
        name, sizes.n_layers, sizes.n_embd, sizes.patch, sizes.factor, sizes.n_out,
        row_width // sizes.n_out - 1,
    )  # fmt: skip


def _own(error: NextnError, label: str) -> str:
    return str(error).removeprefix(f"{label}: ")
