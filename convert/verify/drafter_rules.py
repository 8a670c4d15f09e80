"""The file of a drafter: what it drafts for, and whether it is complete."""

from __future__ import annotations

from shlex import quote
from typing import Final

from ...core.errors import ModelError
from ...core.gguf.printable import listing
from ...core.models.drafters import NETWORKS
from ...core.models.drafters.training_record import read_training_record
from ..drafters import DrafterDescription, TensorFaults, describe, find_tensor_faults
from ..files.gguf_facts import GgufFacts
from .key_rules import check_tokens
from .llama_rules import check_llama_cpp
from .number_rules import check_numbers
from .template_facts import tokenizer_facts
from .verdict import DrafterVerdict, FileReport, LayerCounts, Subject, TargetFacts

WORDS: Final = {
    "eagle3": "an EAGLE3 drafter",
    "dflash": "a DFlash drafter",
    "gemma4-assistant": "a Gemma 4 assistant",
}


def examine_drafter(facts: GgufFacts, report: FileReport, *, was_scanned: bool) -> None:
    described = _described(facts, report)
    report.what = f"{WORDS[facts.architecture]} for another model"
    report.runs_here = facts.architecture in NETWORKS
    report.layers = LayerCounts(trunk=len(facts.blocks))
    check_tokens(facts, report)
    report.tokenizer = tokenizer_facts(facts.file.metadata, report)
    if described is not None:
        report.what = f"{described.words} for another model"
        report.runs_here &= not described.unknown
        report.drafts_for = _target_facts(described)
        if not described.unknown:
            report_faults(facts, described, report)
    examine_record(facts, report)
    check_numbers(facts, report, was_scanned=was_scanned)
    check_llama_cpp(facts, report)
    for fault in facts.faults:
        if not report.mentions(fault):
            report.add("key-unreadable", Subject.DRAFTER, fault)
    report.drafters = [_verdict(facts, described, report)]


def examine_record(facts: GgufFacts, report: FileReport) -> None:
    """What a drafter's file says of its own training."""
    try:
        report.training = read_training_record(facts.file)
    except ModelError as error:
        report.add(
            "drafter-record", Subject.DRAFTER, str(error).removeprefix(f"{facts.file.label}: ")
        )


def _described(facts: GgufFacts, report: FileReport) -> DrafterDescription | None:
    try:
        return describe(facts.file)
    except ModelError as error:
        report.add("drafter", Subject.DRAFTER, str(error).removeprefix(f"{facts.file.label}: "))
        return None


def report_faults(
    facts: GgufFacts, described: DrafterDescription, report: FileReport, before: str = ""
) -> None:
    """`before` each text: the file's name, in a report on another."""
    found = find_tensor_faults(facts.file, described, has_numbers=facts.has_numbers)
    faults = {
        "tensor-missing": _missing(found),
        "tensor-unused": _unused(found),
        "tensor-shape": list(found.misshapen.values()),
        "drafter": [*found.of_map, *described.complaints],
    }
    for rule, text in ((rule, text) for rule, texts in faults.items() for text in texts):
        report.add(rule, Subject.DRAFTER, before + text)
    for text in described.refusals:
        report.add("drafter-there", Subject.LLAMA_CPP, before + text)
    for text in described.remarks:
        report.add("drafter-worse", Subject.LLAMA_CPP, before + text)


def _missing(found: TensorFaults) -> list[str]:
    return [f"tensors are missing: {listing(found.missing)}"] if found.missing else []


def _unused(found: TensorFaults) -> list[str]:
    if found.missing or not found.surplus:
        return []
    return [f"a drafter of this kind does not use {listing(found.surplus)}"]


def _target_facts(described: DrafterDescription) -> TargetFacts:
    return TargetFacts(
        described.target_width,
        described.n_vocab,
        described.layers,
        described.n_head,
        tuple(described.shares),
        described.block_size,
        described.most,
        described.mask,
    )


def _verdict(
    facts: GgufFacts, described: DrafterDescription | None, report: FileReport
) -> DrafterVerdict:
    name = facts.architecture
    if not report.is_sound:
        return DrafterVerdict(name, False, "see below")
    if described is not None and described.unknown:
        return DrafterVerdict(name, False, described.unknown)
    if not report.runs_here:
        return DrafterVerdict(name, False, f"{name} is not run here; llama.cpp runs it")
    path = quote(str(facts.file.path))
    text = "drafts for its model, which is another file"
    return DrafterVerdict(name, True, text, f"spec generate -m MODEL.gguf -md {path}")
