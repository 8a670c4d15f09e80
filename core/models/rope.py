"""Rotary frequencies of a file: base, linear and YaRN scaling, stored llama3 factors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ..backend.layers import RopePairs, RotaryPositions
from ..errors import ModelError
from .hparams import MAX_WIDTH

if TYPE_CHECKING:
    from ..gguf.metadata import Metadata
    from ..gguf.reader import GgufFile
    from .model_weights import Weights


class RopeSpec(Struct, frozen=True):
    """Where the numbers of one kind of layers come from."""

    suffix: str = ""  # of the keys, which fall back on those without a suffix
    base: float = 0.0  # where the file does not say; 0: what holds for the other layers
    n_rot: int = 0  # elements that turn; 0: what the file says
    is_scaled: bool = True  # by the keys rope.scaling.*
    has_factors: bool = True  # if the file has them
    factors: str = "rope_freqs"  # the tensor they are
    divides_magnitude: bool = False  # by what the key rope.scaling.yarn_log_multiplier stands for
    n_factors: int = 0  # that it has, of which the first are used; 0: one for each pair
    whole_pairs: bool = True  # YaRN's ramp begins and ends at one, where the file does not say


_ALTERNATING: Final = ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")
MAIN_ROPE = RopeSpec()
WINDOWED_ROPE = RopeSpec("_swa", is_scaled=False, has_factors=False)


def build_rope(
    weights: Weights, key_dim: int, pairs: RopePairs, spec: RopeSpec = MAIN_ROPE
) -> RotaryPositions:
    """`weights` is the root scope: the optional factors are one tensor of the whole file."""
    meta, key = weights.file.metadata, "rope.dimension_count"
    if meta.has(key + spec.suffix):
        key += spec.suffix
    n_rot = spec.n_rot or meta.int(key, key_dim, low=2, high=key_dim)
    if n_rot % 2:
        raise ModelError(f"{weights.file.label}: {key} is {n_rot}, which is odd")
    main_base = meta.float("rope.freq_base", 10000.0, low=1e-3, high=1e15)
    base = meta.float(f"rope.freq_base{spec.suffix}", spec.base or main_base, low=1e-3, high=1e15)
    frequencies = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    axes = rope_axes(meta, n_rot // 2)
    if spec.has_factors and weights.has(spec.factors):
        factors = _stored_factors(weights, spec.factors, spec.n_factors or n_rot // 2)
        frequencies = frequencies / factors[: n_rot // 2]
    if not spec.is_scaled:
        return RotaryPositions(pairs, frequencies, axes=axes)
    scaled = _scale(weights.file, pairs, frequencies, base, spec.whole_pairs)
    if spec.divides_magnitude:
        scaled = replace(scaled, magnitude=scaled.magnitude / _log_magnitude(meta))
    return replace(scaled, axes=axes)


def rope_axes(meta: Metadata, n_pairs: int) -> NDArray[np.int64] | None:
    """Whether each pair turns by a row's place in time (0), its height (1) or its width (2): where
    images have such places. Pairs of the three alternate, or lie behind each other."""
    key = "rope.dimension_sections"
    if not meta.has(key):
        return None
    sections = [*meta.ints(key, low=0, high=MAX_WIDTH), 0, 0, 0][:3]
    axes = np.zeros(n_pairs, np.int64)
    first = sections[0]
    for axis, n in enumerate(sections[1:], 1):
        if meta.architecture in _ALTERNATING:
            axes[axis : 3 * n : 3] = axis
        else:
            axes[first : first + n] = axis
            first += n
    return axes if axes.any() else None


def yarn_magnitude(meta: Metadata) -> float:
    """Of scores, where a file's scaling is YaRN: what `rope.scaling.yarn_log_multiplier` adds for
    each factor e of the context."""
    return _log_magnitude(meta, 1.0)


def _log_magnitude(meta: Metadata, weight: float = 0.1) -> float:
    if meta.str("rope.scaling.type", "linear") != "yarn":
        return 1.0
    stretch = math.log(max(meta.float("rope.scaling.factor", 1.0, low=1e-6, high=1e6), 1.0))
    multiplier = meta.float("rope.scaling.yarn_log_multiplier", 0.0, low=0.0, high=1e3)
    return 1 + weight * multiplier * stretch


def _stored_factors(weights: Weights, name: str, n: int) -> NDArray[np.float64]:
    factors = weights.floats(f"{name}.weight", n).astype(np.float64)
    if weights.findings.misshapen:  # stands for a tensor that is about to be refused
        return np.ones(n)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelError(
            f"{weights.file.label}: {name}.weight divides frequencies, but not all of its "
            "values are positive and finite"
        )
    return factors


def _scale(
    file: GgufFile,
    pairs: RopePairs,
    frequencies: NDArray[np.float64],
    base: float,
    whole_pairs: bool,
) -> RotaryPositions:
    meta = file.metadata
    kind = meta.str("rope.scaling.type", "linear")
    # Files of before 2024 carry rope.scale_linear.
    factor = meta.float(
        "rope.scaling.factor", meta.float("rope.scale_linear", 1.0, low=1e-6), low=1e-6, high=1e6
    )
    magnitude = meta.float("rope.scaling.attn_factor", 1.0, low=0.0, high=1e3)
    if kind == "none":
        return RotaryPositions(pairs, frequencies, magnitude)
    if kind == "linear":
        return RotaryPositions(pairs, frequencies / factor, magnitude)
    if kind != "yarn":
        raise ModelError(
            f"{file.label}: {meta.full_key('rope.scaling.type')} is {kind[:60]!r}, expected none, "
            "linear or yarn; others are not supported here"
        )
    if base <= 1:  # YaRN takes its logarithm
        raise ModelError(
            f"{file.label}: {meta.full_key('rope.freq_base')} is {base}, expected more than 1 "
            "for YaRN"
        )
    mixed = _yarn(meta, frequencies, factor, base, whole_pairs)
    return RotaryPositions(pairs, mixed, magnitude * (1 + 0.1 * math.log(max(factor, 1.0))))


def _yarn(
    meta: Metadata,
    frequencies: NDArray[np.float64],
    factor: float,
    base: float,
    whole_pairs: bool,
) -> NDArray[np.float64]:
    """Fast pairs keep their frequency, slow ones are stretched, those between are mixed."""
    trained = meta.int("context_length", low=1)
    context = meta.int("rope.scaling.original_context_length", trained, low=1)
    n_rot = 2 * len(frequencies)

    def pair_that_turns(times: float) -> float:
        """Index of the pair that turns so often over the original context."""
        return n_rot * math.log(context / (times * 2 * math.pi)) / (2 * math.log(base))

    fast = meta.float("rope.scaling.yarn_beta_fast", 32.0, low=1e-3, high=1e6)
    slow = meta.float("rope.scaling.yarn_beta_slow", 1.0, low=1e-3, high=1e6)
    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if meta.bool("rope.scaling.yarn_truncate", whole_pairs):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, n_rot - 1.0)
    ramp: NDArray[np.float64] = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 1e-3), 0, 1)
    kept = (1 - ramp) * meta.float("rope.scaling.yarn_ext_factor", 1.0, low=0.0, high=1.0)
    return frequencies / factor * (1 - kept) + frequencies * kept
