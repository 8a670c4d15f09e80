"""Every built-in of the CPU shim against a definition of its own, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shim.build import unavailable_reason
from shim.launcher import HostLauncher, ShimError, aligned

from nextn.cuda_kernels.kernel import Kernel, Source

if reason := unavailable_reason():
    pytest.skip(reason, allow_module_level=True)

SOURCE = Source(str(Path(__file__).parent / "kernels" / "intrinsics.cu"))
Array = np.ndarray[Any, Any]
F32, U16, U32, I32, I64, U64 = np.float32, np.uint16, np.uint32, np.int32, np.int64, np.uint64
SEEDS = [0, 1, 2, 3]
rng = np.random.default_rng(10)


def launch(name: str, threads: int, grid: Any, arguments: list[Any], **more: Any) -> None:
    HostLauncher(more.pop("seed", 0)).launch(
        Kernel(name, SOURCE, "", threads, 255), grid, arguments, **more
    )


def each(name: str, result: Any, *inputs: Array) -> Array:
    y = np.zeros(inputs[0].shape, result)
    launch(f"each_{name}", 256, -(-y.size // 256), [*inputs, y, y.size])
    return y


def any_bits(n: int, dtype: Any) -> Array:
    """Random bits, small numbers and the ends of the range."""
    info = np.iinfo(dtype)
    ends = np.array([0, 1, 2, 3, info.min, info.max, info.max - 1, info.max // 2], dtype)
    bits = rng.integers(info.min, info.max, n, dtype, endpoint=True)
    return np.concatenate([ends, bits, bits >> (8 * bits.itemsize - 7)])


def any_floats(n: int) -> Array:
    """Every exponent, both signs, the infinities; quiet NaNs only, or numpy warns."""
    bits = any_bits(n, U32).view(F32)
    quiet = np.where(np.isnan(bits), F32(np.nan), bits)
    return np.concatenate([quiet, rng.standard_normal(n).astype(F32) * 100])


def same(a: Array, b: Array) -> bool:
    """The same bits; any NaN is as good as another."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and (
        a.dtype.kind != "f" or np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))
    )


# Conversions -------------------------------------------------------------------------------------

EVERY_HALF = np.arange(65536, dtype=np.uint32).astype(U16)


def test_every_half_and_bfloat16_becomes_its_float() -> None:
    assert same(each("half_to_float", F32, EVERY_HALF), EVERY_HALF.view(np.float16).astype(F32))
    wanted = (EVERY_HALF.astype(U32) << 16).view(F32)
    assert same(each("bf16_to_float", F32, EVERY_HALF), wanted)


def around(values: Array) -> Array:
    """Each value, the middle to the next, and the floats beside both."""
    finite = values[np.isfinite(values)]
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(F32)
    points = np.concatenate([finite, middle])
    up = np.nextafter(points, F32(np.inf), dtype=F32)
    return np.concatenate([points, up, np.nextafter(points, F32(-np.inf), dtype=F32)])


def test_floats_become_the_nearest_half() -> None:
    x = np.concatenate([around(EVERY_HALF.view(np.float16).astype(F32)), any_floats(100_000)])
    x = np.concatenate([x, np.array([65504, 65519.99, 65520, 1e30, np.inf, -np.inf], F32)])
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(np.float16)
    assert same(each("float_to_half", U16, x).view(np.float16), wanted)
    assert (each("float_to_half", U16, np.full(3, np.nan, F32)) == 0x7FFF).all()


def nearest_bf16(x: Array) -> Array:
    """By distance in float64, ties to the even one; NaN apart."""
    bits = x.view(U32)
    low = (bits >> 16).astype(U16)
    below = (low.astype(U32) << 16).view(F32).astype(np.float64)
    above = ((low.astype(U32) + 1) << 16).view(F32).astype(np.float64)
    beyond = np.copysign(2.0**128, x.astype(np.float64))  # what would follow the largest
    above = np.where(np.isfinite(above), above, beyond)
    wide = x.astype(np.float64)
    to_above, to_below = np.abs(above - wide), np.abs(wide - below)
    up = (to_above < to_below) | ((to_above == to_below) & (low & 1 == 1))
    return np.where(np.isinf(x), low, low + up).astype(U16)


