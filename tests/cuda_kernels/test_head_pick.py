"""`head_pick` gives the token of `core/sampling`, or says that it is unsure; rarely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shim import sanitizer
from shim.launcher import HostLauncher
from shim.machine import HostMachine, Machine
from support.device_sequences import call
from support.picking_rows import (
    INF,
    Floats,
    any_params,
    any_row,
    defined,
    normal,
    requests_of,
)
from support.sass import whole
from support.thoroughness import n_examples

from nextn.core.backend import picking
from nextn.core.backend.interface import MAXIMA_BLOCK
from nextn.core.sampling.candidates import best_from_logits, weights
from nextn.core.sampling.noise import philox, random_words, to_gumbel
from nextn.core.sampling.params import SamplingParams
from nextn.cuda_kernels import compile as compile_module
from nextn.cuda_kernels import head_pick as module
from nextn.cuda_kernels.cache import CubinCache
from nextn.cuda_kernels.compile import Compiler
from nextn.cuda_kernels.head_pick import (
    Logits,
    RowPlaces,
    device_request,
    head_pick,
    head_summits,
    noise_of,
)
from nextn.cuda_kernels.kernel import Source

UNSURE = picking.UNSURE
SEQUENCE = 3
Ints = NDArray[np.int32]


def logits_of(machine: Machine, rows: Floats) -> Logits:
    shape = len(rows), -(-rows.shape[1] // MAXIMA_BLOCK)
    made = Logits(rows, np.full(shape, 7e7, np.float32), np.full(shape, 7e7, np.float32))
    call(machine, head_summits, made)
    return made


def picks(
    machine: Machine,
    rows: Floats,
    all_params: SamplingParams | list[SamplingParams],
    positions: Sequence[int] | None = None,
) -> list[int]:
    """Row i is of a sequence of its own, whose request is row n - 1 - i of the requests."""
    n = len(rows)
    if isinstance(all_params, SamplingParams):
        all_params = [all_params] * n
    at = np.array(positions if positions is not None else range(n), np.int32)
    numbers = np.arange(n, dtype=np.int32)
    requests = requests_of(all_params[::-1], SEQUENCE, rows.shape[1])
    places = RowPlaces(numbers, at - 1, numbers[::-1].copy())
    picked = np.full(n, 77, np.int32)
    call(machine, head_pick, logits_of(machine, rows), requests, places, picked)
    made: list[int] = picked.tolist()
    return made


def wants(
    rows: Floats, params: SamplingParams, positions: Sequence[int] | None = None
) -> list[int]:
    at = range(len(rows)) if positions is None else positions
    return [defined(row, params, SEQUENCE, i) for row, i in zip(rows, at, strict=True)]


# The noise ---------------------------------------------------------------------------------------


def test_the_noise_has_the_bits_of_the_definition(machine: Machine) -> None:
    rng, n = np.random.default_rng(5), 512
    for seed in (0, 2**64 - 1, 0x123456789ABCDEF, 2**32):
        key = seed & 0xFFFFFFFF, seed >> 32
        positions, sequences = rng.integers(0, 2**32, (2, n), dtype=np.uint32)
        tokens = rng.integers(0, 300_000, n, dtype=np.uint32)
        places = np.stack([*np.full((n, 2), key, np.uint32).T, positions, sequences], axis=1)
        words, noise = np.zeros(n, np.int32), np.zeros(n, np.float64)
        call(machine, noise_of, places.view(np.int32), tokens.view(np.int32), words, noise)
        counters = np.stack([tokens >> 2, positions, sequences, np.zeros_like(tokens)], axis=1)
        want = philox(counters, key)[np.arange(n), tokens & 3]
        np.testing.assert_array_equal(words.view(np.uint32), want)
        np.testing.assert_array_equal(noise.view(np.int64), to_gumbel(want).view(np.int64))
    one = random_words(7, 5, 11, 0, np.array([3, 9]))
    place, words = np.array([[7, 0, 11, 5]] * 2, np.int32), np.zeros(2, np.int32)
    call(machine, noise_of, place, np.array([3, 9], np.int32), words, np.zeros(2))
    assert words.view(np.uint32).tolist() == one.tolist()


NOISE = """
#include "noise.cuh"
extern "C" __global__ void noise(const NoisePlace* place, double* out) {
    out[threadIdx.x] = gumbel_noise(*place, threadIdx.x);
}
"""


def test_nothing_of_the_noise_is_contracted(
    compiler: Compiler, sass: None, nothing_compiles: None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Divisions are made of fused instructions; that the others are not is seen by comparing."""
    path = tmp_path / "noise.cu"
    path.write_text(NOISE)

    def fused(options: tuple[str, ...]) -> int:
        monkeypatch.setattr(compile_module, "OPTIONS", options)
        return whole(Compiler(CubinCache(None)).compile(Source(str(path)), 90), "noise").count(
            "DFMA"
        )

    own = compile_module.OPTIONS
    assert fused((*own, "--fmad=true")) >= fused(own) + 20


