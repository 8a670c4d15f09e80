"""Random numbers without a state: noise = f(seed, sequence, position, purpose, token id).

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11).
THE LAYOUT IS FROZEN: a seed printed today must give the same text in every later version and on
every backend. The golden test holds literal values; do not update them, ever.

    key      word 0  low half of the seed        word 1  high half of the seed
    counter  word 0  token id >> 2               word 1  position
             word 2  sequence index              word 3  purpose
    result   word `token id & 3` of the block belongs to the token

So one block serves four neighbouring tokens: a whole vocabulary costs V/4 blocks, and a few
candidates cost at most one each. Word r becomes u = (r + 0.5) / 2^32, then -log(-log(u)).
Everything after the integers is float64 `+ - * /` in the written order, the logarithm too: such
operations are exact to the bit in numpy, numba and CUDA (with contraction to fma switched off),
while library logarithms differ in their last bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Purposes keep the draws of one position apart. Never renumber; append only.
PICK_TOKEN: Final = 0  # Gumbel noise of the token choice, of every kind of sampler
XTC_COIN: Final = 1  # one uniform number, of token id 0: below xtc_probability, XTC applies
ACCEPT_COIN: Final = 2  # one uniform number, of token id 0: below some chance, a draft token holds
RESIDUAL: Final = 3  # Gumbel noise of what the target draws itself, where it throws that coin
DRAFT_TOKEN: Final = 4  # Gumbel noise of a drafter that draws from its own distribution

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF_SHIFT: Final = np.uint64(32)

_LN2: Final = 0.6931471805599453
_SQRT_HALF: Final = 0.7071067811865476
# log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.172: ten terms reach the last bit.
_ATANH_SERIES: Final = tuple(1.0 / (2 * term + 1) for term in range(10, 0, -1))

_CHUNK: Final = 16384  # tokens per pass: temporaries stay in the cache
_MAX_LANES: Final = 96  # above, numpy is the faster one

# A little above the largest number that a 32-bit word can give, 33 log 2.
MAX_GUMBEL: Final = 22.9


def philox(counter: ArrayLike, key: tuple[int, int]) -> NDArray[np.uint64]:
    """Blocks (..., 4) of 32-bit words, from counters (..., 4) of 32-bit words."""
    words = np.asarray(counter, dtype=np.uint64)
    c0, c1, c2, c3 = (words[..., lane] for lane in range(4))
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = (product1 >> _HALF_SHIFT) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> _HALF_SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & _LOW, product0 & _LOW
        k0 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF
        k1 = (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=-1)


@lru_cache(maxsize=_MAX_LANES)
def _lane_ones(n_lanes: int) -> int:
    return sum(1 << (64 * lane) for lane in range(n_lanes))


def _philox_lanes(
    blocks: NDArray[np.int64], rest: tuple[int, int, int], key: tuple[int, int]
) -> NDArray[np.uint64]:
    """As `philox` for counters (block, *rest), few of them: words (4, n).

    All lanes live in one Python integer, 64 bits apart, where a 32-bit word times a 32-bit
    constant does not reach the next lane: 10 us for 40 blocks, where numpy calls take 90.
    """
    ones = _lane_ones(blocks.size)
    low = ones * 0xFFFFFFFF
    m0, m1 = int(_MULTIPLIERS[0]), int(_MULTIPLIERS[1])
    c0 = int.from_bytes(blocks.astype("<u8").tobytes(), "little")
    c1, c2, c3 = (word * ones for word in rest)
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * m0, c2 * m1
        c0 = (product1 >> 32) & low ^ c1 ^ k0 * ones
        c2 = (product0 >> 32) & low ^ c3 ^ k1 * ones
        c1, c3 = product1 & low, product0 & low
        k0 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF
        k1 = (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    drawn = b"".join(word.to_bytes(8 * blocks.size, "little") for word in (c0, c1, c2, c3))
    return np.frombuffer(drawn, "<u8").reshape(4, -1)


def random_words(
    seed: int, sequence: int, position: int, purpose: int, token_ids: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """One 32-bit word per token id, in the order of the ids, which may be sparse and unsorted."""
    if not token_ids.size:
        return np.empty(0, dtype=np.uint64)
    rest = (position, sequence, purpose)
    _check_words(*rest)
    key = (seed & 0xFFFFFFFF, seed >> 32)
    blocks = token_ids >> 2
    words: NDArray[np.uint64]
    if token_ids.size <= _MAX_LANES:
        words = _philox_lanes(blocks, rest, key)[token_ids & 3, np.arange(blocks.size)]
        return words
    first, last = int(blocks.min()), int(blocks.max())
    # Dense ids share blocks; sparse ids get a block each. Same words either way.
    is_dense = last - first < token_ids.size
    counted = np.arange(first, last + 1) if is_dense else blocks
    counter = np.empty((counted.size, 4), dtype=np.uint32)
    counter[:, 0] = counted
    counter[:, 1:] = np.array(rest, dtype=np.uint32)
    rows = blocks - first if is_dense else np.arange(blocks.size)
    words = philox(counter, key)[rows, token_ids & 3]
    return words


def _check_words(*rest: int) -> None:
    # Wrapping would repeat another draw.
    if not all(0 <= word <= 0xFFFFFFFF for word in rest):
        raise OverflowError(f"position, sequence and purpose must fit into 32 bits, got {rest}")


def to_uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Strictly between 0 and 1."""
    uniform: NDArray[np.float64] = (words.astype(np.float64) + 0.5) * 2.0**-32
    return uniform


def coin(seed: int, sequence: int, position: int, purpose: int) -> float:
    """One uniform number of a purpose, strictly between 0 and 1: that of token id 0.

    In plain integers, since arrays take three times as long for a single block.
    """
    _check_words(position, sequence, purpose)
    c0, c1, c2, c3 = 0, position, sequence, purpose
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    m0, m1 = int(_MULTIPLIERS[0]), int(_MULTIPLIERS[1])
    for _ in range(_ROUNDS):
        product0, product1 = c0 * m0, c2 * m1
        c0, c1 = product1 >> 32 ^ c1 ^ k0, product1 & 0xFFFFFFFF
        c2, c3 = product0 >> 32 ^ c3 ^ k1, product0 & 0xFFFFFFFF
        k0 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF
        k1 = (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return (c0 + 0.5) * 2.0**-32


def gumbel(
    seed: int, sequence: int, position: int, purpose: int, token_ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Standard Gumbel noise per token id, between -3.2 and 22.9.

    `position` is the absolute index, in its sequence, of the token being picked (the first
    prompt token is 0); `sequence` numbers the sequences of one request.
    """
    noise = np.empty(token_ids.size, dtype=np.float64)
    for start in range(0, token_ids.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        noise[part] = to_gumbel(random_words(seed, sequence, position, purpose, token_ids[part]))
    return noise


def to_gumbel(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return -portable_log(-portable_log(to_uniform(words)))


def portable_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive normal numbers, the same bits on every IEEE machine."""
    mantissa, exponent = np.frexp(x)  # x = mantissa * 2**exponent, mantissa in [0.5, 1)
    is_small = mantissa < _SQRT_HALF
    mantissa = np.where(is_small, mantissa * 2.0, mantissa)
    whole = (exponent - is_small).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = np.full_like(z, _ATANH_SERIES[0])
    for coefficient in _ATANH_SERIES[1:]:
        series *= z
        series += coefficient
    twice = s + s
    result: NDArray[np.float64] = whole * _LN2 + (twice + twice * (z * series))
    return result
