"""A GGUF file, whatever it holds: facts first, then everything that is wrong with it."""

from __future__ import annotations

from shlex import quote
from typing import Final

from ...core.models import ARCHITECTURES
from ...core.vision.find_mmproj import find_mmproj
from ..drafters import ARCHITECTURES as DRAFTERS
from ..files.gguf_facts import GgufFacts
from .drafter_rules import examine_drafter, examine_record
from .head_rules import check_head, how_to_attach, was_dropped
from .key_rules import check_keys, check_tokens
from .llama_rules import check_llama_cpp
from .memory_facts import memory_of, survey
from .mmproj_rules import examine_mmproj
from .number_rules import check_numbers
from .opening import OpenedGguf
from .template_facts import check_template, template_facts, tokenizer_facts
from .verdict import DrafterVerdict, FileReport, LayerCounts, Subject, count_types

# general.file_type
_RECIPES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
}  # fmt: skip


def inspect_gguf(opened: OpenedGguf, *, was_scanned: bool = False) -> FileReport:
    facts = GgufFacts(opened.file, opened.has_numbers)
    report = _describe(facts, opened)
    report.kind, report.what = _kind(facts)
    if report.kind == "model":
        _examine(facts, report, is_head=False, was_scanned=was_scanned)
        if opened.has_numbers and (beside := find_mmproj(opened.file.path)):
            report.mmproj = beside.name
    elif report.kind == "mtp-head":
        _examine(facts, report, is_head=True, was_scanned=was_scanned)
        examine_record(facts, report)
    elif report.kind == "drafter":
        examine_drafter(facts, report, was_scanned=was_scanned)
    elif report.kind == "mmproj":
        examine_mmproj(facts, report)
    else:
        for fault in facts.faults if facts.architecture else ():
            report.add("key-odd", Subject.MODEL, fault)
    if not opened.has_numbers and (facts.marked or report.kind == "drafter"):
        part = Subject.HEAD if facts.marked else Subject.DRAFTER
        text = "only headers were read: NaN and wrong norms are not looked for"
        report.add("headers-only", part, text)
    return report


def _kind(facts: GgufFacts) -> tuple[str, str]:
    arch, kind = facts.architecture, facts.text("general.type")
    if kind == "imatrix":
        return "imatrix", "an importance matrix, for spec convert quantize"
    if kind == "adapter" or any(name.endswith(".lora_a") for name in facts.file.tensors):
        return "adapter", f"a LoRA adapter for a model of architecture {arch or 'unknown'}"
    if kind == "mmproj" or arch == "clip":
        return "mmproj", "a projector for images or sound (mmproj), which goes with a model"
    if arch == "controlvector":
        return "control-vector", "a control vector"
    if arch in DRAFTERS:
        return "drafter", ""
    if not facts.file.tensors and "tokenizer.ggml.model" in facts.file.metadata:
        return "vocabulary", f"a vocabulary without weights ({arch})"
    if not arch or not facts.blocks:
        return "other", "a GGUF file that is no language model"
    if facts.is_head_only:
        return "mtp-head", f"an MTP head alone, for a model of architecture {arch}"
    return "model", f"a model of architecture {arch}"


def _describe(facts: GgufFacts, opened: OpenedGguf) -> FileReport:
    tensors = facts.file.tensors.values()
    n_elements = sum(tensor.n_elements for tensor in tensors)
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    return FileReport(
        label=facts.file.label,
        kind="",
        what="",
        format="gguf",
        files=len(facts.file.paths),
        bytes=opened.n_bytes,
        architecture=facts.architecture,
        name=facts.text("general.name"),
        quantised=_RECIPES.get(facts.whole("general.file_type") or 0, "")
        if "general.file_type" in facts.file.metadata
        else "",
        parameters=n_elements,
        bits_per_weight=8 * n_bytes / n_elements if n_elements else 0.0,
        context=facts.whole("context_length"),
        width=facts.whole("embedding_length"),
        source=facts.source,
        types=count_types((tensor.format.name, tensor.n_bytes) for tensor in tensors),
    )


