"""What llama.cpp requires of a file and we do not: it refuses these, or does not draft.

Each rule yields complaints; one that does not concern the architecture yields none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ...core.gguf.printable import listing
from ...core.tokenizer.pretokenizers import PRE_TOKENIZERS
from ..files.gguf_facts import GgufFacts
from ..files.llama_keys import misread_layers, misread_widths, missing_keys
from .verdict import FileReport, Subject

Rule = Callable[[GgufFacts], Iterator[str]]

_SECTIONS: Final = "rope.dimension_sections"
# Whose attention turns heads by sections: llama.cpp asserts that one of them is more than zero.
_WITH_SECTIONS: Final = ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")
_PRE: Final = "tokenizer.ggml.pre"


def check_llama_cpp(facts: GgufFacts, report: FileReport) -> None:
    if not facts.architecture:
        return
    for key in missing_keys(facts):
        if not report.mentions(key):
            _refuse(report, "llama-key", f"{facts.architecture}.{key} is missing")
    for name, rule in _REFUSALS:
        for text in rule(facts):
            _refuse(report, name, text)
    for name, rule in _HINTS.get(facts.architecture, ()):
        for text in rule(facts):
            report.add(name, Subject.LLAMA_CPP, text)
    if facts.marked:
        _check_head(facts, report)


def _refuse(report: FileReport, rule: str, text: str) -> None:
    report.add(rule, Subject.LLAMA_CPP, f"{text}: llama.cpp refuses the file")


def _check_head(facts: GgufFacts, report: FileReport) -> None:
    architecture, n = facts.architecture, facts.n_nextn
    if not facts.family.architecture:
        text = f"llama.cpp knows no MTP head of architecture {architecture}"
        report.add("llama-idle", Subject.LLAMA_CPP, text)
    elif not facts.family.in_llama_cpp:
        text = f"llama.cpp loads the head of {architecture}, but has no graph to run it"
        report.add("llama-idle", Subject.LLAMA_CPP, text)
    if facts.n_blocks and facts.family.most_heads < n < facts.n_blocks:
        text = f"{n} MTP blocks: llama.cpp runs {facts.family.most_heads} for {architecture}"
        report.add("llama-heads", Subject.LLAMA_CPP, text)


# Refusals ----------------------------------------------------------------------------------------


def _rope_sections(facts: GgufFacts) -> Iterator[str]:
    if facts.architecture not in _WITH_SECTIONS:
        return
    if facts.array_length(_SECTIONS) != 4:
        yield f"{facts.architecture}.{_SECTIONS} must be four integers, [11, 11, 10, 0] say"
    elif not any(facts.per_block(_SECTIONS)):
        yield f"{facts.architecture}.{_SECTIONS} is all zero: nothing would turn"


def _llama_rope(facts: GgufFacts) -> Iterator[str]:
    if facts.architecture != "llama" or not facts.file.metadata.has("rope.dimension_count"):
        return
    width, heads = _number(facts, "embedding_length"), _number(facts, "attention.head_count")
    head_dim = _number(facts, "attention.key_length") or (width // heads if heads else 0)
    n_rot = _number(facts, "rope.dimension_count")
    if head_dim and n_rot != head_dim:
        yield f"llama.rope.dimension_count is {n_rot}, but heads are {head_dim} wide"


def _output(facts: GgufFacts) -> Iterator[str]:
    if facts.architecture == "mimo2" and not facts.has("output.weight"):
        yield "output.weight is missing; mimo2 does not share its embeddings"


def _fused_qkv(facts: GgufFacts) -> Iterator[str]:
    split = [n for n in facts.marked if "attn_q" in facts.blocks[n]]
    if split and facts.family.fuses_qkv:
        yield f"blk.{split[0]}.attn_q: llama.cpp needs attn_qkv, in one piece, in the MTP blocks"


def _sinks(facts: GgufFacts) -> Iterator[str]:
    for name in facts.file.tensors:
        if name.endswith("attn_sinks"):
            yield f"{name}: llama.cpp looks for {name}.weight"


def _vector_types(facts: GgufFacts) -> Iterator[str]:
    """But for quantised norms, which nothing reads: `number_rules`."""
    wrong = [
        f"{name} is {tensor.format.name}"
        for name, tensor in facts.file.tensors.items()
        if len(tensor.shape) == 1 or name.endswith(("_norm.weight", "ssm_conv1d.weight"))
        if tensor.format.name not in ("F32", "I32", "I64")
    ]
    if wrong:
        yield f"vectors and norms must be F32, {listing(wrong)}"


def _vocabulary(facts: GgufFacts) -> Iterator[str]:
    metadata, key = facts.file.metadata, "tokenizer.ggml.tokens"
    if key not in metadata:
        if not facts.is_head_only:
            yield f"{key} is missing"
        return
    n_tokens = len(metadata.entry(key).value)
    table = facts.file.tensors.get("token_embd.weight")
    if table is not None and table.shape[0] > n_tokens:
        yield f"token_embd.weight has {table.shape[0]} rows for {n_tokens} tokens"
    model = facts.text("tokenizer.ggml.model")
    needed = {"gpt2": "tokenizer.ggml.merges", "llama": "tokenizer.ggml.scores"}.get(model)
    if needed and needed not in metadata:
        yield f"{needed} is missing"
    if model == "gpt2" and (pre := facts.text(_PRE)) not in PRE_TOKENIZERS:
        yield f"{_PRE} is {pre[:40]!r}, which is not known"


def _number(facts: GgufFacts, key: str) -> int:
    """Per-layer values have no single number: 0, as where there is none."""
    value: Any = facts.file.metadata.get(facts.file.metadata.full_key(key), 0)
    return value if isinstance(value, int) else 0


# Hints -------------------------------------------------------------------------------------------


def _mla_head(facts: GgufFacts) -> Iterator[str]:
    """The needs of the graph of a deepseek2 head."""
    if not facts.marked:
        return
    stems = facts.blocks[facts.marked[0]]
    lacks = []
    if facts.whole("attention.key_length_mla") is None:
        lacks.append("the keys of MLA (attention.key_length_mla)")
    if "attn_q_a" not in stems:
        lacks.append("a low-rank query (attn_q_a)")
    if "ffn_gate_inp" not in stems:
        lacks.append("experts in the MTP block")
    if lacks:
        yield f"llama.cpp runs this head only with {', '.join(lacks)}"


def _gating_guess(facts: GgufFacts) -> Iterator[str]:
    has_bias = any("exp_probs_b.bias" in stems for stems in facts.blocks.values())
    if facts.whole("expert_gating_func") is None and has_bias:
        yield (
            "expert_gating_func is missing: llama.cpp guesses softmax, although exp_probs_b says "
            "that the router is a sigmoid"
        )


_REFUSALS: Final[tuple[tuple[str, Rule], ...]] = (
    ("llama-rope", _rope_sections),
    ("llama-rope", _llama_rope),
    ("llama-layers", misread_layers),
    ("llama-width", misread_widths),
    ("llama-tensor", _output),
    ("llama-tensor", _fused_qkv),
    ("llama-tensor", _sinks),
    ("llama-type", _vector_types),
    ("llama-vocabulary", _vocabulary),
)
_HINTS: Final[dict[str, tuple[tuple[str, Rule], ...]]] = {
    "deepseek2": (("llama-idle", _mla_head), ("llama-gating", _gating_guess)),
    "deepseek32": (("llama-gating", _gating_guess),),
    "glm4moe": (("llama-gating", _gating_guess),),
}
