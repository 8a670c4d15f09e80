"""The figures of a measurement against plain computations from all logits of both models."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.running import random_tokens
from support.tiny_models import TinyModel

from nextn import core
from nextn.convert.measure import side_by_side
from nextn.convert.measure.divergence import ScoredTokens, compare_rows
from nextn.convert.measure.fidelity import summarise
from nextn.convert.measure.fidelity_gates import judge_fidelity
from nextn.convert.measure.sample_text import sample_text
from nextn.convert.measure.side_by_side import score
from nextn.core.errors import NonFiniteError
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import NO_SPECULATION

Tiny = Callable[..., TinyModel]

N_CTX = 33
CHUNKS = [random_tokens(N_CTX, seed, n_vocab=256) for seed in range(4)]
TARGETS = np.array([3, 0, 6])  # of three rows


def load(model: TinyModel, device: str) -> Runtime:
    return core.load(model.path, device, n_ctx=N_CTX, spec=NO_SPECULATION)


def scored(measured: Runtime, base: Runtime, chunks: Sequence[Sequence[int]]) -> ScoredTokens:
    return score(measured, base, chunks, lambda done, total: None)


def plain_figures(measured: Runtime, base: Runtime) -> dict[str, Any]:
    """Token by token, as the definitions say it."""
    losses, base_losses, kls, tops, deltas = [], [], [], [], []
    for chunk in CHUNKS:
        q, p = (
            torch.log_softmax(torch.from_numpy(runtime.logits(chunk)).double(), dim=1)
            for runtime in (measured, base)
        )
        for row in range(N_CTX // 2, N_CTX - 1):
            token = chunk[row + 1]
            losses.append(-float(q[row, token]))
            base_losses.append(-float(p[row, token]))
            kls.append(float((p[row].exp() * (p[row] - q[row])).sum()))
            tops.append(float(q[row].argmax() == p[row].argmax()))
            deltas.append(float(q[row, token].exp() - p[row, token].exp()))
    n = len(losses)
    ratios = [mine - other for mine, other in zip(losses, base_losses, strict=True)]
    share = sum(tops) / n
    ordered = sorted(kls)
    return {
        "n": n,
        "perplexity": math.exp(sum(losses) / n),
        "perplexity_error": math.exp(sum(losses) / n) * standard_error(losses),
        "base_perplexity": math.exp(sum(base_losses) / n),
        "ln_ratio": sum(ratios) / n,
        "ln_ratio_error": standard_error(ratios),
        "kl": sum(kls) / n,
        "kl_error": standard_error(kls),
        "median": (ordered[(n - 1) // 2] + ordered[n // 2]) / 2,
        "max": max(kls),
        "share": share,
        "share_error": math.sqrt(share * (1 - share) / (n - 1)),
        "mean_delta": sum(deltas) / n,
        "rms": math.sqrt(sum(delta**2 for delta in deltas) / n),
    }


def standard_error(values: list[float]) -> float:
    n = len(values)
    mean = sum(values) / n
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)


@pytest.mark.parametrize("rows_at_once", [512, 7])
def test_figures_equal_plain_ones(
    rows_at_once: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent model, which starts each chunk anew, in its file's type on the CPU."""
    monkeypatch.setattr(side_by_side, "PROMPT_ROWS", rows_at_once)
    with (
        load(tiny("qwen35", quantise="Q8_0"), "cpu") as measured,
        load(tiny("qwen35"), "torch") as base,
    ):
        found = summarise(scored(measured, base, CHUNKS))
        want = plain_figures(measured, base)
    assert (found.n_chunks, found.n_tokens) == (4, want["n"]) == (4, 4 * 16)
    got = {
        "perplexity": found.perplexity.value,
        "perplexity_error": found.perplexity.error,
        "base_perplexity": found.base_perplexity.value,
        "ln_ratio": found.ln_ratio.value,
        "ln_ratio_error": found.ln_ratio.error,
        "kl": found.kl.value,
        "kl_error": found.kl.error,
        "median": found.kl_quantiles[0.5],
        "max": found.kl_quantiles[1.0],
        "share": found.same_top.value,
        "share_error": found.same_top.error,
        "mean_delta": found.delta_p.value,
        "rms": found.rms_delta_p.value,
    }
    del want["n"]
    assert got == pytest.approx(want, rel=1e-5, abs=1e-6)
    assert found.kl.value > 1e-6  # there is something to measure