def _examine(facts: GgufFacts, report: FileReport, *, is_head: bool, was_scanned: bool) -> None:
    report.runs_here = facts.architecture in ARCHITECTURES
    report.layers = _layers(facts)
    check_tokens(facts, report)
    report.tokenizer = tokenizer_facts(facts.file.metadata, report)
    report.template = template_facts(facts.file.metadata)
    check_template(report)
    check_keys(facts, report)
    has_head = check_head(facts, report)
    check_numbers(facts, report, was_scanned=was_scanned)
    found = None if is_head else survey(facts, report)
    report.memory = None if is_head else memory_of(facts, found)
    check_llama_cpp(facts, report)
    for fault in facts.faults:
        if not any(fault in finding.text for finding in report.findings):
            report.add("key-unreadable", Subject.MODEL, fault)
    report.drafters = _drafters(facts, report, has_head=has_head, is_head=is_head)


def _layers(facts: GgufFacts) -> LayerCounts:
    blocks = [facts.blocks[n] for n in facts.trunk_blocks]
    return LayerCounts(
        trunk=len(blocks),
        attention=sum("attn_output" in stems for stems in blocks),
        recurrent=sum(any(s.startswith("ssm_") for s in stems) for stems in blocks),
        moe=sum("ffn_down_exps" in stems for stems in blocks),
        heads=len(facts.marked),
        experts=facts.whole("expert_count") or 0,
        experts_used=(facts.per_block("expert_used_count") or [0])[0],
    )


def _drafters(
    facts: GgufFacts, report: FileReport, *, has_head: bool, is_head: bool
) -> list[DrafterVerdict]:
    path = quote(str(facts.file.path))
    if is_head:
        works = not report.has_broken(Subject.HEAD)
        command = f"spec generate -m MODEL.gguf -md {path}"
        text = "drafts for its model, which is another file" if works else "see below"
        return [DrafterVerdict("mtp", works, text, command if works and report.runs_here else "")]
    found = [_mtp(facts, report, path, has_head=has_head)]
    if report.runs_here and not report.has_broken(Subject.MODEL):
        found += [
            DrafterVerdict("ngram", True, "needs nothing of the file", f"spec generate -m {path}"),
            DrafterVerdict(
                "draft",
                True,
                "any small model; best of one vocabulary (inspect --draft compares)",
                f"spec generate -m {path} -md DRAFT.gguf",
            ),
        ]
    return found


def _mtp(facts: GgufFacts, report: FileReport, path: str, *, has_head: bool) -> DrafterVerdict:
    if has_head and report.has_broken(Subject.HEAD):
        return DrafterVerdict("mtp", False, "the head is broken, see below")
    if has_head:
        where = ", ".join(f"blk.{n}" for n in facts.marked)
        noun = "a complete head" if len(facts.marked) == 1 else "complete heads"
        if report.runs_here and report.has_broken(Subject.MODEL):
            return DrafterVerdict(
                "mtp", True, f"{noun} in {where}; but the model is broken, see below"
            )
        if report.runs_here:
            return DrafterVerdict("mtp", True, f"{noun} in {where}", f"spec generate -m {path}")
        runs_there = facts.family.architecture and facts.family.in_llama_cpp
        by = "llama.cpp runs it" if runs_there else "nothing runs it yet"
        return DrafterVerdict(
            "mtp", False, f"{noun} in {where}; {facts.architecture} is not run here, {by}"
        )
    if why := was_dropped(facts):
        return DrafterVerdict("mtp", False, f"no head: it was dropped, {why}", how_to_attach(facts))
    if facts.family.architecture:
        return DrafterVerdict(
            "mtp", False, "no head; its checkpoint may have one", how_to_attach(facts)
        )
    return DrafterVerdict(
        "mtp", False, f"no head; none is known of architecture {facts.architecture}"
    )
