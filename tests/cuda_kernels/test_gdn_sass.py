"""Machine code of `gdn_step`: what a row and a pending factor cost, what runs before the wait."""

from __future__ import annotations

import pytest
from support.sass import Code, functions, innermost_loops, reached_before, whole

from nextn.cuda_kernels.compile import Compiler, Cubin
from nextn.cuda_kernels.gdn_step import KERNELS, step_kernel
from nextn.cuda_kernels.kernel import Kernel

PER_LANE = 16  # values of a state row in one lane, at 128 values per head
# Of the loop over rows, with what it does at a final row and in a warp whose lanes have parted.
MOST = {1: 190, 2: 290, 4: 500}


def arithmetic(code: Code) -> int:
    return code.count("FFMA") + code.count("FMUL")


def loop_over(cubin: Cubin, kernel: str, *, shuffles: bool) -> Code:
    """That over rows, which sums over lanes, or that over factors. Neither asks for an exp."""
    found = innermost_loops(functions(cubin)[kernel])
    fitting = (x for x in found if (x.count("SHFL") > 0) is shuffles and not x.kinds["special"])
    return max(fitting, key=arithmetic)


@pytest.mark.parametrize("rows", sorted(MOST))
def test_a_row_costs_what_its_numbers_cost(compiler: Compiler, sass: None, rows: int) -> None:
    kernel = step_kernel(128, rows)
    loop = loop_over(compiler.compile(kernel.source, 90), kernel.name, shuffles=True)
    values = PER_LANE * rows  # of the state in a lane: S k, S q, g S, + u k
    assert loop.count("FFMA") in range(3 * values, 3 * values + 6)
    assert loop.count("FMUL") in range(values, values + 6)
    assert loop.size <= MOST[rows]
    assert loop.count("LDS", "128") <= 2 * PER_LANE // 4 + 1
    assert not loop.kinds["local"]
    assert not loop.kinds["barrier"] - loop.count("WARPSYNC")


@pytest.mark.parametrize("rows", sorted(MOST))
def test_a_pending_factor_is_two_roundings(compiler: Compiler, sass: None, rows: int) -> None:
    kernel = step_kernel(128, rows)
    loop = loop_over(compiler.compile(kernel.source, 90), kernel.name, shuffles=False)
    assert arithmetic(loop) == 2 * PER_LANE * rows
    assert loop.size <= 2 * PER_LANE * rows + 18


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_states_move_by_16_bytes(compiler: Compiler, sass: None, kernel: Kernel) -> None:
    code = whole(compiler.compile(kernel.source, 90), kernel.name)
    assert code.count("LDG", "128") > 0
    assert code.count("STG", "128") > 0
    assert not code.kinds["local"]


def test_the_state_is_fetched_ahead_of_the_wait(compiler: Compiler, sass: None) -> None:
    kernel = step_kernel(128, 2)
    function = functions(compiler.compile(kernel.source, 90))[kernel.name]
    ahead = reached_before(function, "ACQBULK")
    assert ahead.count("CCTL") >= 2  # lines on their way to the second-level cache
    assert not ahead.kinds["global store"]
    assert not ahead.count("LDG", "128")
