"""The file of a drafter: what it drafts for, and whether it is complete."""

from __future__ import annotations

from shlex import quote
from typing import Final

from ...core.errors import ModelError
from ...core.gguf.printable import listing
from ...core.models.drafters import NETWORKS
from ...core.models.drafters.training_record import read_training_record
from ..drafters import DrafterDescription, TensorFaults, describe, find_tensor_faults
from .gguf_facts import GgufFacts
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
    try:
        report.training = read_training_record(facts.file)
    except ModelError as error:
        report.warning(Subject.DRAFTER, str(error).removeprefix(f"{facts.file.label}: "))
    check_numbers(facts, report, was_scanned=was_scanned)
    check_llama_cpp(facts, report)
    for fault in facts.faults:
        if not report.mentions(fault):
            report.problem(Subject.DRAFTER, fault)
    report.drafters = [_verdict(facts, described, report)]


def _described(facts: GgufFacts, report: FileReport) -> DrafterDescription | None:
    try:
        return describe(facts.file)
    except ModelError as error:
        report.problem(Subject.DRAFTER, str(error).removeprefix(f"{facts.file.label}: "))
        return None


def report_faults(
    facts: GgufFacts, described: DrafterDescription, report: FileReport, before: str = ""
) -> None:
    """`before` each text: the file's name, in a report on another."""
    found = find_tensor_faults(facts.file, described, has_numbers=facts.has_numbers)
    for text in [*_texts(found), *found.misshapen.values(), *found.of_map, *described.complaints]:
        report.problem(Subject.DRAFTER, before + text)
    for text in described.refusals:
        report.refusal(before + text)
    for text in described.remarks:
        report.warning(Subject.LLAMA_CPP, before + text)


def _texts(found: TensorFaults) -> list[str]:
    texts = []
    if found.missing:
        texts.append(f"tensors are missing: {listing(found.missing)}")
    if found.surplus and not found.missing:
        texts.append(f"a drafter of this kind does not use {listing(found.surplus)}")
    return texts


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
