"""The random numbers: published vectors, an independent scalar twin, and frozen golden values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.noise import (
    PICK_TOKEN,
    coin,
    gumbel,
    philox,
    portable_log,
    random_words,
    to_uniform,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TOKEN_IDS = st.integers(0, 300_000)


def scalar_philox(
    counter: list[int], key: list[int], bits: int, multipliers: list[int], steps: list[int]
) -> list[int]:
    """Any width of Philox-4 with 10 rounds, written from the paper in plain integers."""
    mask = 2**bits - 1
    for _ in range(10):
        high0, low0 = divmod(multipliers[0] * counter[0], 2**bits)
        high1, low1 = divmod(multipliers[1] * counter[2], 2**bits)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + steps[0]) & mask, (key[1] + steps[1]) & mask]
    return counter


def scalar_philox_32(counter: list[int], key: list[int]) -> list[int]:
    return scalar_philox(counter, key, 32, [0xD2511F53, 0xCD9E8D57], [0x9E3779B9, 0xBB67AE85])


def scalar_log(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = 1.0 / 21.0
    for odd in range(19, 1, -2):
        series = series * z + 1.0 / odd
    return exponent * 0.6931471805599453 + (2.0 * s + 2.0 * s * (z * series))


def scalar_gumbel(seed: int, sequence: int, position: int, purpose: int, token: int) -> float:
    key = [seed % 2**32, seed // 2**32]
    word = scalar_philox_32([token // 4, position, sequence, purpose], key)[token % 4]
    return -scalar_log(-scalar_log((word + 0.5) / 2**32))


# Random123's published known answers for philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, expected)]
    assert philox(words[0], (words[1][0], words[1][1])).tolist() == words[2]
    assert scalar_philox_32(words[0], words[1]) == words[2]


@given(st.lists(U64, min_size=4, max_size=4), U64, U64)
def test_the_scalar_twin_agrees_with_numpys_wider_philox(
    counter: list[int], key0: int, key1: int
) -> None:
    as_number = sum(word << (64 * place) for place, word in enumerate(counter))
    theirs = np.random.Philox(counter=as_number, key=key0 + (key1 << 64)).random_raw(4).tolist()
    # numpy steps the counter before it draws
    stepped = [(as_number + 1) % 2**256 >> (64 * place) & (2**64 - 1) for place in range(4)]
    multipliers = [0xD2E7470EE14C6C93, 0xCA5A826395121157]
    steps = [0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B]
    assert scalar_philox(stepped, [key0, key1], 64, multipliers, steps) == theirs


@given(U64, U32, U32, U32, st.lists(TOKEN_IDS, max_size=12))
def test_noise_equals_the_scalar_twin_to_the_bit(
    seed: int, sequence: int, position: int, purpose: int, ids: list[int]
) -> None:
    noise = gumbel(seed, sequence, position, purpose, np.array(ids, dtype=np.int64))
    assert noise.tolist() == [scalar_gumbel(seed, sequence, position, purpose, t) for t in ids]


def test_noise_is_frozen() -> None:
    """A change here changes every seeded text that users ever made. Do not update the values."""
    ids = np.array([0, 1, 2, 3, 4, 50256, 151935])
    assert [value.hex() for value in gumbel(42, 0, 7, PICK_TOKEN, ids).tolist()] == [
        "0x1.59b94631693dap+0", "0x1.a7dada4f1be66p-4", "0x1.3f05cd39309bap+0",
        "0x1.8f25552013089p-1", "0x1.e641a563952b4p+0", "0x1.c99e1ef90e2eap-2",
        "-0x1.bacec8239ee76p-3",
    ]  # fmt: skip
    top = 2**32 - 1
    assert [value.hex() for value in gumbel(2**64 - 1, top, top, top, ids).tolist()] == [
        "0x1.656a3101901d4p+1", "0x1.92c4c7423e76cp-1", "0x1.f335f1bce286ap-1",
        "-0x1.fdd79ef2f596cp-2", "0x1.3a7c3e25c6c66p+0", "0x1.e76445a59a6a2p+1",
        "0x1.e1b4ea0803a55p-1",
    ]  # fmt: skip


@given(U64, U32, U32, st.lists(TOKEN_IDS, min_size=1, max_size=40))
def test_a_word_does_not_depend_on_who_else_was_asked(
    seed: int, sequence: int, position: int, ids: list[int]
) -> None:
    together = random_words(seed, sequence, position, PICK_TOKEN, np.array(ids)).tolist()
    alone = [
        random_words(seed, sequence, position, PICK_TOKEN, np.array([token])).item()
        for token in ids
    ]
    assert together == alone


def test_a_whole_vocabulary_holds_the_same_words_as_a_few_ids() -> None:
    whole = random_words(5, 1, 9, PICK_TOKEN, np.arange(151_936))
    few = np.array([151_935, 3, 77_777, 4, 16_384, 16_383])
    assert random_words(5, 1, 9, PICK_TOKEN, few).tolist() == whole[few].tolist()
    chunked = gumbel(5, 1, 9, PICK_TOKEN, np.arange(151_936))
    assert gumbel(5, 1, 9, PICK_TOKEN, few).tolist() == chunked[few].tolist()


def test_no_ids_no_noise() -> None:
    assert gumbel(1, 0, 0, PICK_TOKEN, np.empty(0, dtype=np.int64)).size == 0


def test_every_coordinate_changes_the_noise() -> None:
    ids = np.arange(64)
    draws = [
        gumbel(seed, sequence, position, purpose, ids)
        for seed, sequence, position, purpose in [
            (0, 0, 0, 0), (1, 0, 0, 0), (2**32, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1),
        ]
    ]  # fmt: skip
    for first in range(len(draws)):
        for second in range(first):
            assert not np.any(draws[first] == draws[second])


@pytest.mark.parametrize("bad", [2**32, -1])
def test_a_coordinate_out_of_range_is_refused_not_wrapped(bad: int) -> None:
    with pytest.raises(OverflowError):
        random_words(0, 0, bad, PICK_TOKEN, np.arange(4))
    with pytest.raises(OverflowError):
        random_words(0, bad, 0, PICK_TOKEN, np.arange(4))


@given(st.floats(2.0**-33, 23.0))
def test_portable_log_is_as_good_as_the_library(x: float) -> None:
    assert portable_log(np.array([x])).item() == pytest.approx(math.log(x), rel=5e-16, abs=1e-300)


def test_extreme_words_give_finite_noise() -> None:
    uniform = np.array([0.5, 2**32 - 0.5]) * 2.0**-32
    low, high = (-portable_log(-portable_log(uniform))).tolist()
    assert low == pytest.approx(-math.log(33 * math.log(2)), rel=1e-14)
    assert high == pytest.approx(33 * math.log(2), rel=1e-9)


def test_noise_has_the_gumbel_distribution() -> None:
    noise = np.sort(gumbel(7, 0, 3, PICK_TOKEN, np.arange(100_000)))
    expected = np.exp(-np.exp(-noise))
    seen = (np.arange(noise.size) + 0.5) / noise.size
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is exceeded once in a thousand seeds
    assert np.abs(seen - expected).max() < 1.95 / math.sqrt(noise.size)
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 4),
)
def test_a_coin_is_the_number_of_token_0(
    seed: int, sequence: int, position: int, purpose: int
) -> None:
    words = random_words(seed, sequence, position, purpose, np.zeros(1, np.int64))
    assert coin(seed, sequence, position, purpose) == to_uniform(words)[0]
    assert 0 < coin(seed, sequence, position, purpose) < 1


def test_a_coin_does_not_wrap() -> None:
    with pytest.raises(OverflowError, match="32 bits"):
        coin(1, 0, 2**32, 2)
