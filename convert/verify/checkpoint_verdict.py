"""A checkpoint of safetensors: what it would become as GGUF, and whether its MTP head is whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from ...core.models import ARCHITECTURES
from ..checkpoint.folder import Checkpoint
from ..heads.family_table import find_mtp_family
from .checkpoint_names import (
    LayerNames,
    SortedLayers,
    declared_heads,
    find_architecture,
    lost_experts,
    missing_of,
    number,
    sort_layers,
    text_config,
)
from .gguf_facts import listing
from .template_facts import describe_template
from .verdict import (
    DrafterVerdict,
    FileReport,
    LayerCounts,
    Subject,
    TemplateFacts,
    TokenizerFacts,
    TypeCount,
)

# Bits per weight of whole files, as recipes turn out.
_RECIPES: Final = {"BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.56, "Q4_K_M": 4.85}
MAX_LAYERS: Final = 10_000  # more are damage
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
_BESIDE: Final = ("_scale", "_scale_inv", "_scale_2", "_zero_point")


def inspect_checkpoint(checkpoint: Checkpoint) -> FileReport:
    config, tensors = checkpoint.config, checkpoint.tensors
    n_trunk = number(config, "num_hidden_layers", "n_layer", "num_layers")
    n_trunk = n_trunk if n_trunk <= MAX_LAYERS else 0
    layers = sort_layers(tensors, n_trunk)
    architecture = find_architecture(config)
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.n_bytes
    counts = Counter(tensor.dtype for tensor in tensors.values())
    n = sum(math.prod(t.shape) for name, t in tensors.items() if not name.endswith(_BESIDE))
    report = FileReport(
        label=checkpoint.label,
        kind="checkpoint",
        what=_what(config, architecture),
        format="safetensors",
        files=len({id(tensor.source) for tensor in tensors.values()}),
        bytes=sum(sizes.values()),
        architecture=architecture,
        name=_class_name(config),
        quantised=_quantisation(config),
        parameters=n,
        bits_per_weight=8 * sum(sizes.values()) / n if n else 0.0,
        context=number(config, "max_position_embeddings") or None,
        width=number(config, "hidden_size") or None,
        runs_here=architecture in ARCHITECTURES,
        types=[TypeCount(name, counts[name], size) for name, size in sizes.most_common()],
        layers=_layers(config, layers, n_trunk),
        tokenizer=_tokenizer(checkpoint),
        template=_template(checkpoint),
        becomes={recipe: int(n * bits / 8) for recipe, bits in _RECIPES.items()},
    )
    _check(checkpoint, report, layers, n_trunk)
    report.drafters = [_mtp(checkpoint, report, layers)]
    return report


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


def _layers(config: Mapping[str, Any], layers: SortedLayers, n_trunk: int) -> LayerCounts:
    trunk = list(layers.trunk.values())
    return LayerCounts(
        trunk=len(trunk) or n_trunk,
        attention=sum(bool(layer.starting("self_attn.")) for layer in trunk),
        recurrent=sum(bool(layer.starting("linear_attn.")) for layer in trunk),
        moe=sum(any("experts." in name or "moe." in name for name in la.names) for la in trunk),
        heads=len(layers.heads),
        experts=number(config, "num_experts", "n_routed_experts", "num_local_experts"),
        experts_used=number(config, "num_experts_per_tok"),
    )


def _tokenizer(checkpoint: Checkpoint) -> TokenizerFacts | None:
    names = checkpoint.place.names()
    found = [name for name in _TOKENIZERS if name in names]
    if not found:
        return None
    size = number(checkpoint.config, "vocab_size")
    return TokenizerFacts(found[0], "", size, None, None)


def _template(checkpoint: Checkpoint) -> TemplateFacts | None:
    source: object = checkpoint.text("chat_template.jinja")
    names: list[str] = []
    if source is None:
        source = (checkpoint.json("tokenizer_config.json") or {}).get("chat_template")
    if isinstance(source, list):
        named = {e.get("name"): e.get("template") for e in source if isinstance(e, dict)}
        names = sorted(str(name) for name in named if name != "default")
        source = named.get("default")
    return describe_template(source, tuple(names)) if isinstance(source, str) else None


def _check(checkpoint: Checkpoint, report: FileReport, layers: SortedLayers, n_trunk: int) -> None:
    if checkpoint.absent:
        report.problem(
            Subject.MODEL,
            f"model.safetensors.index.json names {len(checkpoint.absent)} tensors that no file "
            f"has: {listing(list(checkpoint.absent), 6)}",
            "fetch the files again, all of one revision",
        )
    absent = sorted(set(range(n_trunk)) - set(layers.trunk))
    if layers.trunk and absent:
        report.problem(
            Subject.MODEL,
            f"layers {listing([str(n) for n in absent])} of {n_trunk} have no tensors",
        )
    elif not layers.trunk:
        report.note(Subject.MODEL, "this is no whole model: of the layers only those of a head")
    if report.tokenizer is None:
        report.warning(
            Subject.MODEL,
            "no tokenizer file: enough to attach a head from, not for spec convert hf",
        )
    if report.template and report.template.error:
        report.warning(Subject.MODEL, f"the chat template fails: {report.template.error}")
    for n, head in sorted(layers.heads.items()):
        _check_head(checkpoint, report, layers, n, head)
    declared = declared_heads(checkpoint.config)
    if layers.heads and declared and len(layers.heads) != declared:
        report.warning(
            Subject.HEAD,
            f"the configuration says {declared} MTP layers, {len(layers.heads)} are here",
        )


def _check_head(
    checkpoint: Checkpoint, report: FileReport, layers: SortedLayers, n: int, head: LayerNames
) -> None:
    missing = missing_of(head, layers)
    lost = lost_experts(head, layers)
    if missing or lost:
        parts = ([listing(missing)] if missing else []) + ([lost] if lost else [])
        report.problem(
            Subject.HEAD,
            f"MTP layer {n} is incomplete: {'; '.join(parts)}",
            "fetch the files that model.safetensors.index.json names for it",
        )
    width = report.width
    both = layers.shared.names | head.names
    for inner in ("eh_proj.weight", "fc.weight"):
        tensor = checkpoint.tensors.get(both.get(inner, ""))
        if tensor is not None and width and tensor.shape != (width, 2 * width):
            report.problem(
                Subject.HEAD,
                f"{tensor.name} has shape {tensor.shape}, expected {(width, 2 * width)}",
            )


def _mtp(checkpoint: Checkpoint, report: FileReport, layers: SortedLayers) -> DrafterVerdict:
    place = quote(checkpoint.label)
    declared, arch = declared_heads(checkpoint.config), report.architecture
    if report.has_problem(Subject.HEAD):
        return DrafterVerdict("mtp", False, "the head is broken, see below")
    if layers.heads:
        noun = "head" if len(layers.heads) == 1 else f"{len(layers.heads)} heads"
        if report.runs_here and layers.trunk:
            command = f"spec convert hf {place} -o MODEL.gguf"
            return DrafterVerdict("mtp", True, f"complete {noun}; goes into the GGUF", command)
        command = f"spec convert attach MODEL.gguf --from {place} -o OUT.gguf"
        return DrafterVerdict("mtp", True, f"complete {noun}; can be attached to a GGUF", command)
    if declared or find_mtp_family(arch).always_has_head:
        why = f"the configuration says {declared}" if declared else f"{arch} comes with one"
        report.warning(
            Subject.HEAD,
            f"no MTP tensors, although {why}: they were dropped when this checkpoint was saved "
            "(transformers leaves them out)",
            "spec convert attach MODEL.gguf --from ORIGINAL -o OUT.gguf",
        )
        return DrafterVerdict("mtp", False, "the head was dropped, see below")
    return DrafterVerdict("mtp", False, "no head")
