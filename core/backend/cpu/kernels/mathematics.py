"""Functions of vectors of float32. Polynomials, so that every machine and library agrees."""

from __future__ import annotations

from ..emit import F32, I32, LANES, Emitter, Value, vector

F32X16, I32X16 = vector(F32, LANES), vector(I32, LANES)
ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
ROUND_BITS = 0x4B400000  # of that number
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
# Minimax coefficients of exp and log on their reduced ranges (Cephes, S. Moshier), highest first.
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
# Of tanh on (-0.625, 0.625), from there too.
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
SQRT2 = 1.41421356
# Of the complement of erf: a polynomial in t = 1 / (1 + ERF_SLOPE |x|), times t exp(-x^2); absolute
# error 1.5e-7 (Abramowitz and Stegun, 7.1.26), highest first.
ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
ERF_SLOPE = 0.3275911


def polynomial(e: Emitter, x: Value, coefficients: tuple[float, ...]) -> Value:
    result = e.const(x.type, coefficients[0])
    for c in coefficients[1:]:
        result = e.fma(result, x, e.const(x.type, c))
    return result


def round_to_int(x: Value) -> Value:
    """Nearest integer, ties to even, as int32; for |x| < 2^22. NaN gives some number."""
    return (x + ROUND).bits(I32X16) - ROUND_BITS


def exp(e: Emitter, x: Value) -> Value:
    """Relative error 2e-7; 0 below -87.3, NaN stays NaN."""
    low, high = e.const(F32X16, -87.3), e.const(F32X16, 88.3)
    tiny = x < low
    x = tiny.select(low, x)
    x = (x > high).select(high, x)
    n = round_to_int(x * 1.44269504)
    nf = n.to_float(F32X16)
    r = e.fma(nf, e.const(F32X16, -LN2_HIGH), x)
    r = e.fma(nf, e.const(F32X16, -LN2_LOW), r)
    y = e.fma(polynomial(e, r, EXP), r * r, r) + 1.0
    scaled = y * ((n + 127) << 23).bits(F32X16)
    return tiny.select(e.const(F32X16, 0.0), scaled)


def sigmoid(e: Emitter, x: Value) -> Value:
    return 1.0 / (exp(e, 0.0 - x) + 1.0)


def silu(e: Emitter, x: Value) -> Value:
    return x * sigmoid(e, x)


def gelu(e: Emitter, x: Value) -> Value:
    """The tanh form: x (1 + tanh(u)) / 2 is x sigmoid(2 u)."""
    return x * sigmoid(e, (x + x * x * x * 0.044715) * (2 * 0.7978845608))


def gelu_erf(e: Emitter, x: Value) -> Value:
    """x (1 + erf(x / sqrt 2)) / 2, which is x or 0 less |x| erfc(|x| / sqrt 2) / 2."""
    y = (x.bits(I32X16) & 0x7FFFFFFF).bits(F32X16) * (1 / SQRT2)
    t = 1.0 / (y * ERF_SLOPE + 1.0)
    half = polynomial(e, t, ERF) * t * exp(e, 0.0 - y * y) * 0.5
    return x * (x < 0.0).select(half, 1.0 - half)


def tanh(e: Emitter, x: Value) -> Value:
    small = (x.bits(I32X16) & 0x7FFFFFFF).bits(F32X16) < 0.625
    square = x * x
    near = e.fma(polynomial(e, square, TANH) * square, x, x)
    return small.select(near, 1.0 - 2.0 / (exp(e, x + x) + 1.0))


def softplus(e: Emitter, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)); the last is a polynomial on (0, 1]."""
    magnitude = (x.bits(I32X16) & 0x7FFFFFFF).bits(F32X16)
    y = exp(e, 0.0 - magnitude)
    z = y + 1.0
    halve = z > SQRT2
    m = halve.select(z * 0.5 - 1.0, y)
    square = m * m
    log = e.fma(polynomial(e, m, LOG) * m, square, square * -0.5) + m
    log = log + halve.select(e.const(F32X16, 0.69314718), e.const(F32X16, 0.0))
    return (x > 0.0).select(x, x * 0.0) + log


def one(e: Emitter, function: object, x: Value) -> Value:
    """A vector function of one number."""
    return e.lane(function(e, e.splat(x)), 0)  # type: ignore[operator]


def reciprocal_sqrt(e: Emitter, x: Value) -> Value:
    """1 / sqrt(x) of a single float, both correctly rounded."""
    return 1.0 / e.call("llvm.sqrt.f32", F32, x)
