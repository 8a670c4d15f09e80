"""Rates, latencies, drift."""

from __future__ import annotations

import pytest

from nextn.core.bench.record import Chunk, Phases, Sample
from nextn.core.bench.times import blocks, decoding, reading, spread, times_of


def sample(chunks: list[tuple[float, int]], **others: object) -> Sample:
    made = Sample("x", "p", "c", chunks=[Chunk(*each) for each in chunks])
    made.prompt_n, made.predicted_n = 30, sum(n for _, n in chunks)
    made.total_ms = chunks[-1][0]
    for name, value in others.items():
        setattr(made, name, value)
    return made


def test_rates_are_of_totals_and_without_the_prompt() -> None:
    fast = sample([(100, 1), (110, 10)])
    slow = sample([(500, 1), (590, 10)], prompt="q")
    times = times_of([fast, slow])
    assert times.avg_ts == pytest.approx(20 / 0.100)
    assert times.prompt_ts == pytest.approx(60 / 0.600)
    assert times.ttft is not None
    assert (times.ttft.mean, times.ttft.p50, times.ttft.p95) == (300, 100, 500)


def test_latency_by_chunk_and_by_token() -> None:
    """Four tokens after 8 ms are one gap of 8, or four of 2."""
    times = times_of([sample([(0, 1), (8, 4), (9, 1)])])
    assert times.itl_chunk is not None
    assert times.itl_token is not None
    assert (times.itl_chunk.mean, times.itl_chunk.p95) == (4.5, 8)
    assert times.itl_token.mean == pytest.approx(9 / 5)
    assert times.itl_token.p50 == 2


def test_percentiles_are_of_what_there_is() -> None:
    assert spread([]) is None
    assert spread([3.0, 1.0, 2.0]) == (2.0, 2.0, 3.0)
    assert spread([1.0, 9.0], [19, 1]) == (1.4, 1.0, 1.0)


def test_rounds() -> None:
    one = sample([(5, 1), (15, 2), (25, 2)], rounds=2, phases=Phases(2, 4, 6, 8, 0))
    times = times_of([one, one])
    assert times.round_ms == 10
    assert times.phases == (1, 2, 3, 4, 0)
    assert times_of([one, sample([(5, 1), (9, 1)])]).round_ms is None  # unknown of one


def test_repetitions_and_drift() -> None:
    made = [sample([(0, 1), (10 if i < 3 else 20, 10)], repetition=i) for i in range(6)]
    times = times_of(made)
    assert times.samples_ts == pytest.approx([1000] * 3 + [500] * 3)
    assert times.drift == pytest.approx(0.5)
    assert times_of(made[:4]).drift is None


def test_pairs() -> None:
    """The turns of a chat belong together; what only one side wrote is left out."""
    mine = [sample([(0, 1), (4, 2)], turn=i, repetition=r) for i in range(2) for r in range(3)]
    base = [sample([(0, 1), (8, 2)], turn=i, repetition=r) for i in range(2) for r in range(2)]
    found = blocks(mine, base, decoding)
    assert found == {"p": [(4, 8, 4, 16)] * 2}


def test_blocks_are_in_the_order_of_the_run() -> None:
    """Not in that of a set, which differs between processes: one seed has to draw one interval."""
    made = [sample([(0, 1), (4 + r, 2)], repetition=r) for r in range(9)]
    assert [block.ms for block in blocks(made, made, decoding)["p"]] == [4 + r for r in range(9)]


def test_whole_texts_at_once_have_no_decoding_rate() -> None:
    assert times_of([sample([(50, 20)])]).avg_ts == 0
    assert blocks([sample([(50, 20)])], [sample([(50, 20)])], decoding) == {}


def test_a_prompt_from_the_cache_has_no_reading_rate() -> None:
    made = [sample([(5, 1), (9, 3)], cached_n=30)]
    assert blocks(made, made, reading) == {}
    assert len(blocks(made, made, decoding)) == 1


def test_users_at_once() -> None:
    made = [
        sample([(0, 1), (1000, 9)], concurrency=2, started_s=start, prompt=str(start))
        for start in (0.0, 0.5, 1.0)
    ]
    times = times_of(made)
    assert times.avg_ts == pytest.approx(9)
    assert times.aggregate_ts == pytest.approx(30 / 2.0)