def test_floats_become_the_nearest_bfloat16() -> None:
    every = (EVERY_HALF.astype(U32) << 16).view(F32)
    x = np.concatenate([around(every[:0x7F80]), around(every[0x8000:0xFF80]), any_floats(100_000)])
    x = x[~np.isnan(x)]
    with np.errstate(invalid="ignore"):
        assert same(each("float_to_bf16", U16, x), nearest_bf16(x))
    assert (each("float_to_bf16", U16, np.full(3, -np.nan, F32)) == 0x7FFF).all()


@pytest.mark.parametrize("kind", ["half", "bf16"])
def test_two_floats_become_one_word(kind: str) -> None:
    low, high = any_floats(500), any_floats(500)[::-1].copy()
    words = each(f"floats_to_{kind}2", U32, low, high)
    assert same((words & 0xFFFF).astype(U16), each(f"float_to_{kind}", U16, low))
    assert same((words >> 16).astype(U16), each(f"float_to_{kind}", U16, high))


@pytest.mark.parametrize(
    ("name", "round_"), [("rn", np.rint), ("rz", np.trunc), ("rd", np.floor), ("ru", np.ceil)]
)
def test_floats_become_integers(name: str, round_: Callable[[Array], Array]) -> None:
    x = np.concatenate(
        [any_floats(2000), np.arange(-32, 32).astype(F32) / 4, np.array([2**31], F32)]
    )
    rounded = np.clip(round_(x.astype(np.float64)), -(2**31), 2**31 - 1)
    wanted = np.where(np.isnan(x), 0, rounded).astype(I64)
    assert same(each(f"__float2int_{name}", I32, x), wanted.astype(I32))
    if name == "rn":
        positive = np.clip(np.rint(x.astype(np.float64)), 0, 2**32 - 1)
        wanted = np.where(np.isnan(x), 0, positive).astype(I64)
        assert same(each("__float2uint_rn", U32, x), wanted.astype(U32))


def test_integers_become_floats() -> None:
    signed, unsigned = any_bits(3000, I32), any_bits(3000, U32)
    assert same(each("__int2float_rn", F32, signed), signed.astype(F32))
    assert same(each("__uint2float_rn", F32, unsigned), unsigned.astype(F32))


# Integers ----------------------------------------------------------------------------------------


def bits_of(x: Array) -> list[str]:
    width = 8 * x.itemsize
    return [format(int(v) & (2**width - 1), f"0{width}b") for v in x]


def leading(text: str) -> int:
    return len(text) - len(text.lstrip("0"))


COUNTS: list[tuple[str, Any, Callable[[str], int]]] = [
    ("__popc", U32, lambda text: text.count("1")),
    ("__popcll", U64, lambda text: text.count("1")),
    ("__clz", I32, leading),
    ("__clzll", I64, leading),
    ("__ffs", I32, lambda text: text[::-1].find("1") + 1),
    ("__brev", U32, lambda text: int(text[::-1], 2)),
]


@pytest.mark.parametrize(("name", "dtype", "wanted"), COUNTS)
def test_bits(name: str, dtype: Any, wanted: Callable[[str], int]) -> None:
    x = any_bits(300, dtype)
    result = each(name, U32 if name == "__brev" else I32, x)
    assert [int(v) for v in result] == [wanted(text) for text in bits_of(x)]


M32, M64 = 2**32 - 1, 2**64 - 1


def byte_perm(x: int, y: int, s: int) -> int:
    all_bytes = (y << 32 | x).to_bytes(8, "little")
    return int.from_bytes([all_bytes[s >> 4 * i & 7] for i in range(4)], "little")


def dp(parts: Callable[[int, int], list[int]]) -> Callable[[int, int, int], int]:
    return lambda a, b, c: (sum(parts(a, b)) + c) & M32


def signed(value: int, width: int = 8) -> int:
    value &= 2**width - 1
    return value - 2**width if value >> (width - 1) else value


