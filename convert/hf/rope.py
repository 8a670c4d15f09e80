"""Rotary positions: from either spelling of the configuration to GGUF's keys and factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.gguf.printable import printable
from ..checkpoint.safetensors import Floats
from .config import Config
from .families import Family

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


def read_rope(config: Config, family: Family, head_dim: int) -> RopeSetting:
    values = _parameters(config)
    kind = str(values.get("rope_type", values.get("type")) or "default").lower()
    theta = config.checked_number(
        "rope_theta", values.get("rope_theta", config.get("rope_theta")), family.rope_theta
    )
    notes: list[str] = []
    scaling: dict[str, Any] = {}
    factors = None
    if kind == "linear":
        scaling = {"type": "linear", "factor": _number(config, values, "factor")}
    elif kind == "yarn":
        scaling = _yarn(config, values, notes)
    elif kind == "llama3":
        factors = _llama3(config, values, theta, head_dim)
    elif kind == "dynamic":
        notes.append(
            "dynamic rope scaling has no key in GGUF: texts longer than the trained context differ"
        )
    elif kind not in ("default", "mrope", "none"):
        raise config.error(
            f"rope type {printable(kind)} is not supported (linear, yarn and llama3 are)"
        )
    return RopeSetting(
        theta, _n_rot(config, values, family, head_dim), _sections(config, values, family),
        scaling, factors, notes,
    )  # fmt: skip


def _parameters(config: Config) -> Mapping[str, Any]:
    """`rope_parameters` since transformers 5, `rope_scaling` before and on the hub."""
    found = config.get("rope_parameters", "rope_scaling")
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise config.error(f"rope_parameters is {printable(found)}, not an object")
    inner = found.get("full_attention")
    return inner if isinstance(inner, Mapping) else found


def _number(config: Config, values: Mapping[str, Any], name: str) -> float:
    return config.checked_number(f"rope_parameters.{name}", values.get(name))


def _trained_length(config: Config, values: Mapping[str, Any]) -> int:
    name = "original_max_position_embeddings"
    found = values.get(name, config.get(name))
    return int(config.checked_number(name, found, config.size("max_position_embeddings")))


def _yarn(config: Config, values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    context = _trained_length(config, values)
    ratio = config.size("max_position_embeddings") / context
    factor = config.checked_number("rope_parameters.factor", values.get("factor"), ratio)
    out: dict[str, Any] = {"type": "yarn", "factor": factor, "original_context_length": context}
    # GGUF's key multiplies what the factor alone would give.
    own = 0.1 * math.log(max(factor, 1.0)) + 1.0
    wanted = _magnitude(config, values, factor, own)
    if not math.isclose(wanted, own, rel_tol=1e-7):
        out["attn_factor"] = wanted / own
    for name, key in _YARN.items():
        if values.get(name) is not None:
            out[key] = _number(config, values, name)
    if values.get("truncate") is False:
        notes.append("yarn with truncate=false has no key in GGUF: positions differ slightly")
    return out


def _magnitude(config: Config, values: Mapping[str, Any], factor: float, own: float) -> float:
    given = values.get("attention_factor", values.get("attn_factor"))
    if given is not None:
        return config.checked_number("rope_parameters.attention_factor", given)
    scale, of_all = values.get("mscale"), values.get("mscale_all_dim")
    if scale and of_all and factor > 1:
        above, below = _number(config, values, "mscale"), _number(config, values, "mscale_all_dim")
        return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    return own


def _llama3(config: Config, values: Mapping[str, Any], theta: float, head_dim: int) -> Floats:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    numbers: dict[str, Any] = {name: _number(config, values, name) for name in names}
    if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
        raise config.error("rope_parameters.high_freq_factor is not above low_freq_factor")
    numbers["original_max_position_embeddings"] = _trained_length(config, values)
    return llama3_factors(numbers | {"rope_theta": theta}, head_dim)


def _n_rot(config: Config, values: Mapping[str, Any], family: Family, head_dim: int) -> int:
    default = 0.25 if family.is_hybrid else 1.0
    found = values.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = config.checked_number("partial_rotary_factor", found, default)
    n_rot = int(head_dim * share)
    if share > 1 or n_rot < 2 or n_rot % 2 or (n_rot != head_dim and not family.is_hybrid):
        raise config.error(f"partial_rotary_factor {share} does not fit heads of {head_dim}")
    return n_rot


def _sections(config: Config, values: Mapping[str, Any], family: Family) -> list[int]:
    """llama.cpp demands them of Qwen3.5; for text alone all of them mean the same."""
    if not family.is_tiled:
        return []
    found = values.get("mrope_section", [11, 11, 10])
    if (
        not isinstance(found, list)
        or not 1 <= len(found) <= 4
        or any(type(n) is not int for n in found)
    ):
        raise config.error(f"mrope_section is {printable(found)}, not up to four numbers")
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
