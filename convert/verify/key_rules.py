"""Whether the keys of a file fit each other and its blocks: what conversions by hand get wrong."""

from __future__ import annotations

from typing import Final

from ...core.errors import ModelError
from ...core.gguf.checks import check_vocabulary
from ..files.gguf_facts import GgufFacts, ranges
from .verdict import FileReport, Subject

# One entry per block, MTP blocks included; llama.cpp refuses another length, but for the pattern.
_PER_BLOCK: Final = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_used_count",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "attention.recurrent_layers",
    "attention.sliding_window_pattern",
)
_TOKEN_ID: Final = "_token_id"  # in the key of a special token
_SILENT: Final = "attention.sliding_window_pattern"


def check_keys(facts: GgufFacts, report: FileReport) -> None:
    if facts.n_blocks is None:
        _no_block_count(facts, report)
        return
    _check_blocks(facts, facts.n_blocks, report)
    _check_nextn_key(facts, facts.n_blocks, report)
    for key in _PER_BLOCK:
        _check_length(facts, key, facts.n_blocks, report)
    _check_recurrent(facts, report)


def check_tokens(facts: GgufFacts, report: FileReport) -> None:
    """Ids, kinds and scores of the vocabulary."""
    try:
        check_vocabulary(facts.file)
    except ModelError as error:
        text = str(error).removeprefix(f"{facts.file.label}: ")
        report.add("token-ids" if _TOKEN_ID in text else "vocabulary", Subject.MODEL, text)


def _no_block_count(facts: GgufFacts, report: FileReport) -> None:
    if facts.blocks and facts.architecture and not facts.file.metadata.has("block_count"):
        n = max(facts.blocks) + 1
        text = f"{facts.architecture}.block_count is missing; blk.0-{n - 1}"
        report.add("block-count", Subject.MODEL, text)


def _check_blocks(facts: GgufFacts, n_blocks: int, report: FileReport) -> None:
    expected = set(range(n_blocks))
    if facts.is_head_only:
        expected -= set(range(n_blocks - max(facts.n_nextn, 1)))
    beyond = [n for n in facts.blocks if n >= n_blocks]
    if beyond:
        what = "MTP blocks count as well" if set(beyond) <= set(facts.marked) else "they are unused"
        report.add(
            "block-count",
            Subject.HEAD if set(beyond) & set(facts.marked) else Subject.MODEL,
            f"block_count is {n_blocks}, but there is blk.{ranges(beyond)}: {what}",
            f"block_count has to be {max(facts.blocks) + 1}; attach the head again" + _again(facts)
            if what.startswith("MTP")
            else "",
        )
    absent = sorted(expected - set(facts.blocks))
    absent = [n for n in absent if n not in facts.head_blocks]  # `head_rules` reports these
    if absent and facts.blocks:
        report.add(
            "block-empty",
            Subject.MODEL,
            f"blk.{ranges(absent)} has no tensors, although block_count is {n_blocks}"
            + (", of them nextn_predict_layers " + str(facts.n_nextn) if facts.n_nextn else ""),
        )


def _again(facts: GgufFacts) -> str:
    return f", from {facts.source}" if facts.source else " from its checkpoint"


def _check_nextn_key(facts: GgufFacts, n_blocks: int, report: FileReport) -> None:
    n = facts.n_nextn
    if n >= n_blocks:
        report.add(
            "nextn-count",
            Subject.HEAD,
            f"nextn_predict_layers is {n}, but block_count, which counts them, {n_blocks}",
        )
        return
    if facts.marked and not n:
        report.add(
            "nextn-count",
            Subject.HEAD,
            f"blk.{ranges(facts.marked)} is an MTP head, but nextn_predict_layers is missing or 0: "
            "readers take it for a layer of the model",
        )
    elif facts.marked and facts.head_blocks != facts.marked:
        wrong = [b for b in facts.marked if b not in facts.head_blocks and b < n_blocks]
        if wrong:
            report.add(
                "nextn-count",
                Subject.HEAD,
                f"MTP tensors are in blk.{ranges(facts.marked)}, but block_count {n_blocks} and "
                f"nextn_predict_layers {n} say blk.{ranges(facts.head_blocks)}",
            )


def _check_length(facts: GgufFacts, key: str, n_blocks: int, report: FileReport) -> None:
    found = facts.array_length(key)
    if found is None or found == n_blocks:
        return
    n_nextn = facts.n_nextn or len(facts.marked)
    text = f"{key} has {found} entries, but there are {n_blocks} blocks"
    if n_nextn and found == n_blocks - n_nextn:
        text += f": it was not extended for {'the MTP block' if n_nextn == 1 else 'MTP blocks'}"
    if key == _SILENT:
        # K-EXAONE's own files are so: what lies behind the end is full attention.
        text += ", and readers take those left out for full attention, without a word"
        report.add("window-pattern", Subject.HEAD if n_nextn else Subject.MODEL, text)
    else:
        report.add("array-length", Subject.HEAD if n_nextn else Subject.MODEL, text)


def _check_recurrent(facts: GgufFacts, report: FileReport) -> None:
    kinds = facts.per_block("attention.recurrent_layers")
    if facts.array_length("attention.recurrent_layers") is None:
        return
    wrong = [n for n in facts.head_blocks if n < len(kinds) and kinds[n]]
    if wrong:
        report.add(
            "recurrent-layers",
            Subject.HEAD,
            f"attention.recurrent_layers says that blk.{ranges(wrong)} is recurrent: MTP blocks "
            "are attention",
        )
    stems = facts.blocks
    for n, is_recurrent in enumerate(kinds):
        known = n not in facts.head_blocks and {"attn_q", "ssm_conv1d"} & stems.get(n, set())
        if known and bool(is_recurrent) != ("ssm_conv1d" in stems[n]):
            said, seen = ("recurrent", "attention") if is_recurrent else ("attention", "recurrent")
            report.add(
                "recurrent-layers",
                Subject.MODEL,
                f"attention.recurrent_layers says that blk.{n} is {said}; its tensors are {seen}",
            )
            return
