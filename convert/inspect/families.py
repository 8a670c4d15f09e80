"""The families whose files carry MTP heads: what a head's block has to hold, and who runs it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

Stems = tuple[str, ...]  # names below `blk.N.`, without `.weight`
Need = tuple[Stems, ...]  # one of these has to be complete

NEXTN: Final[Stems] = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")

_QKV: Final[Need] = (("attn_q", "attn_k", "attn_v"), ("attn_qkv",))
_HEAD_NORMS: Final[Need] = (("attn_q_norm", "attn_k_norm"),)
_OUT: Final[Need] = (("attn_output",),)
_GQA: Final = (_QKV, _OUT)
_MLA: Final = (
    (("attn_q_a", "attn_q_a_norm", "attn_q_b"), ("attn_q",)),
    (("attn_kv_a_mqa", "attn_kv_a_norm"),),
    (("attn_k_b", "attn_v_b"), ("attn_kv_b",)),
    _OUT,
)
_DENSE: Final[Stems] = ("ffn_gate", "ffn_up", "ffn_down")
_STACKS: Final = (
    ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    ("ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps"),
)
_SHARED: Final[Stems] = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")


def _moe(shared: Stems = (), *, dense: bool = False) -> Need:
    return tuple(stack + shared for stack in _STACKS) + ((_DENSE,) if dense else ())


def _all(*stems: str) -> Need:
    return (stems,)


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    needs: tuple[Need, ...] = ()  # beside NEXTN
    shifted_norms: bool = False  # checkpoints hold w where GGUF holds 1 + w
    most_heads: int = 1
    in_llama_cpp: bool = True  # it has a graph for the head
    bare_key_loads: bool = True  # llama.cpp loads a trunk that still has nextn_predict_layers

    def missing(self, present: Collection[str]) -> list[str]:
        """Stems of a head's block that are not there; of alternatives, of the nearest."""
        found = [stem for stem in NEXTN if stem not in present]
        for need in self.needs:
            lacks = [[stem for stem in stems if stem not in present] for stems in need]
            found += sorted(lacks, key=len)[0]
        return found


_GATED_SHARED: Final[Stems] = ("ffn_gate_inp_shexp", *_SHARED)
_HYBRID: Final = (_all("attn_norm", "post_attention_norm"), *_GQA, _HEAD_NORMS)
_PRE_NORM: Final = _all("attn_norm", "ffn_norm")
_DEEPSEEK: Final = (_PRE_NORM, *_MLA, _moe(_SHARED, dense=True))

_ALL: Final = (
    Family(
        "qwen3next",
        (*_HYBRID, _moe(_GATED_SHARED, dense=True)),
        shifted_norms=True,
        bare_key_loads=False,
    ),
    Family("qwen35", (*_HYBRID, (_DENSE,)), shifted_norms=True, bare_key_loads=False),
    Family("qwen35moe", (*_HYBRID, _moe(_GATED_SHARED)), shifted_norms=True, bare_key_loads=False),
    Family("glm4moe", (_all("attn_norm", "post_attention_norm"), *_GQA, _moe(_SHARED, dense=True))),
    Family("deepseek2", _DEEPSEEK),
    Family("deepseek32", _DEEPSEEK),
    Family("glm-dsa", _DEEPSEEK),
    Family("deepseek4"),
    Family(
        "mimo2",
        (_PRE_NORM, *_GQA, (_DENSE,), _all("layer_output_norm")),
        most_heads=3,
    ),
    Family(
        "step35",
        (_PRE_NORM, *_GQA, _HEAD_NORMS, _all("attn_gate"), (_DENSE,)),
        shifted_norms=True,
        most_heads=3,
    ),
    Family(
        "exaone-moe",
        (_PRE_NORM, *_GQA, _HEAD_NORMS, _moe(dense=True)),
        most_heads=8,
        in_llama_cpp=False,
    ),
    Family("hy_v3", (_PRE_NORM, *_GQA, _HEAD_NORMS, _moe(_SHARED, dense=True))),
    Family("cohere2moe", (_all("attn_norm"), *_GQA, _moe(dense=True))),
    Family(
        "nemotron_h_moe",
        (
            _all("attn_norm", "post_attention_norm", "nextn.shared_head_norm"),
            *_GQA,
            _all("ffn_gate_inp", "ffn_up_exps", "ffn_down_exps"),
        ),
        bare_key_loads=False,
    ),
    Family("bailingmoe3", (_all("attn_norm", "ffn_norm", "layer_output_norm"), *_MLA, _moe())),
    Family("bailingmoe2", (_PRE_NORM, *_GQA, _moe(dense=True)), most_heads=8, in_llama_cpp=False),
    Family(
        "exaone4",
        (_all("post_attention_norm", "post_ffw_norm"), *_GQA, _HEAD_NORMS, (_DENSE,)),
        most_heads=8,
        in_llama_cpp=False,
    ),
    Family("glm4", (_PRE_NORM, *_GQA), most_heads=8, in_llama_cpp=False),
    Family("dots3note", most_heads=8, in_llama_cpp=False),
    Family("glm5-next", _DEEPSEEK),
)
FAMILIES: Final = MappingProxyType({family.name: family for family in _ALL})
UNKNOWN: Final = Family("", most_heads=1 << 30)


def find_family(architecture: str) -> Family:
    return FAMILIES.get(architecture, UNKNOWN)
