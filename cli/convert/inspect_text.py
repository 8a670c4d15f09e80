"""A report as lines for people: aligned, at most as wide as the terminal, commands unbroken."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ..console import one_line
from .writing import size

if TYPE_CHECKING:
    from ...convert.verify.verdict import (
        FileReport,
        Finding,
        ImageFacts,
        LayerCounts,
        MemoryFacts,
        TargetFacts,
        TemplateFacts,
        TokenizerFacts,
        TrialFacts,
    )
    from ...core.models.drafters.training_record import TrainingRecord

Line = tuple[str, str]  # text, style
_PLAIN, _BOLD, _GREEN, _RED, _YELLOW = "", "1", "32", "31", "33"
_LABEL: Final = 13
_KINDS: Final = (
    ("broken", _RED), ("broken in llama.cpp", _YELLOW), ("suspicious", _YELLOW), ("note", _PLAIN),
)  # fmt: skip
SHOWN: Final = 10  # findings of one rule


def report_lines(report: FileReport, width: int | None) -> Iterator[Line]:
    """`width`: None for a pipe, where every fact is one line."""
    yield from _wrapped(f"{one_line(report.label)}: {one_line(report.what)}", "", width, _BOLD)
    for label, text in _facts(report):
        yield from _row(label, one_line(text), width)
    if report.drafters:
        yield "", _PLAIN
        yield "speculation", _BOLD
        for drafter in report.drafters:
            mark, style = ("yes", _GREEN) if drafter.works else ("no", _YELLOW)
            yield from _row(f"{drafter.name:<6} {mark}", one_line(drafter.text), width, style)
            if drafter.command:
                yield from _command(drafter.command)
    yield from _trials(report, width)
    for kind, style in _KINDS:
        found = [finding for finding in report.findings if finding.severity == kind]
        if found:
            yield "", _PLAIN
            yield "notes" if kind == "note" and len(found) > 1 else kind, _BOLD
        yield from _findings(found, width, style)


def _findings(found: list[Finding], width: int | None, style: str) -> Iterator[Line]:
    counts = Counter[str]()
    for finding in found:
        counts[finding.rule] += 1
        if counts[finding.rule] <= SHOWN:
            text = f"{one_line(finding.text)} [{finding.rule}]"
            yield from _row(finding.part, text, width, style)
            if finding.fix:
                yield from _command(finding.fix)
    for rule, n in counts.items():
        if n > SHOWN:
            yield from _row("", f"and {n - SHOWN} more [{rule}]", width, style)


def _trials(report: FileReport, width: int | None) -> Iterator[Line]:
    if report.trials or report.not_tried:
        yield "", _PLAIN
        yield "trial runs", _BOLD
    if report.not_tried:
        yield from _row("none", report.not_tried, width)
    for trial in report.trials:
        yield from _row(trial.drafter, trial_line(trial), width)


def trial_line(trial: TrialFacts) -> str:
    drafts = "drafted nothing"
    if trial.draft_n:
        share = 100 * trial.draft_n_accepted / trial.draft_n
        drafts = (
            f"{trial.draft_n_accepted} of {trial.draft_n} drafted accepted ({share:.0f}%), "
            f"{trial.mean_accept_len:.2f} per step"
        )
    same = "the same as without" if trial.lossless else "not the same as without"
    return (
        f"{trial.tokens} tokens, {same}; {drafts}; {trial.tokens_per_second:.1f} tokens/s, plain "
        f"{trial.plain_tokens_per_second:.1f}"
    )


def tensor_line(entry: dict[str, Any]) -> str:
    shape = " x ".join(map(str, entry["shape"])) or "scalar"
    name = one_line(entry["name"])
    return f"{name:<40} {entry['type']:<8} {shape:>20} {entry['bytes']:>14}"


def metadata_lines(metadata: dict[str, Any]) -> Iterator[str]:
    for key, value in metadata.items():
        yield f"{one_line(key)} = {one_line(str(value))}"


def _facts(report: FileReport) -> Iterator[tuple[str, str]]:
    if report.name:
        yield "name", report.name + (f" ({report.quantised})" if report.quantised else "")
    if report.source:
        yield "made from", report.source
    files = "1 file" if report.files == 1 else f"{report.files} files"
    weights = f", {_count(report.parameters)} weights" if report.parameters else ""
    bits = f", {report.bits_per_weight:.2f} bits each" if report.parameters else ""
    yield "size", f"{size(report.bytes)} in {files}{weights}{bits}"
    if report.types:
        yield "tensors", ", ".join(f"{t.tensors} {t.name} ({size(t.bytes)})" for t in report.types)
    if report.layers:
        yield "layers", _layers(report.layers)
    if report.context:
        rows = f"; rows {report.width} wide" if report.width else ""
        yield "context", f"{report.context} tokens{rows}"
    if report.kind in ("model", "mtp-head", "checkpoint", "drafter"):
        yield "tokenizer", _tokenizer(report.tokenizer)
    if report.kind in ("model", "mtp-head", "checkpoint"):
        yield "template", _template(report.template)
    yield from _uses(report)
    if report.numbers:
        rate = report.numbers.bytes / max(report.numbers.seconds, 1e-9)
        yield "numbers", f"all read: {size(report.numbers.bytes)} at {size(rate)}/s"
    if report.ignored:
        yield "ignored", f"broken rules that do not count: {', '.join(report.ignored)}"
    if report.becomes:
        sizes = ", ".join(f"{name} {size(n)}" for name, n in report.becomes.items())
        yield "as GGUF", sizes + (" (by spec convert hf)" if report.converts else "")
    if report.kind == "model" and not report.runs_here:
        known = "attach, extract, detach, quantize, split and merge take it all the same"
        yield "runs here", f"no, {report.architecture} is no architecture of spec; {known}"


def _uses(report: FileReport) -> Iterator[tuple[str, str]]:
    """What goes with the file, and what it takes."""
    if report.images:
        yield from _images(report.images)
    if report.mmproj:
        yield "images", f"{report.mmproj} beside it makes rows for it (--mmproj)"
    if report.drafts_for:
        yield from _target(report.drafts_for)
    if report.training:
        yield from _training(report.training)
    if report.memory:
        yield "memory", _memory(report.memory)


def _images(found: ImageFacts) -> Iterator[tuple[str, str]]:
    yield "tower", f"{found.layers} layers, {found.width} wide; patches of {found.patch} pixels"
    more = f", and as many again for {found.more_rows} layers" if found.more_rows else ""
    numbers = f"{found.row} numbers{more}: for embeddings of {found.row}"
    yield "rows", f"one for {found.side} x {found.side} pixels, of {numbers}"


def _target(found: TargetFacts) -> Iterator[tuple[str, str]]:
    tokens = f", {found.vocabulary} tokens" if found.vocabulary else ""
    listed = ", ".join(map(str, found.layers))
    reads = f"the inputs of layers {listed}" if listed else "its keys and values"
    yield "target", f"rows {found.width} wide{tokens}; reads {reads}"
    how = "one token after the other"
    if found.block_size:
        how = f"blocks of {found.block_size} tokens, of which {found.most} are drafts"
    if found.mask is not None:
        how += f"; mask token {found.mask}"
    if found.head and found.head != found.vocabulary:
        how += f"; {found.head} of the tokens"
    if found.shares:
        how += f"; {' and '.join(found.shares)} of the target"
    yield "drafts", how


def _training(found: TrainingRecord) -> Iterator[tuple[str, str]]:
    texts = f"{found.text_count} texts ({', '.join(found.kinds)}; {found.texts})"
    how = f"{found.token_count} tokens written at temperature {found.temperature:g}"
    run = f"{found.steps} steps, {found.minutes:g} minutes, seed {found.seed}"
    yield "trained for", f"{found.model}, fingerprint {found.target}"
    yield "trained on", f"{texts}, {how}; {run}"
    rates = ", ".join(f"{rate:.3f}" for rate in found.acceptance)
    yield "acceptance", f"{rates} by place, {found.tokens_per_step:.2f} tokens a step, held out"


def _layers(layers: LayerCounts) -> str:
    kinds = []
    if layers.recurrent:
        kinds = [f"{layers.attention} attention, {layers.recurrent} recurrent"]
    if layers.moe:
        experts = (
            f" of {layers.experts} experts, {layers.experts_used} used" if layers.experts else ""
        )
        kinds.append(f"{layers.moe} MoE{experts}")
    text = str(layers.trunk) + (f" ({'; '.join(kinds)})" if kinds else "")
    if layers.heads:
        text += f" and {layers.heads} MTP"
    return text


def _tokenizer(found: TokenizerFacts | None) -> str:
    if found is None:
        return "none that can be used"
    pre = f"/{found.pre}" if found.pre else ""
    text = f"{found.model}{pre}, {found.size} tokens"
    if found.eos:
        text += f", ends with {found.eos}"
    if found.bos:
        text += f", begins with {found.bos}"
    return text


def _template(found: TemplateFacts | None) -> str:
    if found is None:
        return "none: completion only, or --chat-template"
    if found.error:
        return "fails, see below"
    can = ["chat"]
    if found.system:
        can.append("system prompt")
    if found.tools:
        can.append("tools")
    if found.thinking:
        how = "" if found.thinking == "always" else f" ({found.thinking})"
        can.append(f"thinking{how}")
    more = f"; also {', '.join(found.names)}" if found.names else ""
    return ", ".join(can) + more


def _memory(memory: MemoryFacts) -> str:
    about = "about " if memory.is_estimate else ""
    parts = [f"weights {size(memory.weights)}"]
    parts.append(f"KV {about}{size(memory.kv_per_1k)} per 1024 tokens")
    if memory.recurrent:
        state, factors = size(memory.recurrent), size(memory.factors)
        parts.append(
            f"recurrent state {state} and {factors} of factors to undo drafts, per sequence"
        )
    return f"{', '.join(parts)}; {about}{size(memory.total)} for {memory.n_ctx} tokens of context"


def _row(label: str, text: str, width: int | None, style: str = _PLAIN) -> Iterator[Line]:
    yield from _wrapped(f"  {label:<{_LABEL - 3}} {text}", " " * _LABEL, width, style)


def _wrapped(text: str, indent: str, width: int | None, style: str) -> Iterator[Line]:
    if width is None:
        yield text, style
        return
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
    for line in lines:
        yield line, style


def _command(text: str) -> Iterator[Line]:
    yield " " * _LABEL + one_line(text), _PLAIN


def _count(n: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return str(n)
