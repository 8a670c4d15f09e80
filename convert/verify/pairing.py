"""Whether a draft model, or a file with an MTP head, goes with a target."""

from __future__ import annotations

from shlex import quote

from ...core.errors import NextnError
from ...core.gguf.reader import GgufFile
from ...core.speculation.drafters.vocabulary_difference import find_difference
from ...core.tokenizer import load_tokenizer
from .gguf_facts import GgufFacts
from .head_rules import check_head
from .verdict import DrafterVerdict, FileReport, Subject


def check_pair(facts: GgufFacts, draft: GgufFile, report: FileReport, *, has_numbers: bool) -> None:
    other = GgufFacts(draft, has_numbers)
    command = f"spec generate -m {quote(str(facts.file.path))} -md {quote(str(draft.path))}"
    if other.is_head_only:
        _check_head_file(facts, other, command, report)
    else:
        _check_model(facts, other, command, report)


def _check_head_file(facts: GgufFacts, head: GgufFacts, command: str, report: FileReport) -> None:
    label, before = head.file.label, len(report.findings)
    if head.architecture != facts.architecture:
        report.problem(
            Subject.HEAD,
            f"{label} is a head of {head.architecture}, the model is {facts.architecture}",
        )
    for key in ("embedding_length", "vocab_size"):
        ours, theirs = facts.whole(key), head.whole(key)
        if ours and theirs and ours != theirs:
            report.problem(Subject.HEAD, f"{label}: {key} is {theirs}, the model's {ours}")
    if len(facts.trunk_blocks) != min(head.marked):
        report.warning(
            Subject.HEAD,
            f"{label} is the head behind {min(head.marked)} layers, the model has "
            f"{len(facts.trunk_blocks)}",
        )
    check_head(head, report)
    if difference := _difference(facts, head):
        report.problem(Subject.HEAD, f"{label} belongs to another model: {difference}")
    works = all(finding.part is not Subject.HEAD for finding in report.findings[before:])
    text = "the head goes with this model" if works else "the head does not go with this model"
    report.drafters.insert(
        0, DrafterVerdict("mtp", works, f"{label}: {text}", command if works else "")
    )


def _check_model(facts: GgufFacts, other: GgufFacts, command: str, report: FileReport) -> None:
    label = other.file.label
    if "tokenizer.ggml.tokens" not in other.file.metadata or not other.has("token_embd.weight"):
        report.problem(Subject.MODEL, f"{label} is no model: it cannot draft")
        report.drafters.append(DrafterVerdict("draft", False, f"{label} cannot draft"))
        return
    n_ours, n_theirs = _size(facts), _size(other)
    text = f"{label} has the same vocabulary: its tokens are taken as they are"
    if difference := _difference(facts, other):
        text = (
            f"{label}: {difference}; drafts are translated by way of their text, which costs some"
        )
        report.warning(
            Subject.LLAMA_CPP,
            f"{label}: llama.cpp drafts with it only by translation ({difference})",
        )
    if n_theirs * 3 > n_ours:
        report.warning(
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
