"""Whether a draft model, or a file with an MTP head or another drafter, goes with a target."""

from __future__ import annotations

from shlex import quote

from msgspec.structs import replace

from ...core.errors import NextnError
from ...core.gguf.reader import GgufFile
from ...core.models import ARCHITECTURES, plan_networks, survey_model
from ...core.models.drafters import NETWORKS
from ...core.speculation.drafter_results import DrafterResult
from ...core.speculation.drafters.vocabulary_difference import find_difference
from ...core.tokenizer import load_tokenizer
from ..drafters import ARCHITECTURES as DRAFTERS
from ..drafters import TargetSizes, describe, fit_faults
from ..drafters.drafter_shapes import count_vocabulary
from ..files.gguf_facts import GgufFacts
from .drafter_rules import report_faults
from .head_rules import check_head
from .memory_facts import memory_of_networks
from .rules import Severity
from .verdict import DrafterVerdict, FileReport, Subject


def check_pair(facts: GgufFacts, draft: GgufFile, report: FileReport, *, has_numbers: bool) -> None:
    other = GgufFacts(draft, has_numbers)
    command = f"spec generate -m {quote(str(facts.file.path))} -md {quote(str(draft.path))}"
    if other.is_head_only:
        _check_head_file(facts, other, command, report)
    elif other.architecture in DRAFTERS:
        _check_drafter(facts, other, command, report)
    else:
        _check_model(facts, other, command, report)


def judge_by_result(report: FileReport, result: DrafterResult) -> None:
    """By sizes a drafter of another model may fit: what it drafts shows it."""
    for i, verdict in enumerate(report.drafters):
        if " -md " not in verdict.command or not verdict.works:
            continue
        if not result.drafts:
            text = f"{verdict.text}; what it brings is not measured yet (--run)"
        elif result.is_poor:
            text = f"{verdict.text}; it drafts badly: measured {result.describe()}"
            report.add(
                "pair-poor",
                Subject.DRAFTER,
                f"{result.accepted} of {result.drafted} drafted tokens were accepted: it was made "
                "for other weights or other texts",
            )
        else:
            text = f"{verdict.text}; measured {result.describe()}"
        report.drafters[i] = replace(verdict, text=text)


def _check_head_file(facts: GgufFacts, head: GgufFacts, command: str, report: FileReport) -> None:
    label, before = head.file.label, len(report.findings)
    if head.architecture != facts.architecture:
        report.add(
            "pair",
            Subject.HEAD,
            f"{label} is a head of {head.architecture}, the model is {facts.architecture}",
        )
    for key in ("embedding_length", "vocab_size"):
        ours, theirs = facts.whole(key), head.whole(key)
        if ours and theirs and ours != theirs:
            report.add("pair", Subject.HEAD, f"{label}: {key} is {theirs}, the model's {ours}")
    if len(facts.trunk_blocks) != min(head.marked):
        report.add(
            "pair-layers",
            Subject.HEAD,
            f"{label} is the head behind {min(head.marked)} layers, the model has "
            f"{len(facts.trunk_blocks)}",
        )
    check_head(head, report)
    if difference := _difference(facts, head):
        report.add("pair", Subject.HEAD, f"{label} belongs to another model: {difference}")
    works = all(finding.part is not Subject.HEAD for finding in report.findings[before:])
    text = "the head does not go with this model"
    if works:
        text = "the head goes with this model" + _cost(facts, head.file)
    report.drafters.insert(
        0, DrafterVerdict("mtp", works, f"{label}: {text}", command if works else "")
    )


def _check_drafter(facts: GgufFacts, other: GgufFacts, command: str, report: FileReport) -> None:
    name, label, before = other.architecture, other.file.label, len(report.findings)
    for text in _drafter_faults(facts, other, report):
        report.add("pair", Subject.DRAFTER, f"{label}: {text}")
    found = report.findings[before:]
    goes = all(finding.severity is not Severity.BROKEN for finding in found)
    text = "goes with this model" if goes else "does not go with this model"
    if goes and name not in NETWORKS:
        text += f", but {name} is not run here; llama.cpp runs it"
    works = goes and name in NETWORKS and facts.architecture in ARCHITECTURES
    text += _cost(facts, other.file) if works else ""
    report.drafters.insert(
        0, DrafterVerdict(name, works, f"{label}: the drafter {text}", command if works else "")
    )


