"""Rotary positions: from either spelling of the configuration to GGUF's keys and factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from ...core.gguf.printable import printable
from ..checkpoint.safetensors import Floats
from .model_config import ModelConfig

_YARN = {
    "extrapolation_factor": "yarn_ext_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


class RopeTraits(Struct, frozen=True):
    """What config.json does not say of rotary positions, or GGUF has in another way."""

    share: float = 1.0  # of a head that turns, where the configuration says nothing
    is_partial: bool = False  # whether a part may turn at all
    sections: tuple[int, ...] | None = None  # the default; None where GGUF has no sections
    kinds: tuple[str, ...] = ()  # `rope_type`s that are a tensor of factors
    has_window_base: bool = False  # windowed layers have a base of their own
    # YaRN's magnitude is a key of its own (a tenth of mscale_all_dim), not a factor.
    has_log_multiplier: bool = False
    whole_pairs: bool = True  # YaRN's ramp, for readers of a file that does not say so


class RopeSetting(Struct, frozen=True):
    theta: float
    n_rot: int
    sections: list[int]  # empty: none
    scaling: dict[str, Any]  # GGUF keys below `rope.scaling.`
    factors: Floats | None  # of llama3 scaling, a tensor
    window_theta: float | None = None  # of layers that look through a window
    notes: list[str] = field(default_factory=list)


def read_rope(config: ModelConfig, traits: RopeTraits, theta: float, head_dim: int) -> RopeSetting:
    """`theta`: where the configuration says nothing."""
    return _RopeReader(config, traits, theta, head_dim).read()


_WINDOW_THETAS = ("swa_rope_theta", "rope_local_base_freq", "local_rope_theta")
_WINDOWED = "sliding_attention"


class _RopeReader:
    def __init__(
        self, config: ModelConfig, traits: RopeTraits, theta: float, head_dim: int
    ) -> None:
        self.config, self.traits, self.head_dim = config, traits, head_dim
        self.default_theta = theta
        # `rope_parameters` since transformers 5, `rope_scaling` before and on the hub.
        found = config.get("rope_parameters", "rope_scaling")
        if found is not None and not isinstance(found, Mapping):
            raise config.error(f"rope_parameters is {printable(found)}, not an object")
        by_kind: Mapping[str, Any] = found or {}
        inner, windowed = by_kind.get("full_attention"), by_kind.get(_WINDOWED)
        self.values: Mapping[str, Any] = inner if isinstance(inner, Mapping) else by_kind
        self.windowed: Mapping[str, Any] = windowed if isinstance(windowed, Mapping) else {}

    def read(self) -> RopeSetting:
        values = self.values
        kind = str(values.get("rope_type", values.get("type")) or "default").lower()
        theta = self._either("rope_theta", self.default_theta)
        n_rot = self._n_rot()
        notes: list[str] = []
        scaling: dict[str, Any] = {}
        factors = None
        if kind == "linear":
            scaling = {"type": "linear", "factor": self._number("factor")}
        elif kind == "yarn":
            scaling = self._yarn(notes)
        elif kind == "llama3":
            factors = self._llama3(theta, n_rot)
        elif kind == "dynamic" and kind not in self.traits.kinds:
            notes.append(
                "dynamic rope scaling has no key in GGUF: texts longer than the trained context "
                "differ"
            )
        elif kind not in ("default", "mrope", "none", *self.traits.kinds):
            raise self.config.error(
                f"rope type {printable(kind)} is not supported (linear, yarn and llama3 are)"
            )
        own = self._window_theta() if self.traits.has_window_base else None
        return RopeSetting(theta, n_rot, self._sections(), scaling, factors, own, notes)

    def _number(self, name: str, default: float | None = None) -> float:
        return self.config.number(f"rope_parameters.{name}", self.values.get(name), default)

    def _either(self, name: str, default: float) -> float:
        """A number of the rope's own parameters or of the whole configuration."""
        found = self.values.get(name, self.config.get(name, f"{name}s"))
        if isinstance(found, list):
            found = self._of_layer(found, is_windowed=False)
        return self.config.number(name, found, default)

    def _of_layer(self, values: list[Any], *, is_windowed: bool) -> Any:
        """From a list with a value per layer, that of the first layer of a kind."""
        kinds = self.config.get("layer_types")
        for value, kind in zip(values, kinds if isinstance(kinds, list) else (), strict=False):
            if (kind == _WINDOWED) == is_windowed:
                return value
        return None

    def _window_theta(self) -> float | None:
        found = self.windowed.get("rope_theta", self.config.get(*_WINDOW_THETAS))
        listed = self.config.get("rope_theta")
        if found is None and isinstance(listed, list):
            found = self._of_layer(listed, is_windowed=True)
        return None if found is None else self.config.number("rope_theta of windows", found)

    def _trained_length(self) -> int:
        length = self.config.size("max_position_embeddings")
        return int(self._either("original_max_position_embeddings", length))

    def _yarn(self, notes: list[str]) -> dict[str, Any]:
        context = self._trained_length()
        factor = self._number("factor", self.config.size("max_position_embeddings") / context)
        out: dict[str, Any] = {"type": "yarn", "factor": factor, "original_context_length": context}
        if self.traits.has_log_multiplier:
            self._add_log_multiplier(out, notes)
        # GGUF's key multiplies what the factor alone would give.
        own = 0.1 * math.log(max(factor, 1.0)) + 1.0
        wanted = self._magnitude(factor, own)
        if not math.isclose(wanted, own, rel_tol=1e-7):
            out["attn_factor"] = wanted / own
        for name, key in _YARN.items():
            if self.values.get(name) is not None:
                out[key] = self._number(name)
        is_whole = self.values.get("truncate") is not False
        if is_whole and not self.traits.whole_pairs:
            out["yarn_truncate"] = True
        elif not is_whole and self.traits.whole_pairs:
            notes.append("yarn with truncate=false has no key in GGUF: positions differ slightly")
        return out

    def _add_log_multiplier(self, out: dict[str, Any], notes: list[str]) -> None:
        """It stands for both: readers scale scores by its square, and positions not at all."""
        if (below := self.values.get("mscale_all_dim")) is None:
            return
        out["yarn_log_multiplier"] = 0.1 * self.config.number("mscale_all_dim", below)
        if self.values.get("mscale", below) != below:
            notes.append("yarn's mscale has no key in GGUF beside mscale_all_dim: left out")

    def _magnitude(self, factor: float, own: float) -> float:
        given = self.values.get("attention_factor", self.values.get("attn_factor"))
        if given is not None:
            return self.config.number("rope_parameters.attention_factor", given)
        if self.traits.has_log_multiplier:
            return own
        if self.values.get("mscale") and self.values.get("mscale_all_dim") and factor > 1:
            above, below = self._number("mscale"), self._number("mscale_all_dim")
            return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
        return own

    def _llama3(self, theta: float, n_rot: int) -> Floats:
        names = ("factor", "low_freq_factor", "high_freq_factor")
        numbers: dict[str, Any] = {name: self._number(name) for name in names}
        if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            raise self.config.error("rope_parameters.high_freq_factor is not above low_freq_factor")
        numbers["original_max_position_embeddings"] = self._trained_length()
        return llama3_factors(numbers | {"rope_theta": theta}, n_rot)

    def _n_rot(self) -> int:
        dim, traits = self.head_dim, self.traits
        share = self._either("partial_rotary_factor", traits.share)
        n_rot = int(dim * share)
        if share > 1 or n_rot < 2 or n_rot % 2 or (n_rot != dim and not traits.is_partial):
            raise self.config.error(f"partial_rotary_factor {share} does not fit heads of {dim}")
        return n_rot

    def _sections(self) -> list[int]:
        """llama.cpp requires them for Qwen3.5; for text alone all of them mean the same."""
        if (default := self.traits.sections) is None:
            return []
        found = self.values.get("mrope_section", list(default))
        if not found:
            return []
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
