"""Rotary positions: from either spelling of the configuration to GGUF's keys and factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.gguf.printable import printable
from ..checkpoint.safetensors import Floats
from .model_config import CheckpointFamily, ModelConfig

_YARN = {
    "extrapolation_factor": "yarn_ext_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


@dataclass(frozen=True, slots=True)
class RopeSetting:
    theta: float
    n_rot: int
    sections: list[int]  # empty: none
    scaling: dict[str, Any]  # GGUF keys below `rope.scaling.`
    factors: Floats | None  # of llama3 scaling, a tensor
    notes: list[str] = field(default_factory=list)


def read_rope(config: ModelConfig, family: CheckpointFamily, head_dim: int) -> RopeSetting:
    return _RopeReader(config, family, head_dim).read()


class _RopeReader:
    def __init__(self, config: ModelConfig, family: CheckpointFamily, head_dim: int) -> None:
        self.config, self.family, self.head_dim = config, family, head_dim
        # `rope_parameters` since transformers 5, `rope_scaling` before and on the hub.
        found = config.get("rope_parameters", "rope_scaling")
        if found is not None and not isinstance(found, Mapping):
            raise config.error(f"rope_parameters is {printable(found)}, not an object")
        inner = (found or {}).get("full_attention")
        self.values: Mapping[str, Any] = inner if isinstance(inner, Mapping) else found or {}

    def read(self) -> RopeSetting:
        values = self.values
        kind = str(values.get("rope_type", values.get("type")) or "default").lower()
        theta = self._either("rope_theta", self.family.rope_theta)
        notes: list[str] = []
        scaling: dict[str, Any] = {}
        factors = None
        if kind == "linear":
            scaling = {"type": "linear", "factor": self._number("factor")}
        elif kind == "yarn":
            scaling = self._yarn(notes)
        elif kind == "llama3":
            factors = self._llama3(theta)
        elif kind == "dynamic":
            notes.append(
                "dynamic rope scaling has no key in GGUF: texts longer than the trained context "
                "differ"
            )
        elif kind not in ("default", "mrope", "none"):
            raise self.config.error(
                f"rope type {printable(kind)} is not supported (linear, yarn and llama3 are)"
            )
        return RopeSetting(theta, self._n_rot(), self._sections(), scaling, factors, notes)

    def _number(self, name: str, default: float | None = None) -> float:
        return self.config.number(f"rope_parameters.{name}", self.values.get(name), default)

    def _either(self, name: str, default: float) -> float:
        """A number of the rope's own parameters or of the whole configuration."""
        found = self.values.get(name, self.config.get(name))
        return self.config.number(name, found, default)

    def _trained_length(self) -> int:
        length = self.config.size("max_position_embeddings")
        return int(self._either("original_max_position_embeddings", length))

    def _yarn(self, notes: list[str]) -> dict[str, Any]:
        context = self._trained_length()
        factor = self._number("factor", self.config.size("max_position_embeddings") / context)
        out: dict[str, Any] = {"type": "yarn", "factor": factor, "original_context_length": context}
        # GGUF's key multiplies what the factor alone would give.
        own = 0.1 * math.log(max(factor, 1.0)) + 1.0
        wanted = self._magnitude(factor, own)
        if not math.isclose(wanted, own, rel_tol=1e-7):
            out["attn_factor"] = wanted / own
        for name, key in _YARN.items():
            if self.values.get(name) is not None:
                out[key] = self._number(name)
        if self.values.get("truncate") is False:
            notes.append("yarn with truncate=false has no key in GGUF: positions differ slightly")
        return out

    def _magnitude(self, factor: float, own: float) -> float:
        given = self.values.get("attention_factor", self.values.get("attn_factor"))
        if given is not None:
            return self.config.number("rope_parameters.attention_factor", given)
        if self.values.get("mscale") and self.values.get("mscale_all_dim") and factor > 1:
            above, below = self._number("mscale"), self._number("mscale_all_dim")
            return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
        return own

    def _llama3(self, theta: float) -> Floats:
        names = ("factor", "low_freq_factor", "high_freq_factor")
        numbers: dict[str, Any] = {name: self._number(name) for name in names}
        if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            raise self.config.error("rope_parameters.high_freq_factor is not above low_freq_factor")
        numbers["original_max_position_embeddings"] = self._trained_length()
        return llama3_factors(numbers | {"rope_theta": theta}, self.head_dim)

    def _n_rot(self) -> int:
        dim, is_hybrid = self.head_dim, self.family.is_hybrid
        share = self._either("partial_rotary_factor", 0.25 if is_hybrid else 1.0)
        n_rot = int(dim * share)
        if share > 1 or n_rot < 2 or n_rot % 2 or (n_rot != dim and not is_hybrid):
            raise self.config.error(f"partial_rotary_factor {share} does not fit heads of {dim}")
        return n_rot

    def _sections(self) -> list[int]:
        """llama.cpp requires them for Qwen3.5; for text alone all of them mean the same."""
        if not self.family.is_tiled:
            return []
        found = self.values.get("mrope_section", [11, 11, 10])
        is_list = isinstance(found, list) and 1 <= len(found) <= 4
        if not is_list or any(type(n) is not int for n in found):
            raise self.config.error(f"mrope_section is {printable(found)}, not up to four numbers")
        return [*found, 0, 0, 0][:4]


def llama3_factors(rope: Mapping[str, Any], head_dim: int) -> Floats:
    """`rope_freqs.weight`: the divisors that stand for llama3 rope scaling."""
    i = np.arange(0, head_dim, 2)
    turn = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
    context, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (context / turn - low) / (high - low)
    mixed = 1 / ((1 - smooth) / factor + smooth)
    out = np.where(turn < context / high, 1.0, np.where(turn > context / low, factor, mixed))
    return out.astype(np.float32)
