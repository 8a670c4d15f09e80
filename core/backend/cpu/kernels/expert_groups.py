"""Which groups of experts a row may choose from: those whose two best experts score most in sum."""

from __future__ import annotations

from ..emit import F32, Emitter, Value

STRUCK = -3.0e38  # below any score
LOWEST_SUM = float("-inf")


def strike_out_other_groups(
    e: Emitter, scores: Value, n_expert: int, n_groups: int, n_used: int
) -> None:
    """Let no score outside the best `n_used` groups count; the lower group on ties."""
    size = n_expert // n_groups
    sums = e.scratch(F32, n_groups)
    with e.range(0, n_groups) as group:
        e.store(_best_two(e, scores + group * (4 * size), size), sums + group * 4)
    with e.range(0, n_groups - n_used):
        worst, where = e.variable(e.load(F32, sums)), e.variable(e.index(0))
        with e.range(1, n_groups) as group:
            total = e.load(F32, sums + group * 4)
            with e.when(total <= worst.get()):
                worst.set(total)
                where.set(group)
        out = where.get()
        e.store(e.const(F32, float("inf")), sums + out * 4)
        with e.range(out * size, (out + 1) * size) as expert:
            e.store(e.const(F32, STRUCK), scores + expert * 4)


def _best_two(e: Emitter, scores: Value, size: int) -> Value:
    """Their sum; of a single expert its score."""
    best, second = e.variable(e.load(F32, scores)), e.variable(e.const(F32, LOWEST_SUM))
    with e.range(1, size) as i:
        score = e.load(F32, scores + i * 4)
        is_best = score > best.get()
        behind = is_best.select(best.get(), score)
        second.set((behind > second.get()).select(behind, second.get()))
        best.set(is_best.select(score, best.get()))
    return best.get() + second.get() if size > 1 else best.get()
