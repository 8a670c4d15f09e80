"""Instructions of the inner loop for each weight: what leaves an H200 bound by its memory."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.sass import (
    Code,
    functions,
    hot_loop,
    innermost_loops,
    lane_instructions_per_weight,
    whole,
)

from nextn.cuda_kernels.compile import Cubin
from nextn.cuda_kernels.kernel import Source
from nextn.cuda_kernels.qmm import WIDTHS
from nextn.cuda_kernels.qmm_pair import COMMON, kernels_of

# For 1-4, 5-8 and 9-16 rows, two or three per cent above what was counted. A processor of an
# H200 has time for 128 / 29 = 4.4 at Q4_K, more where a weight has more bits.
BUDGETS = {
    "Q4_K": (1.56, 2.15, 3.2),
    "Q5_K": (1.9, 2.45, 3.5),
    "Q6_K": (2.05, 2.8, 4.4),
    "Q8_0": (1.05, 1.55, 2.6),
    "Q4_0": (1.4, 1.95, 3.05),
    "IQ4_XS": (1.97, 2.5, 3.85),
    "IQ4_NL": (1.91, 2.5, 4.0),
    "MXFP4": (2.08, 2.7, 4.2),
    "NVFP4": (2.7, 3.8, 6.1),
    "Q2_K": (2.35, 3.2, 4.9),
    "Q3_K": (2.65, 3.45, 5.05),
    "I8_K": (1.4, 2.2, 3.8),
}
COPIES = ("LDGSTS", "LDG")
CHOOSING = ("IQ4_XS", "IQ4_NL", "MXFP4", "NVFP4")  # each code is the sum of two, up to 8 rows


@pytest.mark.parametrize("form", BUDGETS)
def test_instructions_per_weight(
    form: str, sass: None, cubins: Mapping[tuple[Source, int], Cubin]
) -> None:
    cubin = cubins[Source("qmm.cu", (("FORMAT", form),)), 90]
    for rows, budget in zip(WIDTHS, BUDGETS[form], strict=True):
        loop = hot_loop(cubin, f"qmm_{form}_{rows}")
        weights = 128  # of a lane: a tile is 16 x 256
        assert loop.size / weights <= budget, (rows, loop.kinds)
        assert sum(map(loop.count, COPIES)) == 0, "another warp fetches"
        assert loop.kinds["barrier"] <= 3, "one for each step, and what comes with it"
        if form in ("Q4_K", "Q5_K", "Q8_0", "Q4_0", *CHOOSING):
            products = 9 if form in ("Q4_K", "Q5_K") else 16 if form == "NVFP4" else 8
            parts = 2 if form in CHOOSING and rows < 16 else 1
            assert loop.kinds["tensor"] == rows // 4 * parts * products


def test_weights_of_the_loop_are_counted_right(
    sass: None, cubins: Mapping[tuple[Source, int], Cubin]
) -> None:
    cubin = cubins[Source("qmm.cu", (("FORMAT", "Q8_0"),)), 90]
    loop = hot_loop(cubin, "qmm_Q8_0_4")
    assert lane_instructions_per_weight(loop, column_tiles=1) == loop.size / 128


def loops_of(cubin: Cubin, kernel: str) -> list[Code]:
    return [loop for loop in innermost_loops(functions(cubin)[kernel]) if loop.kinds["tensor"]]


@pytest.mark.parametrize("pair", COMMON)
def test_each_half_is_as_quick_as_alone(
    pair: tuple[str, str], sass: None, cubins: Mapping[tuple[Source, int], Cubin]
) -> None:
    """As few instructions, and registers for two blocks on a processor of an H200."""
    for i, (width, kernel) in enumerate(kernels_of(*pair).items()):
        cubin = cubins[kernel.source, 90]
        usage, loops = cubin.usage[kernel.name], loops_of(cubin, kernel.name)
        assert width == WIDTHS[i]
        budgets = sorted(BUDGETS[form][i] for form in pair)
        sizes = sorted(loop.size / 128 for loop in loops)  # weights of a lane
        assert len(sizes) == 2
        assert all(size <= budget for size, budget in zip(sizes, budgets, strict=True)), sizes
        assert usage.registers <= 96  # as the compiler rounds them: 65536 / (2 * 9 warps)
        assert not usage.spilled
        assert 2 * (kernel.dynamic_shared + usage.shared + 1024) <= 228 << 10


@pytest.mark.parametrize("file", ["qmm.cu", "qmm_pair.cu", "qmm_moe.cu", "moe_route.cu"])
def test_the_last_to_arrive_is_found_without_sequential_fences(
    file: str, sass: None, cubins: Mapping[tuple[Source, int], Cubin]
) -> None:
    """An ordered addition: one fence, where two would be at the end of 300 launches of a step."""
    n_additions = 0
    for (source, arch), cubin in cubins.items():
        if source.file == file and arch == 90:
            for name in functions(cubin):
                code = whole(cubin, name)
                assert code.count("MEMBAR", "SC") == 0, name
                assert code.count("MEMBAR") <= code.count("ATOMG", "ADD"), name
                n_additions += code.count("ATOMG", "ADD")
    assert n_additions