def _drafter_faults(facts: GgufFacts, other: GgufFacts, report: FileReport) -> list[str]:
    """Faults of the file go into the report by themselves."""
    label = other.file.label
    try:
        described = describe(other.file)
        if described.unknown:
            return []
        report_faults(other, described, report, f"{label}: ")
        faults = fit_faults(described, _target_sizes(facts))
        if other.architecture == "gemma4-assistant":
            faults += _shared_head_faults(facts, other)
        if difference := _difference(facts, other):
            faults.append(f"it belongs to another model: {difference}")
        is_run = other.architecture in NETWORKS and facts.architecture in ARCHITECTURES
        if not faults and is_run and not report.has_broken(Subject.DRAFTER):
            plan_networks(survey_model(facts.file).model, other.file)
    except NextnError as error:
        return [str(error).removeprefix(f"{label}: ")]
    return faults


def _cost(facts: GgufFacts, file: GgufFile) -> str:
    """What it takes in memory beside the model; "" where the model is not run here."""
    if facts.architecture not in ARCHITECTURES:
        return ""
    try:
        model = survey_model(facts.file).model
        inventory, state = plan_networks(model, file)
    except NextnError:  # said elsewhere
        return ""
    n_bytes, per_1k = memory_of_networks(inventory, model, state)
    each = f", and {per_1k / 1e6:.2f} MB for each 1024 tokens of context" if per_1k else ""
    return f"; it takes {n_bytes / 1e6:.1f} MB{each}"


def _target_sizes(facts: GgufFacts) -> TargetSizes:
    return TargetSizes(
        "the model",
        facts.architecture,
        len(facts.trunk_blocks),
        facts.file.metadata.int("embedding_length", low=1),
        count_vocabulary(facts.file),
    )


def _shared_head_faults(facts: GgufFacts, other: GgufFacts) -> list[str]:
    """An assistant reads keys of the model: the heads of both have to be as wide."""
    faults = []
    for key in ("attention.key_length", "attention.key_length_swa"):
        ours, theirs = facts.whole(key), other.whole(key)
        if ours and theirs and ours != theirs:
            faults.append(f"its {key} is {theirs}, the model's {ours}")
    return faults


def _check_model(facts: GgufFacts, other: GgufFacts, command: str, report: FileReport) -> None:
    label = other.file.label
    if "tokenizer.ggml.tokens" not in other.file.metadata or not other.has("token_embd.weight"):
        report.add("pair", Subject.MODEL, f"{label} is no model: it cannot draft")
        report.drafters.append(DrafterVerdict("draft", False, f"{label} cannot draft"))
        return
    n_ours, n_theirs = _size(facts), _size(other)
    text = f"{label} has the same vocabulary: its tokens are taken as they are"
    if difference := _difference(facts, other):
        text = (
            f"{label}: {difference}; drafts are translated by way of their text, which costs some"
        )
        report.add(
            "pair-translated",
            Subject.LLAMA_CPP,
            f"{label}: llama.cpp drafts with it only by translation ({difference})",
        )
    if n_theirs * 3 > n_ours:
        report.add(
            "pair-large",
            Subject.MODEL,
            f"{label} has {n_theirs / 1e6:.0f} MB, the model {n_ours / 1e6:.0f}: a draft "
            "model that large is slower than none; take one of a tenth",
        )
    report.drafters = [drafter for drafter in report.drafters if drafter.name != "draft"]
    report.drafters.append(DrafterVerdict("draft", True, text, command))


def _size(facts: GgufFacts) -> int:
    return sum(tensor.n_bytes for tensor in facts.file.tensors.values())


def _difference(facts: GgufFacts, other: GgufFacts) -> str | None:
    if "tokenizer.ggml.tokens" not in other.file.metadata:
        return None
    try:
        target = load_tokenizer(facts.file.metadata)
        return find_difference(target, load_tokenizer(other.file.metadata))
    except NextnError as error:
        return f"a tokenizer cannot be used ({error})"
