"""Where llama.cpp wants more of a file than we do: it refuses these, or does not draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..check.rules import refused
from .facts import Facts
from .report import Part, Report


def check_llama_cpp(facts: Facts, report: Report) -> None:
    for text in refused(facts.file):
        report.warning(Part.LLAMA_CPP, f"{text}: llama.cpp refuses the file")
    for rule in _RULES.get(facts.architecture, ()):
        if text := rule(facts):
            report.warning(Part.LLAMA_CPP, text)
    if facts.marked and not facts.family.name and facts.architecture:
        report.warning(
            Part.LLAMA_CPP, f"llama.cpp knows no MTP head of architecture {facts.architecture}"
        )
    elif facts.marked and not facts.family.in_llama_cpp:
        report.warning(
            Part.LLAMA_CPP,
            f"llama.cpp loads the head of {facts.architecture}, but has no graph to run it",
        )


def _fused_qkv(facts: Facts) -> str:
    split = [n for n in facts.marked if "attn_q" in facts.blocks[n]]
    if not split:
        return ""
    return f"blk.{split[0]}.attn_q: llama.cpp wants attn_qkv, in one piece, in the MTP blocks"


def _sinks(facts: Facts) -> str:
    bare = [name for name in facts.file.tensors if name.endswith(".attn_sinks")]
    return f"{bare[0]}: llama.cpp looks for {bare[0]}.weight" if bare else ""


def _mla_head(facts: Facts) -> str:
    """What the graph of a deepseek2 head asks for."""
    if not facts.marked:
        return ""
    stems = facts.blocks[facts.marked[0]]
    lacks = []
    if facts.whole("attention.key_length_mla") is None:
        lacks.append("the keys of MLA (attention.key_length_mla)")
    if "attn_q_a" not in stems:
        lacks.append("a low-rank query (attn_q_a)")
    if "ffn_gate_inp" not in stems:
        lacks.append("experts in the MTP block")
    return f"llama.cpp runs this head only with {', '.join(lacks)}" if lacks else ""


def _gating_guess(facts: Facts) -> str:
    has_bias = any("exp_probs_b.bias" in stems for stems in facts.blocks.values())
    if facts.whole("expert_gating_func") is not None or not has_bias:
        return ""
    return (
        "expert_gating_func is missing: llama.cpp guesses softmax, although exp_probs_b says "
        "that the router is a sigmoid"
    )


Rule = Callable[[Facts], str]
_RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "mimo2": (_fused_qkv, _sinks),
    "step35": (_sinks,),
    "deepseek2": (_mla_head, _gating_guess),
    "deepseek32": (_gating_guess,),
    "glm4moe": (_gating_guess,),
}
