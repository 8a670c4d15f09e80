"""Loops of machine code are found and counted: a kernel whose loops are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sass import (
    Code,
    functions,
    hot_loop,
    innermost_loops,
    lane_instructions_per_weight,
    loops,
    whole,
)

from nextn.cuda_kernels.compile import ARCHITECTURES, Compiler, Cubin
from nextn.cuda_kernels.kernel import Source

CODE = """
#include "mma.cuh"
extern "C" __global__ void copy(const uint4* x, uint4* y, int n) {
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 32) y[i] = load_once(x + i);
}
extern "C" __global__ void products(const uint4* w, const uint2* x, int* y, int n) {
    __shared__ uint4 scratch[32];
    int sum[4] = {0, 0, 0, 0};
    for (int row = 0; row < n; row++) {
        scratch[threadIdx.x] = w[row];
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < n; k += 2) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint4 a = load_once(w + (k + i) * 32 + threadIdx.x);
                uint2 b = x[(k + i) * 32 + threadIdx.x];
                const uint32_t rows[4] = {a.x, a.y, a.z, a.w}, columns[2] = {b.x, b.y};
                mma_s8(sum, rows, columns, sum);
            }
            sum[0] += __shfl_xor_sync(ALL_LANES, sum[1], 1);
        }
        y[row] = scratch[31 - threadIdx.x].x;
    }
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = sum[i];
}
extern "C" __global__ void straight(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
// What is rare is put behind the end of the function, and jumps back into the loop.
extern "C" __global__ void rare(const float* x, float* y, int n) {
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; i++) sum += 1.0f / x[i];
    y[threadIdx.x] = sum;
}
"""


@pytest.fixture(params=ARCHITECTURES)
def cubin(request: pytest.FixtureRequest, compiler: Compiler, sass: None, tmp_path: Path) -> Cubin:
    path = tmp_path / "loops.cu"
    path.write_text(CODE)
    return compiler.compile(Source(str(path)), request.param)


def test_all_functions_are_there(cubin: Cubin) -> None:
    assert functions(cubin).keys() == {"copy", "products", "straight", "rare"}


def test_a_loop_that_copies(cubin: Cubin) -> None:
    (loop,) = loops(functions(cubin)["copy"])
    assert loop.count("LDG", "128") == loop.kinds["global load"] == 1
    assert loop.count("STG", "128") == loop.kinds["global store"] == 1
    assert loop.kinds["branch"] == 1
    assert 5 <= loop.size <= 20
    assert hot_loop(cubin, "copy") == loop


def test_the_inner_loop_is_the_hot_one(cubin: Cubin) -> None:
    outer_and_inner = [loop for loop in loops(functions(cubin)["products"]) if loop.kinds["tensor"]]
    inner, outer = sorted(outer_and_inner, key=lambda loop: loop.size)
    assert outer.kinds["barrier"] == outer.kinds["shared load"] == outer.kinds["shared store"] == 1
    hot = hot_loop(cubin, "products")
    assert hot == inner
    assert hot in innermost_loops(functions(cubin)["products"])
    assert hot.kinds["barrier"] == hot.kinds["shared load"] == 0
    assert hot.count("IMMA") == hot.count("LDG", "128") == hot.count("LDG", "64") == 2
    assert hot.count("SHFL") == 1
    assert sum(hot.kinds.values()) == len(hot.instructions) == sum(hot.opcodes.values())


def test_instructions_for_each_weight(cubin: Cubin) -> None:
    hot = hot_loop(cubin, "products")
    # Two products of 16 rows x 32: 1024 weights, 32 of a lane.
    assert lane_instructions_per_weight(hot, column_tiles=1) == hot.size / 32
    assert lane_instructions_per_weight(hot, column_tiles=2) == hot.size / 16
    with pytest.raises(AssertionError, match="no tensor-core product"):
        lane_instructions_per_weight(hot_loop(cubin, "copy"), 1)


def test_a_kernel_without_a_loop_says_so(cubin: Cubin) -> None:
    assert loops(functions(cubin)["straight"]) == []
    with pytest.raises(AssertionError, match="straight has no loop"):
        hot_loop(cubin, "straight")
    code = whole(cubin, "straight")
    assert isinstance(code, Code)
    assert code.count("LDG") == code.count("STG") == 1
    assert code.kinds["local"] == 0


def test_a_loop_with_a_call_is_one_loop(cubin: Cubin) -> None:
    (loop,) = [loop for loop in loops(functions(cubin)["rare"]) if loop.kinds["global load"]]
    assert loop.kinds["special"] == 1
    assert loop.count("CALL") == 1