def test_a_model_is_itself(tiny: Tiny, device: str) -> None:
    with load(tiny("qwen3"), device) as measured, load(tiny("qwen3"), device) as base:
        found = summarise(scored(measured, base, CHUNKS))
    assert (found.kl, found.ln_ratio) == ((0, 0, 0, 0), (0, 0, 0, 0))
    assert set(found.kl_quantiles.values()) == {0}
    assert found.same_top == (1, 0, 1, 1)
    assert found.rms_delta_p[:2] == (0, 0)
    assert found.perplexity == found.base_perplexity


def test_nan_names_the_model(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tiny("qwen3"), "torch") as measured, load(tiny("qwen3"), "torch") as base:
        reader = base.reader(N_CTX)
        whole = reader.logits

        def broken(*args: Any) -> Any:
            for rows in whole(*args):
                rows[2, 7] = np.nan
                yield rows

        monkeypatch.setattr(reader, "logits", broken)
        monkeypatch.setattr(base, "reader", lambda *_: reader)
        with pytest.raises(NonFiniteError, match=r"^the base: .*1 of \d+ logits are NaN"):
            scored(measured, base, CHUNKS)


# Rows of numbers ---------------------------------------------------------------------------------


def rows(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(3, 9)).astype(np.float32)


def test_masked_tokens_have_no_part() -> None:
    logits, base = rows(1), rows(2)
    wide, wide_base = (np.full((3, 12), -np.inf, np.float32) for _ in "qp")
    wide[:, :9], wide_base[:, :9] = logits, base
    plain, masked = compare_rows(logits, base, TARGETS), compare_rows(wide, wide_base, TARGETS)
    for mine, other in zip(plain, masked, strict=True):
        assert mine == pytest.approx(other, rel=1e-12)


def test_a_token_without_probability() -> None:
    logits, base = rows(1), rows(2)
    logits[1, 4] = -np.inf
    with pytest.raises(NonFiniteError, match="no probability at all"):
        compare_rows(logits, base, TARGETS)


def test_large_logits_do_not_overflow() -> None:
    logits, base = rows(1), rows(2)
    moved = compare_rows(logits + np.float32(2048), base, TARGETS)
    assert moved.kl == pytest.approx(compare_rows(logits, base, TARGETS).kl, abs=1e-3)


# Intervals and gates -----------------------------------------------------------------------------


def tokens_of(kl: Any) -> ScoredTokens:
    zeros = np.zeros_like(kl)
    return ScoredTokens(zeros - 1, zeros - 1, kl, kl < 1)


def test_chunks_are_what_intervals_draw() -> None:
    """Where chunks differ and their tokens do not, errors over tokens are too small."""
    kl = np.repeat([[0.2], [0.4], [0.9], [0.5]], 100, axis=1)
    found = summarise(tokens_of(kl)).kl
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.value == pytest.approx(found.value - found.low)
    # Student's interval of the chunks' means; a bootstrap of four is near it.
    student = 3.182 * kl[:, 0].std(ddof=1) / 2
    assert found.high - found.value == pytest.approx(student, rel=0.15)
    assert found.high - found.value > 10 * found.error


def test_two_chunks_have_no_interval() -> None:
    found = summarise(tokens_of(np.ones((2, 5))))
    assert found.kl == (1, 0, None, None)


def test_intervals_stay_possible() -> None:
    kl = np.zeros((3, 50))
    kl[0, 0] = 30.0
    found = summarise(tokens_of(kl))
    assert found.kl.low == 0
    assert found.same_top.high == 1


def test_gates_say_by_how_much() -> None:
    found = summarise(tokens_of(np.array([[0.5, 1.5], [0.5, 0.5], [0.5, 0.5]])))
    missed = judge_fidelity(found, max_kl=0.5, min_top1=0.9)
    assert [gate.line for gate in missed] == [
        "mean KL divergence 0.6667 > 0.5, by 0.1667", "same top token 0.8333 < 0.9, by 0.06667",
    ]  # fmt: skip
    assert not any(gate.ok for gate in missed)
    assert all(gate.ok for gate in judge_fidelity(found, max_kl=0.7, min_top1=0.8))
    assert judge_fidelity(found) == []


def test_the_built_in_text_stays() -> None:
    """Who changes it makes figures of releases incomparable: on purpose only."""
    digest = hashlib.sha256(sample_text().encode()).hexdigest()
    assert digest == "4725c7b79808e955a636c29c4a6be3bdf5114d13221dee11e6fb755f5872c9ce"
