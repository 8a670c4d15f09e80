"""The limits that a measurement may be held to.

The figures of a file, a text and a device repeat exactly, so they are compared as they are.
"""

from __future__ import annotations

from ...core.bench.record import GateResult
from .fidelity import Fidelity

MAX_KL, MIN_TOP1 = "max-kl", "min-top1"


def judge_fidelity(
    found: Fidelity, *, max_kl: float | None = None, min_top1: float | None = None
) -> list[GateResult]:
    """`max_kl` in nats, `min_top1` as a fraction of 1."""
    results = []
    if max_kl is not None:
        kl = found.kl.value
        line = f"mean KL divergence {kl:.4g}"
        if kl > max_kl:
            line += f" > {max_kl:g}, by {kl - max_kl:.4g}"
        results.append(GateResult(MAX_KL, "", kl <= max_kl, line))
    if min_top1 is not None:
        share = found.same_top.value
        line = f"same top token {share:.4g}"
        if share < min_top1:
            line += f" < {min_top1:.4g}, by {min_top1 - share:.4g}"
        results.append(GateResult(MIN_TOP1, "", share >= min_top1, line))
    return results
