"""What `config.json` and tensor names of a checkpoint say: its GGUF architecture, its MTP heads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..checkpoint import StoredTensor
from ..heads.checkpoint_weights import CheckpointWeights
from ..heads.family_table import BY_MODEL_TYPE
from ..heads.mtp_family import EXPERT, STACK, MtpFamily, Names
from ..hf.families import FAMILIES as CONVERTED

# GGUF's word for every `model_type` that can be converted or has a head that can be attached.
ARCHITECTURE_OF: Final[Mapping[str, str]] = {
    **{model_type: family.architecture for model_type, family in CONVERTED.items()},
    **BY_MODEL_TYPE,
}
_HEAD_COUNTS: Final = (
    "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", "n_predict_layers",
    "num_nextn_layers",
)  # fmt: skip


_LAYER: Final = re.compile(
    r"(?:model\.language_model\.|language_model\.(?:model\.)?|model\.)?layers\.(\d{1,5})\.(.+)"
)
# Beside a quantised weight, not weights.
BESIDE: Final = ("_scale", "_scale_inv", "_scale_2", "weight_shape", "_zero_point")
_LAST_NORMS: Final = frozenset({"nextn.shared_head_norm", "layer_output_norm"})
_HALVES: Final = frozenset({"nextn.e_proj", "nextn.h_proj"})


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


def is_convertible(config: Mapping[str, Any]) -> bool:
    kinds = [part.get("model_type") for part in (text_config(config), config)]
    return any(isinstance(kind, str) and kind in CONVERTED for kind in kinds)


def number(config: Mapping[str, Any], *keys: str) -> int:
    for part in (text_config(config), config):
        for key in keys:
            value = part.get(key)
            if type(value) is int and 0 <= value < 1 << 31:
                return value
    return 0


def declared_heads(config: Mapping[str, Any]) -> int:
    return number(config, *_HEAD_COUNTS)


def trunk_layers(names: Iterable[str], n_trunk: int) -> dict[int, set[str]]:
    """Names inside of each layer by its number, those of heads behind the trunk left out."""
    found: dict[int, set[str]] = defaultdict(set)
    for name in names:
        match = _LAYER.fullmatch(name)
        if match and not (n_trunk and int(match[1]) >= n_trunk):
            found[int(match[1])].add(match[2])
    return found


@dataclass
class HeadNames:
    """One block of a head, as attach would find it."""

    family: MtpFamily
    names: Names
    projection: StoredTensor | None  # eh_proj

    def missing(self, n_experts: int) -> list[str]:
        """Tensors, by their GGUF stems, and experts that the block lacks."""
        stems: set[str] = set()
        experts: dict[str, set[int]] = defaultdict(set)
        for inner in self.names:
            if inner.endswith(BESIDE):
                continue
            plain = inner.replace("weight_packed", "weight")
            if match := EXPERT.fullmatch(plain):
                experts[match[2]].add(int(match[1]))
            elif match := STACK.fullmatch(plain):
                kinds = ("gate", "up") if match[1] == "gate_up" else (match[1],)
                stems |= {f"ffn_{kind}_exps" for kind in kinds}
            elif stem := self.family.stem(plain):
                stems.add(stem.removesuffix(".weight"))
        stems |= {f"ffn_{kind}_exps" for kind in experts}
        if stems >= _HALVES:
            stems.add("nextn.eh_proj")
        missing = self.family.missing(stems)
        if stems.isdisjoint(_LAST_NORMS):
            missing.append("nextn.shared_head_norm")
        most = max([n_experts, *map(len, experts.values())])
        lost = {kind: len(found) for kind, found in experts.items() if len(found) < most}
        return missing + [f"ffn_{kind}_exps has {n} of {most} experts" for kind, n in lost.items()]


def head_names(weights: CheckpointWeights, family: MtpFamily, n_trunk: int) -> list[HeadNames]:
    return [
        HeadNames(family, names, weights.tensors.get(names.get("eh_proj.weight", "")))
        for names in family.layout(weights, n_trunk)
    ]