def bytewise(each_: Callable[[int, int], int], is_signed: bool = False) -> Callable[..., int]:
    def whole(x: int, y: int) -> int:
        pairs = [(x >> s & 255, y >> s & 255) for s in (0, 8, 16, 24)]
        if is_signed:
            pairs = [(signed(a), signed(b)) for a, b in pairs]
        return sum((each_(a, b) & 255) << 8 * i for i, (a, b) in enumerate(pairs))

    return whole


def halves(each_: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda x, y: (each_(x >> 16, y >> 16) & 65535) << 16 | (each_(x, y) & 65535)


def clip8(x: int) -> int:
    return max(-128, min(127, x))


WORDS: list[tuple[str, Any, Callable[..., int]]] = [
    ("__umulhi", U32, lambda a, b: a * b >> 32),
    ("__mulhi", I32, lambda a, b: a * b >> 32 & M32),
    ("__umul64hi", U64, lambda a, b: a * b >> 64),
    ("__byte_perm", U32, byte_perm),
    ("__funnelshift_l", U32, lambda lo, hi, s: (hi << 32 | lo) << (s & 31) >> 32 & M32),
    ("__funnelshift_r", U32, lambda lo, hi, s: (hi << 32 | lo) >> (s & 31) & M32),
    ("__funnelshift_lc", U32, lambda lo, hi, s: (hi << 32 | lo) << min(s, 32) >> 32 & M32),
    ("__funnelshift_rc", U32, lambda lo, hi, s: (hi << 32 | lo) >> min(s, 32) & M32),
    ("__dp4a", I32, dp(lambda a, b: [signed(a >> s) * signed(b >> s) for s in (0, 8, 16, 24)])),
    (
        "__dp2a_lo",
        I32,
        dp(lambda a, b: [signed(a >> 16 * i, 16) * signed(b >> 8 * i) for i in (0, 1)]),
    ),
    (
        "__dp2a_hi",
        I32,
        dp(lambda a, b: [signed(a >> 16 * i, 16) * signed(b >> 16 + 8 * i) for i in (0, 1)]),
    ),
    ("__vadd4", U32, bytewise(lambda a, b: a + b)),
    ("__vsub4", U32, bytewise(lambda a, b: a - b)),
    ("__vaddss4", U32, bytewise(lambda a, b: clip8(a + b), True)),
    ("__vsubss4", U32, bytewise(lambda a, b: clip8(a - b), True)),
    ("__vmaxs4", U32, bytewise(max, True)),
    ("__vminu4", U32, bytewise(min)),
    ("__vcmpeq4", U32, bytewise(lambda a, b: -(a == b))),
    ("__vcmpne4", U32, bytewise(lambda a, b: -(a != b))),
    ("__vcmpgts4", U32, bytewise(lambda a, b: -(a > b), True)),
    ("__vcmpgtu4", U32, bytewise(lambda a, b: -(a > b))),
    ("__vadd2", U32, halves(lambda a, b: a + b)),
    ("__vsub2", U32, halves(lambda a, b: a - b)),
]


@pytest.mark.parametrize(("name", "dtype", "wanted"), WORDS, ids=[row[0] for row in WORDS])
def test_words(name: str, dtype: Any, wanted: Callable[..., int]) -> None:
    n = wanted.__code__.co_argcount if "whole" not in wanted.__name__ else 2
    inputs = [rng.permutation(any_bits(400, dtype)) for _ in range(n)]
    if name == "__byte_perm":
        inputs[2] &= U32(0x77777777)
    if name.startswith("__v"):
        inputs[1] = np.where(rng.random(inputs[0].size) < 0.3, inputs[0], inputs[1])
    mask = 2 ** (8 * np.dtype(dtype).itemsize) - 1
    result = [int(v) & mask for v in each(name, dtype, *inputs)]
    rows = zip(*(x.tolist() for x in inputs), strict=True)
    assert result == [wanted(*row) & mask for row in rows]


def test_a_selector_that_cuda_leaves_open_is_refused() -> None:
    with pytest.raises(ShimError, match="bit 3 of a selector"):
        each("__byte_perm", U32, *(np.full(1, v, U32) for v in (1, 2, 0x0008)))


# Floats ------------------------------------------------------------------------------------------


def test_a_fused_product_is_rounded_once() -> None:
    a, b = np.ldexp(rng.standard_normal((2, 6000)), rng.integers(-30, 30, (2, 6000))).astype(F32)
    c = np.where(rng.random(6000) < 0.5, -(a * b), rng.standard_normal(6000)).astype(F32)
    exact = a.astype(np.longdouble) * b + c  # 64 bits: the product is exact, the sum nearly
    result = each("fmaf", F32, a, b, c)
    off = np.abs(result - exact) / np.maximum(np.spacing(np.abs(result)), F32(1e-40))
    assert off.max() <= 0.5 + 2**-30
    assert (result[(a * b == -c) & (exact != 0)] != 0).all()


APPROXIMATE: list[tuple[str, Callable[[Array], Array], float, float]] = [
    ("expf", np.exp, -80, 80),
    ("exp2f", np.exp2, -100, 100),
    ("log1pf", np.log1p, -0.999, 1000),
    ("tanhf", np.tanh, -10, 10),
    ("rsqrtf", lambda x: 1 / np.sqrt(x), 1e-30, 1e30),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -80, 80),
    ("silu", lambda x: x / (1 + np.exp(-x)), -80, 80),
]


