"""The kernel that picks tokens gives what the definition gives, or says that it is unsure."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nextn.core.backend import picking
from nextn.core.backend.cpu.kernels.sample import PICK, write_pick
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.picker import Picker
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.interface import MAXIMA_BLOCK, HostOutput
from nextn.core.errors import ConfigError, NonFiniteError
from nextn.core.sampling.candidates import best_from_logits, weights
from nextn.core.sampling.native_picks import make_pick_request
from nextn.core.sampling.order import DEFAULT_ORDER
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Floats = NDArray[np.float32]
INF = math.inf
SET_NAMES = [name for name, made in SETS.items() if made.is_available()]
MAX_WORD = 2**32 - 1


@cache
def kernels(set_name: str) -> Kernels:
    made = Kernels(SETS[set_name]())
    made.get({"pick": write_pick}, kinds={"pick": PICK})
    return made


def maxima_of(row: Floats) -> Floats:
    starts = range(0, row.size, MAXIMA_BLOCK)
    return np.array([row[start : start + MAXIMA_BLOCK].max() for start in starts], np.float32)


def output_of(row: Floats, set_name: str = SET_NAMES[0]) -> HostOutput:
    """What a backend gives out for one row; behind it there is nothing that may be read."""
    logits, maxima = row.reshape(1, -1).copy(), maxima_of(row).reshape(1, -1)
    return HostOutput(logits, {}, maxima, Picker(kernels(set_name), logits, maxima).pick)


def native(row: Floats, params: SamplingParams, *, set_name: str = SET_NAMES[0],
           sequence: int = 0, position: int = 0) -> int:  # fmt: skip
    request = make_pick_request(params, sequence, row.size)
    assert request is not None
    pick = output_of(row, set_name).pick
    assert pick is not None
    return pick(0, request.address, position)


def defined(row: Floats, params: SamplingParams, sequence: int = 0, position: int = 0) -> int:
    return Sampler(params, n_vocab=row.size, sequence=sequence).pick(row, (), position)


def normal(size: int, seed: int = 0, spread: float = 3.0) -> Floats:
    return np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)


# Any chain on any row ----------------------------------------------------------------------------

SIZES = st.one_of(st.integers(1, 300), st.integers(300, 9_000), st.sampled_from([20_000, 65_536]))
FILTERS = ("top_p", "min_p", "temperature", "top_k")
PROBABILITIES = st.one_of(st.sampled_from([0.05, 0.25, 0.5, 0.75, 0.95, 1.0]), st.floats(1e-6, 1))


@st.composite
def rows(draw: Callable[..., Any]) -> Floats:
    """Ties, masks, huge and equal logits, both zeros."""
    size, seed = draw(SIZES), draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    row = rng.normal(
        draw(st.sampled_from([0, -30, 50])), draw(st.sampled_from([0, 1e-3, 1, 4, 1e4])), size
    )
    if draw(st.booleans()):
        row = np.round(row * 4) / 4 * rng.choice([-1.0, 1.0])
    masked = draw(st.sampled_from([0, 0, 0.3, 0.99, 1]))
    row[rng.random(size) < masked] = -INF
    row[rng.integers(size)] = draw(st.sampled_from([0.0, -0.0, 3e38, 12.5]))
    made: Floats = row.astype(np.float32)
    return made


@st.composite
def chains(draw: Callable[..., Any]) -> SamplingParams:
    later = draw(st.lists(st.sampled_from(FILTERS), max_size=6))
    temperature = draw(st.sampled_from([0.0, 1.0, 0.8, 1e-3, 1e-30, 1.7]))
    return SamplingParams(
        temperature=temperature,
        top_k=draw(st.one_of(st.integers(1, 64), st.integers(1, picking.MAX_BEST))),
        top_p=draw(PROBABILITIES),
        min_p=draw(st.one_of(st.just(0.0), PROBABILITIES)),
        min_keep=draw(st.sampled_from([0, 0, 1, 3, 500])),
        seed=draw(st.integers(0, 2**64 - 1)),
        samplers=("top_k", *later),
    )


def check(row: Floats, params: SamplingParams, sequence: int, position: int, name: str) -> None:
    got = native(row, params, set_name=name, sequence=sequence, position=position)
    try:
        want = defined(row, params, sequence, position)
    except (NonFiniteError, ConfigError):
        want = picking.UNSURE
    assert got in (want, picking.UNSURE)
    through = Sampler(params, n_vocab=row.size, sequence=sequence)
    if want != picking.UNSURE:
        assert through.pick_row(output_of(row, name), 0, (), position) == want


PLACES = st.one_of(st.integers(0, 5_000), st.just(MAX_WORD))


@pytest.mark.parametrize("name", SET_NAMES)
@settings(deadline=None)  # the first example compiles
@given(rows(), chains(), PLACES, PLACES)
def test_any_chain_on_any_row(
    name: str, row: Floats, params: SamplingParams, sequence: int, position: int
) -> None:
    check(row, params, sequence, position, name)


BIASES = st.dictionaries(
    st.integers(0, 299), st.sampled_from([-INF, -1e300, -7.25, -0.0, 0.5, 1e300, 40.0]), max_size=64
)


@pytest.mark.parametrize("name", SET_NAMES)
@settings(deadline=None)
@given(rows(), chains(), BIASES)
def test_biases(name: str, row: Floats, params: SamplingParams, biases: dict[int, float]) -> None:
    pairs = tuple(sorted((token, bias) for token, bias in biases.items() if token < row.size))
    with_biases = SamplingParams(**{**fields(params), "logit_bias": pairs})
    check(row, with_biases, 0, 7, name)


def fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


@pytest.mark.parametrize("name", SET_NAMES)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 4096, 16_384, 65_536, 151_936, 248_320])
def test_usual_rows_are_decided_natively(size: int, name: str) -> None:
    """The defaults, greedy, many candidates, a banned token; nothing of it needs the definition."""
    best = int(normal(size).argmax())
    for params in (
        SamplingParams(seed=2**63),
        SamplingParams(temperature=0),
        SamplingParams(top_k=picking.MAX_BEST, top_p=0.999, min_p=0, seed=4),
        SamplingParams(seed=5, logit_bias=((best, -INF),) if size > 1 else ()),
        SamplingParams(temperature=0, logit_bias=((best, -5.0),)),
    ):
        for position in range(12):
            row = normal(size, position)
            want = defined(row, params, 3, position)
            assert native(row, params, set_name=name, sequence=3, position=position) == want


def test_it_is_rarely_unsure() -> None:
    row, n = normal(32_000), 100_000
    output = output_of(row)
    assert output.pick is not None
    drawn = np.empty(n, np.int64)
    for seed in range(10):
        request = make_pick_request(SamplingParams(seed=seed, top_p=0.9, min_p=0.01), 0, row.size)
        assert request is not None
        for position in range(n // 10):
            drawn[seed * n // 10 + position] = output.pick(0, request.address, position)
    assert np.count_nonzero(drawn == picking.UNSURE) < 1e-4 * n
    assert len(np.unique(drawn)) > 5


def test_other_rows_are_rarely_near_a_threshold() -> None:
    n_unsure = sum(
        native(normal(500, seed), SamplingParams(top_p=0.9, seed=1)) == picking.UNSURE
        for seed in range(3_000)
    )
    assert n_unsure == 0


# Broken numbers, and borders ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SET_NAMES)
@pytest.mark.parametrize("size", [1, 15, 64, 200, 5_000])
@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_broken_numbers_are_left_to_the_definition(
    temperature: float, bad: float, size: int, name: str
) -> None:
    params = SamplingParams(temperature=temperature)
    for at in {0, size // 2, size - 1}:
        row = normal(size)
        row[at] = bad
        assert native(row, params, set_name=name) == picking.UNSURE
        with pytest.raises(NonFiniteError):
            Sampler(params, n_vocab=size).pick_row(output_of(row, name), 0)
    nothing = np.full(size, -INF, np.float32)
    assert native(nothing, params, set_name=name) == picking.UNSURE


def test_when_everything_is_banned() -> None:
    row = np.array([1.0, 2.0, -INF], np.float32)
    params = SamplingParams(logit_bias=((0, -INF), (1, -INF)))
    assert native(row, params) == picking.UNSURE
    with pytest.raises(ConfigError, match="logit-bias leaves no token"):
        Sampler(params, n_vocab=3).pick_row(output_of(row), 0)


def test_a_sum_that_hits_the_threshold() -> None:
    row = np.array([1.0, 1.0, 1.0, 1.0], np.float32)
    for p, is_border in ((0.25, True), (0.5, True), (0.6, False), (0.75, True)):
        params = SamplingParams(top_k=4, top_p=p, min_p=0, samplers=("top_k", "top_p"))
        assert (native(row, params) == picking.UNSURE) is is_border


@pytest.mark.parametrize("name", SET_NAMES)
@pytest.mark.parametrize("at", [0, 3, 17, 38])
def test_planted_borders(at: int, name: str) -> None:
    """Thresholds at, and closer than the margin to, a running sum; and a little farther away."""
    row = normal(2_000, at, spread=1.0)
    reached = weights(best_from_logits(row, 40)).cumsum()
    border = float(reached[at] / reached[-1])
    for nudge, is_border in ((0, 1), (1e-15, 1), (-1e-11, 1), (1e-7, 0), (-1e-7, 0)):
        params = SamplingParams(
            top_k=40, top_p=border * (1 + nudge), seed=9, samplers=("top_k", "top_p")
        )
        got = native(row, params, set_name=name)
        assert (got == picking.UNSURE) == bool(is_border)
        if not is_border:
            assert got == defined(row, params)


def test_a_logit_at_the_threshold_of_min_p() -> None:
    """No exponential is in it, so that there is nothing to be unsure of."""
    for p in (0.05, 0.1, 0.3):
        lowest = 4.0 + math.log(p)
        edge = np.float32(lowest)
        around = [np.nextafter(edge, np.float32(-INF)), edge, np.nextafter(edge, np.float32(INF))]
        row = np.array([4.0, *around], np.float32)
        params = SamplingParams(top_k=4, top_p=1, min_p=p, temperature=1, seed=3)
        for position in range(300):
            assert native(row, params, position=position) == defined(row, params, 0, position)


def test_equal_scores_go_to_the_lower_id() -> None:
    row = np.full(700, 2.0, np.float32)
    assert native(row, SamplingParams(temperature=0)) == 0
    row[:130] = 1.0
    assert native(row, SamplingParams(temperature=0)) == 130
    params = SamplingParams(top_k=3, top_p=1, min_p=0, temperature=1)
    assert {native(row, params, position=i) for i in range(60)} == {130, 131, 132}


def test_scores_that_swallow_the_noise_are_left_to_the_definition() -> None:
    params = SamplingParams(temperature=1e-30, top_p=1, min_p=0)
    assert native(normal(100), params) == picking.UNSURE


# What is asked for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"top_k": 0},
        {"top_k": picking.MAX_BEST + 1},
        {"samplers": ("temperature", "top_k")},
        {"samplers": ("top_k",) + ("temperature",) * picking.MAX_FILTERS},
        {"repeat_penalty": 1.1},
        {"dry_multiplier": 0.8},
        {"xtc_probability": 0.5},
        {"typical_p": 0.9},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.5},
        {"mirostat": 2},
        {"logit_bias": tuple((token, 1.0) for token in range(picking.MAX_BIASES + 1))},
    ],
)
def test_other_chains_need_the_definition(changed: dict[str, Any]) -> None:
    assert make_pick_request(SamplingParams(**changed), 0, 1000) is None


def test_a_sampler_with_a_state_never_asks() -> None:
    def refuse(row: int, request: int, position: int) -> int:
        raise AssertionError("asked")

    row = normal(100)
    output = HostOutput(row.reshape(1, -1), {}, None, refuse)
    adaptive = (*DEFAULT_ORDER, "adaptive_p")
    for params in (
        SamplingParams(samplers=adaptive, adaptive_target=0.5),
        SamplingParams(
            temperature=0, samplers=adaptive, adaptive_target=0.5, logit_bias=((1, 1.0),)
        ),
        SamplingParams(mirostat=2),
    ):
        assert 0 <= Sampler(params, n_vocab=100).pick_row(output, 0) < 100
    with pytest.raises(AssertionError, match="asked"):
        Sampler(SamplingParams(), n_vocab=100).pick_row(output, 0)


def test_greedy_needs_no_filters() -> None:
    """They keep the best token; so also those that have no native form."""
    row = normal(3_000)
    for params in (
        SamplingParams(temperature=0, top_k=0),
        SamplingParams(temperature=0, top_k=5_000, top_n_sigma=2.0),
    ):
        assert native(row, params) == row.argmax()


def test_without_a_backend_that_picks() -> None:
    row = normal(500)
    sampler = Sampler(SamplingParams(seed=3), n_vocab=500)
    logits, maxima = row.reshape(1, -1), maxima_of(row).reshape(1, -1)
    for output in (HostOutput(logits, {}), HostOutput(logits, {}, maxima)):
        assert sampler.pick_row(output, 0, (), 5) == defined(row, SamplingParams(seed=3), 0, 5)


def test_rows_of_a_step_are_told_apart() -> None:
    table = np.stack([normal(777, seed) for seed in range(5)])
    maxima = np.stack([maxima_of(row) for row in table])
    picker = Picker(kernels(SET_NAMES[0]), table, maxima)
    params = SamplingParams(seed=8)
    sampler = Sampler(params, n_vocab=777)
    pick = partial(sampler.pick_row, HostOutput(table, {}, maxima, picker.pick))
    for i, row in enumerate(table):
        assert pick(i, (), 4) == defined(row, params, 0, 4)
