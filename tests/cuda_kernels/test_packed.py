"""How rows are packed: the kernel against its definition, that against its promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from shim.launcher import HostLauncher
from shim.machine import Machine
from support.packed_rows import (
    WORST,
    empty_packed,
    garbage_packed,
    get_packed,
    pack,
    same_packed,
    unpack,
)
from support.sass import whole
from support.thoroughness import n_examples

from nextn.cuda_kernels.compile import Compiler
from nextn.cuda_kernels.norm_quant import PACK_ROWS, pack_rows
from nextn.cuda_kernels.packed import BLOCK, PackedRows, packed_shapes, padded_width

WIDTHS = (1, 3, 31, 32, 255, 256, 257, 300, 512, 2052, 2304)


def packed(machine: Machine, x: NDArray[np.float32]) -> PackedRows:
    """By the kernel."""
    out = garbage_packed(machine, *x.shape)
    pack_rows(machine.launcher, machine.put(x), out)
    return get_packed(machine, out)


def random_rows(n_rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_rows, width)) * 10.0 ** rng.uniform(-3, 3, (n_rows, 1))
    x[rng.random(x.shape) < 0.02] *= 30
    return x.astype(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_packs_as_defined(machine: Machine, width: int) -> None:
    x = random_rows(3, width, seed=width)
    made = packed(machine, x)
    assert same_packed(made, pack(x))
    assert not unpack(made)[:, width:].any()


def test_blocks_that_are_no_numbers(machine: Machine) -> None:
    x = random_rows(1, 8 * BLOCK)
    x[0, 5] = np.nan
    x[0, BLOCK + 255] = np.inf
    x[0, 2 * BLOCK + 31] = -np.inf
    x[0, 3 * BLOCK : 4 * BLOCK] = 0
    x[0, 4 * BLOCK : 5 * BLOCK] = -0.0
    x[0, 5 * BLOCK] = -np.nan
    made = packed(machine, x)
    assert same_packed(made, pack(x))
    broken = [0, 1, 2, 5]
    assert np.isnan(made.d[0, broken]).all()
    assert not made.d[0, [3, 4]].any()
    assert np.isfinite(made.d[0, [6, 7]]).all()
    bytes_of = made.q.reshape(2, 8, BLOCK)
    assert not bytes_of[:, broken].any()
    assert not made.s[0, :, broken].any()


def test_blocks_at_both_ends_of_the_range(machine: Machine) -> None:
    exact = [2.0**-149, 2.0**-126, 2.0**-113, 2.0**-112, 1.5 * 2.0**-112, 3.4e38]
    largest = np.array(exact, np.float32)
    x = (random_rows(1, len(largest) * BLOCK) % 1).reshape(-1, BLOCK) * largest[:, None]
    x[:, 7] = largest
    x[:, 8] = -largest
    made = packed(machine, x.reshape(1, -1))
    assert same_packed(made, pack(x.reshape(1, -1)))
    values = unpack(made).reshape(-1, BLOCK)
    assert not values[:3].any()
    error = np.abs(values[3:] - x[3:]).max(-1) / largest[3:]
    assert error.max() <= WORST


def test_the_extremes_of_a_step(machine: Machine) -> None:
    """Both signs of the largest value, and halves that must round to even."""
    x = np.zeros((1, BLOCK), np.float32)
    x[0, :6] = 16256, -16256, 0.5, 1.5, -63.5, -64.5
    made = packed(machine, x)
    assert unpack(made)[0, :6].tolist() == [16256, -16256, 0, 2, -64, -64]
    assert made.q[0, 0].min() == -127
    assert made.q[0, 0].max() == 127
    assert made.q[0, 1].min() >= -64


def test_where_the_bytes_lie(machine: Machine) -> None:
    """One value at a time, read as a lane of an mma reads it."""
    x = np.zeros((64, 64), np.float32)
    np.fill_diagonal(x, 1)
    made = packed(machine, x)
    for value in range(64):
        chunk, i = divmod(value, 32)
        t, j = i % 16 // 4, i % 4
        at = 32 * chunk + 8 * t + 4 * (i // 16) + j
        assert np.flatnonzero(made.q[value, 0]).tolist() == [at]
        assert made.q[value, 0, at] == 127
        assert np.flatnonzero(made.s[value, 0, 0]).tolist() == [chunk, 8 + value // 16]


@settings(
    max_examples=n_examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 2), st.integers(1, 520)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    )
)
def test_what_packing_promises(machine: Machine, x: NDArray[np.float32]) -> None:
    made = packed(machine, x)
    width = padded_width(x.shape[1])
    values = np.zeros((len(x), width))
    values[:, : x.shape[1]] = x
    blocks = values.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(-1)
    error = np.abs(unpack(made).reshape(blocks.shape) - blocks).max(-1)
    assert (error <= np.where(largest < 2.0**-112, 2.0**-112, WORST * largest)).all()
    assert np.abs(made.q[:, 0].astype(int)).max() <= 127
    assert made.q[:, 1].min() >= -64
    assert made.q[:, 1].max() <= 63
    sums = made.q.astype(np.int64).reshape(len(x), 2, width // BLOCK, 8, 32)
    assert np.array_equal(made.s[..., :8], sums.sum(-1))
    # Of 8 words of 32 values, the even ones hold the first 16.
    halves = sums.reshape(*sums.shape[:-1], 4, 2, 4).sum((-3, -1))
    assert np.array_equal(made.s[..., 8:], halves.reshape(*halves.shape[:-2], 16))


def test_a_block_is_packed_in_few_instructions(compiler: Compiler, sass: None) -> None:
    """A row is one block's work: its processor issues them for all warps, one after the other."""
    code = whole(compiler.compile(PACK_ROWS.source, 90), PACK_ROWS.name)
    assert code.size <= 300
    assert code.kinds["convert"] == 0
    assert code.count("REDUX") == 1
    assert code.count("LDG", "128") == 2


def test_shapes() -> None:
    assert packed_shapes(3, 300) == ((3, 2, 512), (3, 2), (3, 2, 2, 24))
    with pytest.raises(ValueError, match="q of packed rows: shape"):
        pack_rows(HostLauncher(), np.zeros((2, 300), np.float32), empty_packed(2, 256))
    with pytest.raises(ValueError, match="x: shape"):
        pack_rows(HostLauncher(), np.zeros(300, np.float32), empty_packed(1, 300))
