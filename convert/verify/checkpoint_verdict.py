"""A checkpoint of safetensors: what it would become as GGUF, and whether its MTP head is whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from ...core.errors import ModelError
from ...core.gguf.printable import listing
from ...core.models import ARCHITECTURES
from ..checkpoint.folder import ModelCheckpoint
from ..heads.checkpoint_weights import CheckpointWeights
from ..heads.family_table import find_mtp_family
from ..hf.conversion import Options
from ..hf.model_planning import plan_tensors, read_settings
from .checkpoint_names import (
    BESIDE,
    HeadNames,
    declared_heads,
    find_architecture,
    head_names,
    is_convertible,
    number,
    text_config,
    trunk_layers,
)
from .draft_checkpoint import inspect_draft_checkpoint
from .template_facts import check_template, describe_template
from .verdict import (
    DrafterVerdict,
    FileReport,
    LayerCounts,
    Subject,
    TemplateFacts,
    TokenizerFacts,
    count_types,
)

# Bits per weight of whole files, as recipes turn out.
_RECIPES: Final = {"BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.56, "Q4_K_M": 4.85}
MAX_LAYERS: Final = 10_000  # more are damage
_CONVERTED: Final = ("fp8", "mxfp4")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


def inspect_checkpoint(checkpoint: ModelCheckpoint) -> FileReport:
    if (of_drafter := inspect_draft_checkpoint(checkpoint)) is not None:
        return of_drafter
    config, tensors = checkpoint.config, checkpoint.tensors
    n_trunk = number(config, "num_hidden_layers", "n_layer", "num_layers")
    n_trunk = n_trunk if n_trunk <= MAX_LAYERS else 0
    architecture = find_architecture(config)
    trunk, heads = trunk_layers(tensors, n_trunk), _heads(checkpoint, architecture, n_trunk)
    n_bytes = sum(tensor.n_bytes for tensor in tensors.values())
    n = sum(math.prod(t.shape) for name, t in tensors.items() if not name.endswith(BESIDE))
    report = FileReport(
        label=checkpoint.label,
        kind="checkpoint",
        what=_what(config, architecture),
        format="safetensors",
        files=len({id(tensor.source) for tensor in tensors.values()}),
        bytes=n_bytes,
        architecture=architecture,
        name=_class_name(config),
        quantised=_quantisation(config),
        parameters=n,
        bits_per_weight=8 * n_bytes / n if n else 0.0,
        context=number(config, "max_position_embeddings") or None,
        width=number(config, "hidden_size") or None,
        runs_here=architecture in ARCHITECTURES,
        converts=is_convertible(config),
        types=count_types((tensor.dtype, tensor.n_bytes) for tensor in tensors.values()),
        layers=_layers(config, trunk, len(heads), n_trunk),
        tokenizer=_tokenizer(checkpoint),
        template=_template(checkpoint),
        becomes={recipe: int(n * bits / 8) for recipe, bits in _RECIPES.items()},
    )
    _check(checkpoint, report, trunk, n_trunk)
    _check_heads(checkpoint, report, heads)
    if report.converts and trunk and report.is_sound and not _is_packed(report):
        _check_plan(checkpoint, report)
    report.drafters = [_mtp(checkpoint, report, len(heads), has_trunk=bool(trunk))]
    return report


def _is_packed(report: FileReport) -> bool:
    """Whether weights are stored as integers, which are not converted."""
    return bool(report.quantised) and not report.quantised.startswith(_CONVERTED)


def _check_plan(checkpoint: ModelCheckpoint, report: FileReport) -> None:
    """What `spec convert hf` would refuse."""
    options = Options()
    try:
        plan_tensors(read_settings(checkpoint, options), options)
    except ModelError as error:
        text = str(error).removeprefix(f"{checkpoint.label}: ")
        rule = "checkpoint-config" if text.startswith("config.json") else "checkpoint-tensor"
        report.add(rule, Subject.MODEL, text)


def _heads(checkpoint: ModelCheckpoint, architecture: str, n_trunk: int) -> list[HeadNames]:
    family = find_mtp_family(architecture)
    if not family.architecture:
        return []
    weights = CheckpointWeights(checkpoint)
    pattern = weights.config.get("layers_block_type")  # Nemotron-H counts these
    n_trunk = len(pattern) if isinstance(pattern, list) and pattern else n_trunk
    return head_names(weights, family, n_trunk)


def _what(config: Mapping[str, Any], architecture: str) -> str:
    if not architecture:
        kind = text_config(config).get("model_type") or config.get("model_type")
        return f"a checkpoint of model_type {kind!r:.60}, which has no GGUF architecture known here"
    return f"a checkpoint, in GGUF architecture {architecture}"


def _class_name(config: Mapping[str, Any]) -> str:
    match config.get("architectures"):
        case [str(name), *_]:
            return name
    return ""


def _quantisation(config: Mapping[str, Any]) -> str:
    for part in (config, text_config(config)):
        match part.get("quantization_config"):
            case {"quant_method": str(method), **rest}:
                block = rest.get("weight_block_size")
                return f"{method}, blocks of {block}" if block else method
    return ""


def _layers(
    config: Mapping[str, Any], trunk: Mapping[int, set[str]], n_heads: int, n_trunk: int
) -> LayerCounts:
    def count(*parts: str) -> int:
        return sum(any(p in name for name in names for p in parts) for names in trunk.values())

    return LayerCounts(
        trunk=len(trunk) or n_trunk,
        attention=count("self_attn."),
        recurrent=count("linear_attn."),
        moe=count("experts.", "moe."),
        heads=n_heads,
        experts=number(config, "num_experts", "n_routed_experts", "num_local_experts"),
        experts_used=number(config, "num_experts_per_tok"),
    )


def _tokenizer(checkpoint: ModelCheckpoint) -> TokenizerFacts | None:
    names = checkpoint.place.names()
    found = [name for name in _TOKENIZERS if name in names]
    if not found:
        return None
    size = number(checkpoint.config, "vocab_size")
    return TokenizerFacts(found[0], "", size, None, None)


def _template(checkpoint: ModelCheckpoint) -> TemplateFacts | None:
    source: object = checkpoint.text("chat_template.jinja")
    names: list[str] = []
    if source is None:
        source = (checkpoint.json("tokenizer_config.json") or {}).get("chat_template")
    if isinstance(source, list):
        named = {e.get("name"): e.get("template") for e in source if isinstance(e, dict)}
        names = sorted(str(name) for name in named if name != "default")
        source = named.get("default")
    return describe_template(source, tuple(names)) if isinstance(source, str) else None


def _check(
    checkpoint: ModelCheckpoint, report: FileReport, trunk: Mapping[int, set[str]], n_trunk: int
) -> None:
    if checkpoint.absent:
        report.add(
            "checkpoint-files",
            Subject.MODEL,
            f"model.safetensors.index.json names {len(checkpoint.absent)} tensors that no file "
            f"has: {listing(list(checkpoint.absent), 6)}",
            "fetch the files again, all of one revision",
        )
    absent = sorted(set(range(n_trunk)) - set(trunk))
    if trunk and absent:
        report.add(
            "checkpoint-tensor",
            Subject.MODEL,
            f"layers {listing([str(n) for n in absent])} of {n_trunk} have no tensors",
        )
    elif not trunk:
        text = "this is no whole model: of the layers only those of a head"
        report.add("checkpoint-part", Subject.MODEL, text)
    if report.tokenizer is None:
        report.add(
            "checkpoint-tokenizer",
            Subject.MODEL,
            "no tokenizer file: enough to attach a head from, not for spec convert hf",
        )
    check_template(report)


def _check_heads(checkpoint: ModelCheckpoint, report: FileReport, heads: list[HeadNames]) -> None:
    n_experts = report.layers.experts if report.layers else 0
    for n, head in enumerate(heads):
        if missing := head.missing(n_experts):
            report.add(
                "head-incomplete",
                Subject.HEAD,
                f"MTP layer {n} is incomplete: {listing(missing)}",
                "fetch the files that model.safetensors.index.json names for it",
            )
        stored = head.projection
        expected = (report.width, 2 * (report.width or 0))
        if stored is not None and report.width and stored.shape != expected:
            text = f"{stored.name} has shape {stored.shape}, expected {expected}"
            report.add("head-shape", Subject.HEAD, text)
    declared = declared_heads(checkpoint.config)
    if heads and declared and len(heads) != declared:
        report.add(
            "head-count",
            Subject.HEAD,
            f"the configuration says {declared} MTP layers, {len(heads)} are here",
        )


def _mtp(
    checkpoint: ModelCheckpoint, report: FileReport, n_heads: int, *, has_trunk: bool
) -> DrafterVerdict:
    place = quote(checkpoint.label)
    declared, arch = declared_heads(checkpoint.config), report.architecture
    if report.has_broken(Subject.HEAD):
        return DrafterVerdict("mtp", False, "the head is broken, see below")
    if n_heads:
        noun = "head" if n_heads == 1 else f"{n_heads} heads"
        if report.converts and has_trunk:
            command = f"spec convert hf {place} -o MODEL.gguf"
            return DrafterVerdict("mtp", True, f"complete {noun}; goes into the GGUF", command)
        command = f"spec convert attach MODEL.gguf --from {place} -o OUT.gguf"
        return DrafterVerdict("mtp", True, f"complete {noun}; can be attached to a GGUF", command)
    family = find_mtp_family(arch)
    if declared and not family.architecture:
        text = f"the configuration says {declared}, but no head of this architecture is known"
        return DrafterVerdict("mtp", False, text)
    if declared or family.always_has_head:
        why = f"the configuration says {declared}" if declared else f"{arch} comes with one"
        report.add(
            "head-dropped",
            Subject.HEAD,
            f"no MTP tensors, although {why}: they were dropped when this checkpoint was saved "
            "(transformers leaves them out)",
            "spec convert attach MODEL.gguf --from ORIGINAL -o OUT.gguf",
        )
        return DrafterVerdict("mtp", False, "the head was dropped, see below")
    return DrafterVerdict("mtp", False, "no head")