@pytest.mark.parametrize(("name", "wanted", "low", "high"), APPROXIMATE)
def test_functions(name: str, wanted: Callable[[Array], Array], low: float, high: float) -> None:
    x = rng.uniform(low, high, 3000).astype(F32)
    np.testing.assert_allclose(each(name, F32, x), wanted(x.astype(np.float64)), rtol=1e-6)


def test_numbers_beside_nan() -> None:
    a = np.array([1, np.nan, 3, np.nan, -0.0], F32)
    b = np.array([2, 2, np.nan, np.nan, 0.0], F32)
    assert same(each("fmaxf", F32, a, b)[:4], np.array([2, 2, 3, np.nan], F32))
    assert same(each("fminf", F32, a, b)[:4], np.array([1, 2, 3, np.nan], F32))
    assert same(each("__fdiv_rn", F32, a[:3], b[:3]), a[:3] / b[:3])
    x = rng.uniform(1e-300, 1e300, 100)
    np.testing.assert_allclose(each("log", np.float64, x), np.log(x), rtol=1e-15)


# Meetings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [32, 16, 8])
def test_exchanges(width: int, seed: int) -> None:
    x = rng.integers(-(2**31), 2**31, 64, I64)
    y = np.zeros((15, 64), I64)
    launch("exchanges", 64, 1, [x, y, width], seed=seed)
    lane, warp = np.arange(64) % 32, np.arange(64) // 32
    start = lane // width * width
    own = np.arange(64)

    def read(lanes: Array) -> Array:
        inside = (lanes >= start) & (lanes < start + width)
        return x[np.where(inside, lanes + 32 * warp, own)]

    def of_warps(votes: Array) -> Array:
        return np.array([sum(int(v) << i for i, v in enumerate(votes[warp == w])) for w in (0, 1)])

    xor = lane ^ 5
    wanted = [
        x[32 * warp + start + (np.arange(64) * 7 + 3) % width],
        np.where(xor < start + width, x[xor + 32 * warp], x),
        read(lane - 3),
        read(lane + 3),
        of_warps(x & 1)[warp],
        np.array([1, 0])[warp],
        np.array([1, 0])[warp],
        [int(of_warps(x & 3 == x[i] & 3)[warp[i]]) for i in range(64)],
        np.full(64, (x & 1).sum()),
        np.ones(64),
        np.zeros(64),
        np.array([x[warp == w].sum() for w in (0, 1)]).astype(I32)[warp],
        np.array([x[warp == w].max() for w in (0, 1)])[warp],
        x[own ^ 8],
        np.where(lane % 2, of_warps((x > 0) & (lane % 2 == 1))[warp], 0),
    ]
    for i, row in enumerate(wanted):
        got = y[i].astype(U32) if i in (7,) else y[i]
        assert np.array_equal(got & M32 if i in (4, 7, 14) else got, np.asarray(row, I64)), i


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [32, 64, 128])
def test_sums_of_a_block(threads: int, seed: int) -> None:
    x, y = rng.standard_normal((7, 301)).astype(F32), np.full((7, 256), np.nan, F32)
    launch("sums", 128, 7, [x, y, 301], block=threads, seed=seed)
    sums = y[:, :threads]
    assert (sums == sums[:, :1]).all()
    np.testing.assert_allclose(sums[:, 0], x.sum(1, dtype=np.float64), rtol=1e-4, atol=1e-4)
    assert (y[:, 128 : 128 + threads].max(1) == x.max(1)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics(seed: int) -> None:
    x = rng.integers(-1000, 1000, 256, I32)
    y = np.array([0, 0, -(2**31), 2**31 - 1, 0, -1, 0, 0, 0, 5], I32)
    big, order = np.zeros(1, U64), np.full(256, -1, I32)
    launch("atomics", 64, 4, [x, y, big, order], seed=seed)
    ors, ands, xors = (int(f.reduce(x)) for f in (np.bitwise_or, np.bitwise_and, np.bitwise_xor))
    wanted = [256, -x.sum(), x.max(), x.min(), ors, ands, xors, 256, 256 % 11]
    assert y[:9].tolist() == [int(v) for v in wanted]
    assert y[9] in x
    assert big[0] == 256 << 32
    assert sorted(order) == list(range(256))
    in_order = bool((order == np.arange(256)).all())
    assert in_order == (seed == 0)  # another seed, another order


# Tensor cores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "k"), [("s8", 32), ("s8_k16", 16)])
def test_products_of_bytes(name: str, k: int, seed: int) -> None:
    a = aligned((16, k), np.int8)
    b = aligned((8, k), np.int8)
    a[:], b[:] = rng.integers(-128, 128, a.shape), rng.integers(-128, 128, b.shape)
    c, d = rng.integers(-(2**31), 2**31, (16, 8), I32), np.zeros((16, 8), I32)
    launch(f"product_{name}", 32, 1, [a, b, c, d], seed=seed)
    assert np.array_equal(d, (a.astype(I64) @ b.astype(I64).T + c).astype(I32))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_products_of_halves(name: str) -> None:
    a, b = rng.standard_normal((16, 16)).astype(F32), rng.standard_normal((8, 16)).astype(F32)
    c, d = rng.standard_normal((16, 8)).astype(F32), np.zeros((16, 8), F32)
    if name == "f16":
        words = [x.astype(np.float16).view(U16) for x in (a, b)]
        wide = [x.view(np.float16).astype(np.float64) for x in words]
    else:
        words = [(x.view(U32) >> 16).astype(U16) for x in (a, b)]
        wide = [(x.astype(U32) << 16).view(F32).astype(np.float64) for x in words]
    launch(f"product_{name}", 32, 1, [*words, c, d])
    np.testing.assert_allclose(d, wide[0] @ wide[1].T + c, rtol=1e-5, atol=1e-5)


def test_matrices() -> None:
    x, y = aligned((4, 8, 8), U16), np.zeros((2, 32, 4), U32)
    x[:] = rng.integers(0, 65536, x.shape)
    launch("matrices", 32, 1, [x, y])
    for lane in range(32):
        group, t = divmod(lane, 4)
        for matrix in range(4):
            row, column = x[matrix, group], x[matrix, :, group]
            assert y[0, lane, matrix] == int(row[2 * t + 1]) << 16 | int(row[2 * t])
            assert y[1, lane, matrix] == int(column[2 * t + 1]) << 16 | int(column[2 * t])


@pytest.mark.parametrize("seed", SEEDS)
def test_places(seed: int) -> None:
    y = np.zeros((4, 3, 2, 36), I32)
    launch("places", 64, (2, 3, 4), [y], block=(3, 4, 3), seed=seed)
    z, yy, x = np.indices((4, 3, 2))
    assert np.array_equal(
        y.ravel(),
        np.arange(y.size) + 1000 * np.repeat((x + 10 * yy + 100 * z).ravel(), 36),
    )