def test_the_code_is_short(compiler: Compiler, sass: None) -> None:
    """It runs once in a step: what is not in the instruction cache is waited for."""
    assert whole(compiler.compile(module.SOURCE, 90), "head_pick").size <= 4_500


# Any chain on any row ----------------------------------------------------------------------------

SIZES = st.one_of(st.integers(1, 300), st.integers(300, 9_000), st.sampled_from([20_000, 65_536]))


@settings(
    deadline=None,
    max_examples=n_examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(size=SIZES, seed=st.integers(0, 2**32))
@pytest.mark.slow
def test_any_chain_on_any_row(machine: Machine, size: int, seed: int) -> None:
    rng, n = np.random.default_rng(seed), 12
    rows = np.stack([any_row(rng, size) for _ in range(n)])
    all_params = [any_params(rng, size) for _ in range(n)]
    positions = rng.integers(1, 2**31, n).tolist()
    got = picks(machine, rows, all_params, positions)
    for row, params, position, token in zip(rows, all_params, positions, got, strict=True):
        want = defined(row, params, SEQUENCE, position)
        assert token in (want, UNSURE)


USUAL_SIZES = [1, 63, 64, 65, 1000, 4096, 16_385, 65_536, 151_936, 248_320]
if sanitizer.is_wanted():
    USUAL_SIZES = USUAL_SIZES[:-2]


@pytest.mark.parametrize("size", USUAL_SIZES)
def test_usual_rows_are_decided(machine: Machine, size: int) -> None:
    """The defaults, greedy, many candidates, a banned token; nothing of it needs the definition."""
    rows = normal(4, size)
    best = int(rows[0].argmax())
    for params in (
        SamplingParams(seed=2**63),
        SamplingParams(temperature=0),
        SamplingParams(top_k=picking.MAX_BEST, top_p=0.999, min_p=0, seed=4),
        SamplingParams(seed=5, logit_bias=((best, -INF),) if size > 1 else ()),
        SamplingParams(temperature=0, logit_bias=((best, -5.0),)),
    ):
        assert picks(machine, rows, params) == wants(rows, params)


@pytest.mark.slow
def test_it_is_rarely_unsure(machine: Machine) -> None:
    n_unsure = n = 0
    is_permuted = isinstance(machine, HostMachine) and machine.launcher.seed
    n_rows = 20 if is_permuted or sanitizer.is_wanted() else 300
    for seed, size in enumerate((500, 2_900, 4_001)):
        for params in (
            SamplingParams(seed=seed, top_p=0.9, min_p=0.01),
            SamplingParams(seed=seed, top_k=100, top_p=0.8, temperature=1.5),
        ):
            rows = normal(n_rows, size, seed)
            got, want = picks(machine, rows, params), wants(rows, params)
            unsure = [i for i, token in enumerate(got) if token == UNSURE]
            assert [want[i] if i in unsure else t for i, t in enumerate(got)] == want
            n, n_unsure = n + len(rows), n_unsure + len(unsure)
    assert n_unsure < 1e-3 * n


# Broken numbers, and borders ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 64, 200, 5_000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_broken_numbers_are_left_to_the_definition(
    machine: Machine, temperature: float, size: int
) -> None:
    bads = [(at, bad) for at in {0, size // 2, size - 1} for bad in (math.nan, -math.nan, INF)]
    rows = normal(len(bads) + 1, size)
    for row, (at, bad) in zip(rows, bads, strict=False):
        row[at] = bad
    rows[-1] = -INF
    assert picks(machine, rows, SamplingParams(temperature=temperature)) == [UNSURE] * len(rows)


def test_when_everything_is_banned(machine: Machine) -> None:
    rows = np.array([[1.0, 2.0, -INF]], np.float32)
    assert picks(machine, rows, SamplingParams(logit_bias=((0, -INF), (1, -INF)))) == [UNSURE]


def test_a_sum_that_hits_the_threshold(machine: Machine) -> None:
    rows = np.ones((1, 4), np.float32)
    for p, is_border in ((0.25, True), (0.5, True), (0.6, False), (0.75, True)):
        params = SamplingParams(top_k=4, top_p=p, min_p=0, samplers=("top_k", "top_p"))
        assert (picks(machine, rows, params) == [UNSURE]) is is_border


@pytest.mark.parametrize("at", [0, 3, 17, 38])
def test_planted_borders(machine: Machine, at: int) -> None:
    """Thresholds at, and closer than the margin to, a running sum; and a little farther away."""
    row = normal(1, 2_000, at, spread=1.0)[0]
    reached = weights(best_from_logits(row, 40)).cumsum()
    border = float(reached[at] / reached[-1])
    for nudge, is_border in ((0, 1), (1e-15, 1), (-1e-11, 1), (1e-7, 0), (-1e-7, 0)):
        params = SamplingParams(
            top_k=40, top_p=border * (1 + nudge), seed=9, samplers=("top_k", "top_p")
        )
        (got,) = picks(machine, row[None], params)
        assert (got == UNSURE) == bool(is_border)
        if not is_border:
            assert got == defined(row, params, SEQUENCE, 0)


def test_a_logit_at_the_threshold_of_min_p(machine: Machine) -> None:
    """No exponential is in it, so that there is nothing to be unsure of."""
    for p in (0.05, 0.1, 0.3):
        edge = np.float32(4.0 + math.log(p))
        around = [np.nextafter(edge, np.float32(-INF)), edge, np.nextafter(edge, np.float32(INF))]
        rows = np.array([[4.0, *around]] * 100, np.float32)
        params = SamplingParams(top_k=4, top_p=1, min_p=p, temperature=1, seed=3)
        assert picks(machine, rows, params) == wants(rows, params)


def test_equal_scores_go_to_the_lower_id(machine: Machine) -> None:
    rows = np.full((2, 700), 2.0, np.float32)
    rows[1, :130] = 1.0
    assert picks(machine, rows, SamplingParams(temperature=0)) == [0, 130]
    params = SamplingParams(top_k=3, top_p=1, min_p=0, temperature=1)
    assert set(picks(machine, np.repeat(rows[1:], 60, axis=0), params)) == {130, 131, 132}


@pytest.mark.parametrize("size", [1_500, 40_000])
@pytest.mark.parametrize("n_values", [1, 2, 7])
def test_more_equal_logits_than_there_is_room_for(
    machine: Machine, n_values: int, size: int
) -> None:
    """So that the best are looked for by value and place; some of the equal ones are biased."""
    rows = np.random.default_rng(size).integers(0, n_values, (4, size)).astype(np.float32)
    bias = ((0, -INF), (1, 0.0), (5, -0.5), (size - 1, 0.25))
    for top_k in (2, 40, 256):
        params = SamplingParams(top_k=top_k, top_p=1, min_p=0, logit_bias=bias, seed=2)
        assert picks(machine, rows, params) == wants(rows, params)


def test_equal_scores_go_to_the_lower_id_after_the_noise_too(machine: Machine) -> None:
    """At these places of seed 0 two of 256 scores round to the same best."""
    rows = np.full((3, 256), 9e11, np.float32)
    params = SamplingParams(top_k=256, top_p=1, min_p=0, temperature=1)
    assert picks(machine, rows, params, [5_636, 51_689, 53_013]) == [63, 39, 15]
    assert wants(rows, params, [5_636, 51_689, 53_013]) == [63, 39, 15]


@pytest.mark.parametrize("size", [3, 50, 300])
def test_fewer_tokens_than_are_asked_for(machine: Machine, size: int) -> None:
    """Masked and banned ones are none; what is left is decided."""
    rows = normal(20, size, spread=1.0)
    rows[:, 1] = -INF
    bans = tuple((token, -INF) for token in range(2, size, 5))
    params = SamplingParams(top_k=256, top_p=1, min_p=0, temperature=2, logit_bias=bans, seed=1)
    assert picks(machine, rows, params) == wants(rows, params)


def test_both_zeros_are_equal(machine: Machine) -> None:
    rows = np.full((3, 300), -1.0, np.float32)
    rows[0, [70, 200]] = 0.0, -0.0
    rows[1, [70, 200]] = -0.0, 0.0
    rows[2, [100, 101]] = -0.0, 0.0
    assert picks(machine, rows, SamplingParams(temperature=0)) == [70, 70, 100]
    params = SamplingParams(top_k=2, temperature=1, top_p=1, min_p=0, seed=8)
    rows = np.repeat(rows, 20, axis=0)
    assert picks(machine, rows, params) == wants(rows, params)


def test_scores_that_swallow_the_noise_are_left_to_the_definition(machine: Machine) -> None:
    params = SamplingParams(temperature=1e-30, top_p=1, min_p=0)
    assert picks(machine, normal(1, 100), params) == [UNSURE]


# Rows, requests, launchers -----------------------------------------------------------------------


def test_rows_find_their_texts(machine: Machine) -> None:
    """Rows without a text, texts without a request, several rows of one text, some of a step."""
    rows = normal(6, 777)
    params = [SamplingParams(seed=1), SamplingParams(temperature=0)]
    requests = requests_of(params, SEQUENCE, 777)
    sequence_of = np.array([0, 2, -1, 1, 1, 1, 2, 0], np.int32)
    positions = np.array([4, 9, 0, 20, 21, 22, 10, 5], np.int32)
    out_rows = np.array([0, 2, 3, 5, 6, 7], np.int32)
    places = RowPlaces(sequence_of, positions, np.array([1, 0, -1], np.int32), out_rows)
    picked = np.zeros(6, np.int32)
    call(machine, head_pick, logits_of(machine, rows), requests, places, picked)
    greedy = [int(row.argmax()) for row in rows]
    sampled = [
        defined(row, params[0], SEQUENCE, i) for row, i in zip(rows[2:4], (21, 23), strict=True)
    ]
    assert picked.tolist() == [greedy[0], UNSURE, *sampled, UNSURE, greedy[5]]


def test_rows_may_be_longer_than_what_counts(machine: Machine) -> None:
    rows = np.full((3, 130), 50.0, np.float32)
    rows[:, :100] = normal(3, 100)
    maxima = np.full((3, 5), 99.0, np.float32)
    made = Logits(rows, maxima, n=100)
    call(machine, head_summits, made)
    assert (maxima[:, 2:] == 99).all()
    numbers, picked = np.arange(3, dtype=np.int32), np.zeros(3, np.int32)
    requests = requests_of([SamplingParams(seed=6)], SEQUENCE, 100)
    places = RowPlaces(numbers, numbers, np.zeros(3, np.int32))
    call(machine, head_pick, made, requests, places, picked)
    assert picked.tolist() == wants(rows[:, :100], SamplingParams(seed=6), [1, 2, 3])


@pytest.mark.parametrize("size", [1, 64, 100, 2_047, 2_049, 9_000])
def test_summits(machine: Machine, size: int) -> None:
    rows = normal(5, size)
    rows[1, size // 2] = math.nan
    rows[2, :64] = -INF
    rows[3, size - 1] = -math.nan
    made = logits_of(machine, rows)
    for i, row in enumerate(rows):
        for b in range(made.n_blocks):
            block = row[b * MAXIMA_BLOCK : (b + 1) * MAXIMA_BLOCK].astype(np.float64)
            best = block.max()
            np.testing.assert_equal(made.maxima[i, b], best)
            if np.isfinite(best):
                assert made.sums is not None
                np.testing.assert_allclose(made.sums[i, b], np.exp(block - best).sum(), rtol=1e-6)
    assert made.sums is None or made.sums[2, 0] == 0


def test_a_pick_does_not_depend_on_its_company(machine: Machine) -> None:
    rows, params = normal(7, 5_001), SamplingParams(top_k=100, seed=4)
    together = picks(machine, rows, params, [9] * 7)
    assert together == [picks(machine, row[None], params, [9])[0] for row in rows]
    assert together == picks(machine, rows, params, [9] * 7)


def test_words_are_those_of_the_host() -> None:
    names = ("MAX_BIASES", "MAX_FILTERS", "FIRST_FILTER", "FILTER_WORDS", "N_BIASES", "BIAS_IDS")
    for name in (*names, "BIAS_VALUES", "N_FILTERS"):
        assert getattr(module, name) == getattr(picking, name)
    assert module.MAXIMA_BLOCK == MAXIMA_BLOCK
    text = (module.SOURCE.path.parent / "include/pick.cuh").read_text()
    assert f"#define MAX_BEST {picking.MAX_BEST}" in text
    assert [picking.N_VOCAB, picking.N_BEST, picking.N_BIASES] == [0, 1, 2]
    assert [picking.KEY_LOW, picking.KEY_HIGH, picking.SEQUENCE] == [5, 6, 7]
    words = (module.SOURCE.path.parent / "include/request.cuh").read_text()
    assert f"#define MAX_BIASES {picking.MAX_BIASES}" in words
    assert f"#define MAX_FILTERS {picking.MAX_FILTERS}" in words
    kinds = picking.TOP_K, picking.TOP_P, picking.MIN_P, picking.TEMPERATURE
    assert kinds == (0, 1, 2, 3)


def test_wrong_shapes_are_told() -> None:
    launcher, numbers = HostLauncher(), np.zeros(2, np.int32)
    made = logits_of(HostMachine(0), normal(2, 300))
    requests, places = np.zeros((1, module.REQUEST_WORDS), np.int64), RowPlaces(*[numbers] * 3)
    cases: list[tuple[str, Any]] = [
        ("have 161 words", lambda: head_pick(launcher, made, requests[:, 1:], places, numbers)),
        ("1 picked", lambda: head_pick(launcher, made, requests, places, numbers[:1])),
        ("maxima", lambda: head_summits(launcher, Logits(made.rows, made.maxima[:, :4]))),
        ("sums", lambda: head_summits(launcher, Logits(made.rows, made.maxima, made.maxima[:1]))),
        ("301 logits", lambda: head_summits(launcher, Logits(made.rows, made.maxima, n=301))),
        ("1 sequences", lambda: head_pick(
            launcher, made, requests, RowPlaces(numbers[:1], numbers, numbers), numbers)),
        ("65 of them", lambda: device_request(
            np.array([9, 1, 65, 0, 0, 0, 0, 0, 0]), np.zeros(65, np.int64), np.zeros(65))),
        ("12 words", lambda: device_request(
            np.zeros(12, np.int64), np.zeros(0, np.int64), np.zeros(0))),
    ]  # fmt: skip
    for message, attempt in cases:
        with pytest.raises(ValueError, match=message):
            attempt()
