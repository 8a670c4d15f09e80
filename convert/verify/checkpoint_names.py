"""What `config.json` and tensor names of a checkpoint say: its GGUF architecture, its MTP heads.

Which tensors a head's block needs is not looked up but seen: what the layers of the same
checkpoint have, a head's layer has as well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ..heads.family_table import BY_MODEL_TYPE
from ..hf.families import FAMILIES as CONVERTED

# GGUF's word for every `model_type` that can be converted or has a head that can be attached.
ARCHITECTURE_OF: Final[Mapping[str, str]] = {
    "gemma4": "gemma4", "gemma4_text": "gemma4",
    **{model_type: family.architecture for model_type, family in CONVERTED.items()},
    **BY_MODEL_TYPE,
}  # fmt: skip
_HEAD_COUNTS: Final = (
    "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", "n_predict_layers",
    "num_nextn_layers",
)  # fmt: skip

_PREFIX: Final = re.compile(r"^(?:model\.language_model\.|language_model\.(?:model\.)?)")
_OWN: Final = re.compile(r"(?:model\.)?mtp\.(?:layers\.)?(\d{1,5})\.(.+)")
_SHARED: Final = re.compile(r"(?:model\.)?mtp\.(.+)")
_LAYER: Final = re.compile(r"(?:model\.)?layers\.(\d{1,5})\.(.+)")
_EXPERT: Final = re.compile(r"\.experts\.(\d{1,5})\.")
# Beside a quantised weight, not weights.
_BESIDE: Final = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    "weight_packed",
    "weight_shape",
    "_zero_point",
)
_DENSE: Final = tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
_TRIO: Final = (
    ("eh_proj.weight", "fc.weight", "e_proj.weight"),
    ("enorm.weight", "pre_fc_norm_embedding.weight"),
    ("hnorm.weight", "pre_fc_norm_hidden.weight"),
)
_NORMS: Final = (
    ("shared_head.norm.weight", "norm.weight", "final_layernorm.weight",
     "transformer.shared_head.norm.weight"),
)  # fmt: skip
_LIKE: Final = MappingProxyType({"post_attention_layernorm.weight": "pre_mlp_layernorm.weight"})


@dataclass
class LayerNames:
    names: dict[str, str] = field(default_factory=dict)  # inner name -> name in the checkpoint
    experts: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, inner: str, name: str) -> None:
        if match := _EXPERT.search(inner):
            inner = inner.replace(match[0], ".experts.*.")
            self.experts[inner].add(int(match[1]))
        self.names[inner] = name

    def starting(self, *prefixes: str) -> set[str]:
        return {name for name in self.names if name.startswith(prefixes)}


@dataclass
class SortedLayers:
    trunk: dict[int, LayerNames]
    heads: dict[int, LayerNames]  # from 0
    shared: LayerNames  # of `mtp.`, for all heads


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of the configuration, where images are another part."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def find_architecture(config: Mapping[str, Any]) -> str:
    """GGUF's word; "" if there is none."""
    for part in (text_config(config), config):
        kind = part.get("model_type")
        if isinstance(kind, str) and kind in ARCHITECTURE_OF:
            return ARCHITECTURE_OF[kind]
    return ""


def number(config: Mapping[str, Any], *keys: str) -> int:
    for part in (text_config(config), config):
        for key in keys:
            value = part.get(key)
            if type(value) is int and 0 <= value < 1 << 31:
                return value
    return 0


def declared_heads(config: Mapping[str, Any]) -> int:
    return number(config, *_HEAD_COUNTS)


def sort_layers(names: Iterable[str], n_trunk: int) -> SortedLayers:
    found = SortedLayers(defaultdict(LayerNames), defaultdict(LayerNames), LayerNames())
    for name in names:
        plain = _PREFIX.sub("model.", name)
        if plain.endswith(_BESIDE):
            plain = plain if plain.endswith("weight_packed") else ""
        plain = plain.replace("weight_packed", "weight")
        if match := _OWN.fullmatch(plain):
            found.heads[int(match[1])].add(match[2], name)
        elif match := _SHARED.fullmatch(plain):
            found.shared.add(match[1], name)
        elif match := _LAYER.fullmatch(plain):
            n, inner = int(match[1]), match[2].removeprefix("transformer.")
            if n_trunk and n >= n_trunk:
                found.heads[n - n_trunk].add(inner, name)
            else:
                found.trunk[n].add(inner, name)
    return found


def missing_of(head: LayerNames, layers: SortedLayers) -> list[str]:
    """Inner names that a head lacks."""
    both = head.names.keys() | layers.shared.names.keys()
    missing = [names[0] for names in (*_TRIO, *_NORMS) if both.isdisjoint(names)]
    missing += _missing_attention(head, layers)
    return missing + _missing_ffn(head, layers)


def lost_experts(head: LayerNames, layers: SortedLayers) -> str:
    """Experts that a head's layer has fewer of than the model's."""
    most = max(
        (len(e) for layer in layers.trunk.values() for e in layer.experts.values()), default=0
    )
    for inner, found in sorted(head.experts.items()):
        if len(found) < most:
            return f"{inner} has {len(found)} of {most} experts"
    return ""


def _missing_attention(head: LayerNames, layers: SortedLayers) -> list[str]:
    like = [layer.starting("self_attn.") for layer in layers.trunk.values()]
    like = [names for names in like if names]
    wanted = set.intersection(*like) if like else {"self_attn.o_proj.weight"}
    if not head.starting("self_attn."):
        if head.starting("mixer.", "attention.", "attn."):  # other words for it; not looked into
            return []
        return sorted(wanted)
    if "self_attn.qkv_proj.weight" in head.names:
        wanted -= {f"self_attn.{x}_proj.weight" for x in "qkv"}
    return sorted(wanted - head.names.keys()) + _missing_norms(head, layers)


def _missing_norms(head: LayerNames, layers: SortedLayers) -> list[str]:
    like = [
        {name for name in layer.names if name.endswith("layernorm.weight") and "." not in name[:-7]}
        for layer in layers.trunk.values()
    ]
    wanted = set.intersection(*like) if like else {"input_layernorm.weight"}
    return sorted(
        name
        for name in wanted
        if name not in head.names and _LIKE.get(name, name) not in head.names
    )


def _missing_ffn(head: LayerNames, layers: SortedLayers) -> list[str]:
    prefixes = ("mlp.", "moe.", "share_expert.")
    if head.starting("mixer.", "ffn."):
        return []
    moe = [
        _unstacked(layer.starting(*prefixes))
        for layer in layers.trunk.values()
        if any("expert" in name or name.startswith("moe.") for name in layer.names)
    ]
    choices = [set(_DENSE)] + ([set.intersection(*moe)] if moe else [])
    if not layers.trunk:  # nothing to compare with: a router is all that is sure
        choices.append({"mlp.gate.weight"})
    present = _unstacked(head.starting(*prefixes))
    return sorted((sorted(choice - present) for choice in choices), key=len)[0]


def _unstacked(names: set[str]) -> set[str]:
    """Stacks of experts as what they are stacked from: a trunk and its head may differ in that."""
    found = set()
    for name in names:
        plain = name.removesuffix(".weight")
        if plain == "mlp.experts.gate_up_proj":
            found |= {"mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"}
        elif plain == "mlp.experts.down_proj":
            found.add("mlp.experts.*.down_proj.weight")
        else:
            found.add(name)
    return found
