"""A checkpoint of a drafter: what it is, and the command that makes its file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from shlex import quote
from typing import Any

from ...core.errors import ModelError
from ...core.models.drafters import NETWORKS
from ..checkpoint.folder import ModelCheckpoint
from ..hf.drafters import find_draft_layout
from ..hf.drafters.draft_layout import DraftLayout, draft_config
from ..hf.drafters.draft_layouts import class_of
from ..hf.drafters.draft_target import verifier_of
from .checkpoint_names import number
from .verdict import DrafterVerdict, FileReport, LayerCounts, Subject, count_types


def inspect_draft_checkpoint(checkpoint: ModelCheckpoint) -> FileReport | None:
    """None for a checkpoint of a model."""
    try:
        layout = find_draft_layout(checkpoint)
    except ModelError as error:
        report = _describe(checkpoint, {}, "a checkpoint of a drafter")
        report.add(
            "drafter-kind", Subject.DRAFTER, str(error).removeprefix(f"{checkpoint.label}: ")
        )
        return report
    return None if layout is None else _inspect(checkpoint, layout)


def _inspect(checkpoint: ModelCheckpoint, layout: DraftLayout) -> FileReport:
    architecture = layout.family.architecture
    what = f"a checkpoint of {layout.words}, in GGUF architecture {architecture}"
    try:
        config: Mapping[str, Any] = draft_config(checkpoint.label, checkpoint.config).values
    except ModelError as error:
        report = _describe(checkpoint, {}, what)
        report.add(
            "checkpoint-config", Subject.DRAFTER, str(error).removeprefix(f"{checkpoint.label}: ")
        )
        return report
    report = _describe(checkpoint, config, what)
    report.architecture, report.converts = architecture, True
    report.runs_here = architecture in NETWORKS
    target = verifier_of(checkpoint.config) or "TARGET"
    place = quote(checkpoint.label)
    command = f"spec convert hf {place} --target-model-dir {quote(target)} -o DRAFT.gguf"
    text = "becomes a file for -md, with the tokenizer of its target"
    report.drafters = [DrafterVerdict(architecture, True, text, command)]
    return report


def _describe(checkpoint: ModelCheckpoint, config: Mapping[str, Any], what: str) -> FileReport:
    tensors = checkpoint.tensors.values()
    n_bytes, n = sum(t.n_bytes for t in tensors), sum(math.prod(t.shape) for t in tensors)
    return FileReport(
        label=checkpoint.label,
        kind="drafter-checkpoint",
        what=what,
        format="safetensors",
        files=len({id(tensor.source) for tensor in tensors}),
        bytes=n_bytes,
        name=class_of(checkpoint.config),
        parameters=n,
        bits_per_weight=8 * n_bytes / n if n else 0.0,
        context=number(config, "max_position_embeddings") or None,
        width=number(config, "hidden_size") or None,
        types=count_types((tensor.dtype, tensor.n_bytes) for tensor in tensors),
        layers=LayerCounts(trunk=number(config, "num_hidden_layers")),
    )
