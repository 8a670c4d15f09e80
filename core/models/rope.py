"""Rotary frequencies of a file: base, linear and YaRN scaling, stored llama3 factors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..backend.layers import RopePairs, RotaryPositions
from ..errors import ModelError

if TYPE_CHECKING:
    from ..gguf.metadata import Metadata
    from ..gguf.reader import GgufFile
    from .model_weights import Weights


def build_rope(weights: Weights, key_dim: int, pairs: RopePairs) -> RotaryPositions:
    """`weights` is the root scope: the optional factors are one tensor of the whole file."""
    meta = weights.file.metadata
    n_rot = meta.int("rope.dimension_count", key_dim, low=2, high=key_dim)
    if n_rot % 2:
        raise ModelError(f"{weights.file.label}: rope.dimension_count is {n_rot}, which is odd")
    base = meta.float("rope.freq_base", 10000.0, low=1e-3, high=1e15)
    frequencies = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    if weights.has("rope_freqs"):
        frequencies = frequencies / _stored_factors(weights, n_rot // 2)
    return _scale(weights.file, pairs, frequencies, base)


def _stored_factors(weights: Weights, n: int) -> NDArray[np.float64]:
    factors = weights.floats("rope_freqs.weight", n).astype(np.float64)
    if weights.findings.misshapen:  # stands for a tensor that is about to be refused
        return np.ones(n)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelError(
            f"{weights.file.label}: rope_freqs.weight divides frequencies, but not all of its "
            "values are positive and finite"
        )
    return factors


def _scale(
    file: GgufFile, pairs: RopePairs, frequencies: NDArray[np.float64], base: float
) -> RotaryPositions:
    meta = file.metadata
    kind = meta.str("rope.scaling.type", "linear")
    # Files of before 2024 carry rope.scale_linear.
    factor = meta.float(
        "rope.scaling.factor", meta.float("rope.scale_linear", 1.0, low=1e-6), low=1e-6, high=1e6
    )
    if kind == "none":
        return RotaryPositions(pairs, frequencies)
    if kind == "linear":
        return RotaryPositions(pairs, frequencies / factor)
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
    magnitude = meta.float("rope.scaling.attn_factor", 1.0, low=0.0, high=1e3)
    mixed = _yarn(meta, frequencies, factor, base)
    return RotaryPositions(pairs, mixed, magnitude * (1 + 0.1 * math.log(max(factor, 1.0))))


def _yarn(
    meta: Metadata, frequencies: NDArray[np.float64], factor: float, base: float
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
    low = max(math.floor(pair_that_turns(fast)), 0)
    high = min(math.ceil(pair_that_turns(slow)), n_rot - 1)
    ramp = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 1e-3), 0, 1)
    kept = (1 - ramp) * meta.float("rope.scaling.yarn_ext_factor", 1.0, low=0.0, high=1.0)
    return frequencies / factor * (1 - kept) + frequencies * kept
