"""The frozen noise of `core/sampling/noise.py`, and exponentials, for 8 tokens at a time.

Words are integers and the rest is float64 `+ - * /` in the written order, so that every
instruction set gives the bits of the definition. No fma: it would round once where that rounds
twice.
"""

from __future__ import annotations

import math
from typing import Final

from ..emit import F64, I64, Emitter, Value, vector

WIDTH: Final = 8
F64X8, I64X8 = vector(F64, WIDTH), vector(I64, WIDTH)

_LOW: Final = 0xFFFFFFFF
_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)

_LN2: Final = 0.6931471805599453
_SQRT_HALF: Final = 0.7071067811865476
_ATANH_SERIES: Final = tuple(1.0 / (2 * term + 1) for term in range(10, 0, -1))

# A float64 of this magnitude is the integer in its low bits: 2^52 + n has the bits of n below.
_TWO_52: Final = 2.0**52
_TWO_52_BITS: Final = 0x4330000000000000
_FRACTION: Final = 0x000FFFFFFFFFFFFF
_HALF_BITS: Final = 0x3FE0000000000000  # of 0.5: a fraction below it is a number in [0.5, 1)
_HALF_EXPONENT: Final = 1022

_LN2_HIGH: Final = 6.93147180369123816490e-01  # its product with a whole number is exact
_LN2_REST: Final = 1.90821492927058770002e-10
_ROUNDER: Final = 1.5 * 2.0**52  # adding it rounds to a whole number
_LOWEST: Final = -700.0  # below, the exponential is taken for 0
_EXP_TERMS: Final = 14


def philox(e: Emitter, ids: Value, place: tuple[Value, Value, Value, Value]) -> Value:
    """One 32-bit word per token id; place: low and high half of the seed, position, sequence."""
    key0, key1, position, sequence = (word & _LOW for word in place)
    c0, c1 = ids >> 2, e.splat(position, WIDTH)
    c2, c3 = e.splat(sequence, WIDTH), e.const(I64X8, 0)  # the purpose of picking a token
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (product1 >> 32) ^ c1 ^ e.splat(key0, WIDTH)
        c2 = (product0 >> 32) ^ c3 ^ e.splat(key1, WIDTH)
        c1, c3 = product1 & _LOW, product0 & _LOW
        key0, key1 = (key0 + _KEY_STEPS[0]) & _LOW, (key1 + _KEY_STEPS[1]) & _LOW
    is_even, is_low = (ids & 1).equals(0), (ids & 2).equals(0)
    return is_even.select(is_low.select(c0, c2), is_low.select(c1, c3))


def gumbel(e: Emitter, words: Value) -> Value:
    """-log(-log(u)), u = (word + 0.5) / 2^32."""
    uniform = (_whole(words) + 0.5) * 2.0**-32
    return portable_log(e, portable_log(e, uniform) * -1.0) * -1.0


def _whole(words: Value) -> Value:
    """Integers from 0 to 2^52 - 1 as float64."""
    return (words | _TWO_52_BITS).bits(F64X8) - _TWO_52


def portable_log(e: Emitter, x: Value) -> Value:
    """Of positive normal numbers; operation for operation that of `core/sampling/noise.py`."""
    bits = x.bits(I64X8)
    mantissa = ((bits & _FRACTION) | _HALF_BITS).bits(F64X8)
    exponent = _whole(bits >> 52) - float(_HALF_EXPONENT)
    is_small = mantissa < _SQRT_HALF
    mantissa = is_small.select(mantissa * 2.0, mantissa)
    whole = is_small.select(exponent - 1.0, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = e.const(F64X8, _ATANH_SERIES[0])
    for coefficient in _ATANH_SERIES[1:]:
        series = series * z + coefficient
    twice = s + s
    return whole * _LN2 + (twice + twice * (z * series))


def exponential(e: Emitter, x: Value) -> Value:
    """exp(x) of x <= 0, to a few of its last bits; for comparisons that leave a margin."""
    rounded = x * (1.0 / _LN2) + _ROUNDER
    whole = rounded - _ROUNDER
    rest = (x - whole * _LN2_HIGH) - whole * _LN2_REST
    series = e.const(F64X8, 1.0 / math.factorial(_EXP_TERMS - 1))
    for term in range(_EXP_TERMS - 2, -1, -1):
        series = series * rest + 1.0 / math.factorial(term)
    # The low bits of `rounded` are the whole number: moved up, they are added to the exponent.
    scaled = (series.bits(I64X8) + (rounded.bits(I64X8) << 52)).bits(F64X8)
    return (x > _LOWEST).select(scaled, e.const(F64X8, 0.0))
