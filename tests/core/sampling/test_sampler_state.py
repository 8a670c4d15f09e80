"""`Sampler`: the same text with drafts as without, copies, snapshots, and misuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.thoroughness import n_examples

from nextn.core.errors import ConfigError, FileFormatError, NonFiniteError
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler, pick

N_VOCAB = 60
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default": {},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "short window": {"frequency_penalty": 4.0, "repeat_last_n": 3},
    "whole text": {"frequency_penalty": 0.3, "repeat_last_n": -1, "temperature": 0.0},
    "dry": {"dry_multiplier": 2.0, "dry_penalty_last_n": -1, "temperature": 0.3},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05, "temperature": 2.0},
    "typical": {"typical_p": 0.6},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "adaptive_p": {
        "samplers": ("top_k", "adaptive_p"), "adaptive_target": 0.2, "adaptive_decay": 0.3,
    },
    "bias": {"logit_bias": ((2, -math.inf), (7, 3.0)), "temperature": 1.2},
    "everything": {
        "repeat_penalty": 1.2, "dry_multiplier": 1.0, "top_n_sigma": 3.0, "typical_p": 0.98,
        "xtc_probability": 0.3, "dynatemp_range": 0.4, "logit_bias": ((5, -1.5),),
        "samplers": ("top_k", "dry", "xtc", "penalties", "temperature", "typ_p", "adaptive_p"),
        "adaptive_target": 0.5,
    },
}  # fmt: skip
ALL = pytest.mark.parametrize("kind", KINDS)


def logits_after(tokens: list[int], n_vocab: int = N_VOCAB) -> NDArray[np.float32]:
    """A model: what comes next depends on the last two tokens only, so that texts repeat."""
    rng = np.random.default_rng([1, *tokens[-2:]])
    return rng.normal(0, 2.5, n_vocab).astype(np.float32)


def make(kind: str, seed: int = 7) -> Sampler:
    sampler = Sampler(SamplingParams(seed=seed, **KINDS[kind]), n_vocab=N_VOCAB)
    sampler.begin(PROMPT)
    return sampler


def step(sampler: Sampler, tokens: list[int]) -> int:
    token = sampler.pick(logits_after(tokens), tokens, len(tokens))
    sampler.accept(token)
    tokens.append(token)
    return token


def write(sampler: Sampler, n: int, tokens: list[int] | None = None) -> list[int]:
    tokens = PROMPT.copy() if tokens is None else tokens
    for _ in range(n):
        step(sampler, tokens)
    return tokens


@ALL
def test_a_pick_is_pure(kind: str) -> None:
    sampler, tokens = make(kind), write(make(kind), 20)
    write(sampler, 20)
    row = logits_after(tokens)
    row.flags.writeable = False
    before = sampler.save()
    first = sampler.pick(row, tokens, len(tokens))
    for other in range(5):
        sampler.pick(logits_after([other, other]), tokens, other)
    assert sampler.pick(row, tokens, len(tokens)) == first
    assert sampler.save() == before


@ALL
def test_the_text_depends_on_the_seed_only_where_it_should(kind: str) -> None:
    is_seeded = write(make(kind, seed=1), 40) != write(make(kind, seed=2), 40)
    assert is_seeded == (SamplingParams(**KINDS[kind]).temperature > 0)


@ALL
@settings(max_examples=n_examples(15))
@given(data=st.data())
def test_drafts_never_change_the_text(kind: str, data: st.DataObject) -> None:
    """Sample and match: copies draft, wrong at random places; every row is picked in order."""
    plain = make(kind)
    wanted = write(plain, 40)
    sampler, tokens = make(kind), PROMPT.copy()
    while len(tokens) < len(wanted):
        n = data.draw(st.integers(0, 5))
        draft = write(sampler.copy(), n, tokens.copy())[len(tokens) :]
        if n and data.draw(st.booleans()):
            place = data.draw(st.integers(0, n - 1))
            draft[place] = (draft[place] + 1) % N_VOCAB
        for row in range(n + 1):
            token = step(sampler, tokens)
            if row == n or token != draft[row]:
                break
    stop = len(wanted)
    assert tokens[:stop] == wanted
    for _ in range(len(tokens) - stop):
        step(plain, wanted)
    assert sampler.save() == plain.save()


@ALL
def test_copies_diverge_and_leave_the_original_alone(kind: str) -> None:
    sampler = make(kind)
    tokens = write(sampler, 10)
    before = sampler.save()
    twin = sampler.copy()
    assert twin.save() == before
    # Another text: tokens that nobody picked.
    for token in (11, 12, 11):
        twin.accept(token)
    write(twin, 10, [*tokens, 11, 12, 11])
    assert sampler.save() == before
    assert write(sampler, 10, tokens) == write(make(kind), 20)


@ALL
def test_a_loaded_sampler_goes_on_as_if_never_stopped(kind: str) -> None:
    sampler = make(kind)
    tokens = write(sampler, 15)
    restored = Sampler(sampler.params, n_vocab=N_VOCAB)
    restored.load(sampler.save())
    assert restored.save() == sampler.save()
    assert write(restored, 25, tokens.copy()) == write(sampler, 25, tokens)


def test_state_matters_to_those_that_have_one() -> None:
    """Or the tests above would compare nothing."""
    for kind in KINDS:
        sampler = make(kind)
        tokens = write(sampler, 30)
        fresh = Sampler(sampler.params, n_vocab=N_VOCAB)
        picks = []
        for other in (sampler, fresh):
            other._n_seen = len(tokens)
            picks.append([other.pick(logits_after([n]), tokens, n) for n in range(60)])
        has_state = not sampler.is_stateless and "dry" not in kind
        assert (picks[0] != picks[1]) == has_state, kind


def test_flags() -> None:
    flags = {kind: (make(kind).is_greedy, make(kind).is_stateless) for kind in KINDS}
    assert flags["greedy"] == (True, True)
    for kind in ("default", "xtc", "typical", "bias"):
        assert flags[kind] == (False, True)
    for kind in ("penalties", "whole text", "dry", "mirostat", "adaptive_p", "everything"):
        assert flags[kind] == (False, False)
    no_heat = {"temperature": 0.0}
    assert not Sampler(SamplingParams(typical_p=0.5, **no_heat), n_vocab=9).is_greedy  # type: ignore[arg-type]
    assert not Sampler(SamplingParams(samplers=("top_k",), **no_heat), n_vocab=9).is_greedy  # type: ignore[arg-type]
    assert Sampler(SamplingParams(mirostat=2, **no_heat), n_vocab=9).is_greedy  # type: ignore[arg-type]
    late = SamplingParams(samplers=("temperature", "xtc"), xtc_probability=1.0, temperature=0.0)
    assert Sampler(late, n_vocab=9).is_greedy  # one candidate is left when XTC comes


def test_long_and_short_rows_are_adjusted_alike() -> None:
    """Long rows are looked at in part only. Greedy and sampled, against all of the row."""
    rng = np.random.default_rng(0)
    row = np.round(rng.normal(0, 2, 20_000), 1).astype(np.float32)
    prompt = rng.integers(0, 20_000, 40).tolist() + [int(row.argmax())] * 3
    bias = tuple((int(token), -math.inf) for token in np.sort(np.argsort(row)[-30:]))
    for more in ({}, {"logit_bias": bias}, {"logit_bias": ((0, 9.5), (19_999, 12.0))}):
        for heat in (0.0, 1.0):
            kind: dict[str, Any] = {"repeat_penalty": 1.5, "presence_penalty": -1.0, **more}
            quick = SamplingParams(temperature=heat, top_k=40, min_p=0.0, top_p=1.0, **kind)
            # The same law, told in an order that leaves no short cut.
            slow = SamplingParams(
                temperature=heat, top_k=40, top_p=1.0, min_p=1e-300, **kind,
                samplers=("penalties", "min_p", "top_k", "temperature"),
            )  # fmt: skip
            picks = []
            for params in (quick, slow):
                sampler = Sampler(params, n_vocab=row.size)
                sampler.begin(prompt)
                picks.append([sampler.pick(row, (), position) for position in range(50)])
            assert picks[0] == picks[1]
            assert len(set(picks[0])) > 1 or heat == 0


def test_tokens_that_were_not_picked_do_not_steer() -> None:
    sampler = make("mirostat")
    sampler.accept(5)
    first = sampler._steering
    sampler.pick(logits_after([5]), (), 0)
    sampler.accept((sampler.pick(logits_after([5]), (), 0) + 1) % N_VOCAB)
    assert sampler._steering == first
    sampler.accept(sampler.pick(logits_after([5]), (), 0))
    assert sampler._steering != first


def test_biases_ban_and_force() -> None:
    row = logits_after([1])
    best = int(row.argmax())
    banned = SamplingParams(temperature=0.0, logit_bias=((best, -math.inf),))
    row_without = row.copy()
    row_without[best] = -np.inf
    assert Sampler(banned, n_vocab=N_VOCAB).pick(row) == row_without.argmax()
    forced = SamplingParams(logit_bias=((4, 1e30),))
    assert Sampler(forced, n_vocab=N_VOCAB).pick(row) == 4
    everything = tuple((token, -math.inf) for token in range(N_VOCAB))
    with pytest.raises(ConfigError, match="logit-bias leaves no token"):
        Sampler(SamplingParams(logit_bias=everything), n_vocab=N_VOCAB).pick(row)
    with pytest.raises(ConfigError, match="names token 60, but the vocabulary ends at 59"):
        Sampler(SamplingParams(logit_bias=((60, 1.0),)), n_vocab=N_VOCAB)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@ALL
def test_broken_logits_raise_and_give_no_token(kind: str, bad: float) -> None:
    row = logits_after([1])
    row[:] = bad if bad == -math.inf else row
    row[9] = bad
    with pytest.raises(NonFiniteError):
        make(kind).pick(row, PROMPT, len(PROMPT))


def test_misuse_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="expected 60 logits"):
        make("default").pick(np.zeros(59, np.float32))
    with pytest.raises(ValueError, match="history has 3 tokens, but the sampler has seen 11"):
        make("dry").pick(logits_after([1]), PROMPT[:3], 3)
    with pytest.raises(ValueError, match="use a Sampler"):
        pick(logits_after([1]), SamplingParams(mirostat=2), sequence=0, position=0)


def test_prompts_may_come_in_parts_and_as_arrays() -> None:
    whole, parts = make("whole text"), Sampler(make("whole text").params, n_vocab=N_VOCAB)
    parts.begin(np.array(PROMPT[:4]))
    parts.begin(PROMPT[4:])
    assert parts.save() == whole.save()


DAMAGED = [
    b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000,
    b'{"format":2,"n_seen":0,"steering":[],"window":[[],[]],"grammar":[]}',
    b'{"format":1,"n_seen":0,"steering":[],"window":[[],[]]}',
    b'{"format":1,"n_seen":-1,"steering":[],"window":[[],[]],"grammar":[]}',
    b'{"format":1,"n_seen":0,"steering":["x"],"window":[[],[]],"grammar":[]}',
    b'{"format":1,"n_seen":0,"steering":[NaN],"window":[[],[]],"grammar":[]}',
    b'{"format":1,"n_seen":0,"steering":[],"window":[[99],[1]],"grammar":[]}',
    b'{"format":1,"n_seen":5,"steering":[],"window":[[1],[true]],"grammar":[]}',
    b'{"format":1,"n_seen":5,"steering":[],"window":[[1,1],[1,1]],"grammar":[]}',
    b'{"format":1,"n_seen":5,"steering":[],"window":[[1],[0]],"grammar":[]}',
    b'{"format":1,"n_seen":5,"steering":[],"window":7,"grammar":[]}',
    b'{"format":1,"n_seen":5,"steering":[],"window":[[],[]],"grammar":[3]}',
    b'{"format":1,"n_seen":5,"steering":[],"window":[[],[]],"grammar":[],"more":1}',
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED)
def test_damaged_snapshots_are_refused_and_change_nothing(data: bytes) -> None:
    sampler = make("whole text")
    before = sampler.save()
    with pytest.raises(FileFormatError):
        sampler.load(data)
    assert sampler.save() == before


def test_snapshots_of_another_kind_are_refused() -> None:
    with pytest.raises(FileFormatError):
        make("default").load(make("mirostat").save())
    with pytest.raises(FileFormatError):
        make("mirostat").load(make("adaptive_p").save())
    with pytest.raises(FileFormatError):
        make("mirostat").load(make("default").save())
