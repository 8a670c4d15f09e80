"""Every kernel compiles for every architecture, within what it declares; and faults are told."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.cuda_limits import complaints, early_complaints

from nextn.cuda_kernels.compile import ARCHITECTURES, CompileError, Compiler, Cubin
from nextn.cuda_kernels.kernel import FOLDER, Kernel, Source
from nextn.cuda_kernels.registry import MODULES, all_kernels, all_sources, kernels_by_module

SCALE = """
#include "base.cuh"
extern "C" __global__ void __launch_bounds__(256) scale(const float* x, float* y, float by) {
    __shared__ float scratch[33];
    int i = blockIdx.x * 256 + threadIdx.x;
    y[i] = x[i] * by + block_sum(x[i], scratch);
}
"""
# 64 live values per thread of 2 x 1024 threads, which leave 32 registers to each
SPILLS = """
#include "base.cuh"
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y, int n) {
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = x[i * 1024 + threadIdx.x];
    for (int j = 0; j < n; j++)
#pragma unroll
        for (int i = 0; i < 64; i++) a[i] = fmaf(a[i], a[(7 * i + 3) % 64], x[j]);
#pragma unroll
    for (int i = 0; i < 64; i++) y[i * 1024 + threadIdx.x] = a[i];
}
"""


# sm_90, which shapes and layouts were planned for, by default; all of them by CI.
SLOW_BUT_90 = [
    arch if arch == 90 else pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHITECTURES
]


@pytest.mark.parametrize("arch", SLOW_BUT_90)
def test_every_kernel_compiles_within_its_limits(
    arch: int, cubins: Mapping[tuple[Source, int], Cubin]
) -> None:
    found = [complaints(all_kernels(), cubins[source, arch]) for source in all_sources()]
    assert [text for texts in found for text in texts] == []


ONE_OF_EACH_FILE = tuple({source.file: source for source in all_sources()}.values())
EARLY_CASES = [
    (90, ONE_OF_EACH_FILE),  # variants of a source wait in the same line
    *(pytest.param(arch, all_sources(), marks=pytest.mark.slow) for arch in (90, 120)),
]


@pytest.mark.parametrize(("arch", "sources"), EARLY_CASES)
def test_every_kernel_waits_for_the_one_before(
    arch: int,
    sources: Sequence[Source],
    sass: None,
    cubins: Mapping[tuple[Source, int], Cubin],
) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the disassembler is a program of its own
        found = pool.map(early_complaints, (cubins[source, arch] for source in sources))
    assert [text for texts in found for text in texts] == []


def test_every_source_and_launcher_is_registered() -> None:
    assert {path.name for path in FOLDER.glob("*.cu")} == {s.path.name for s in all_sources()}
    exporting = {
        path.stem for path in FOLDER.glob("*.py") if "\nKERNELS" in path.read_text(encoding="utf-8")
    }
    assert exporting == set(MODULES)
    assert all(kernels_by_module().values())


def test_no_kernel_is_declared_twice() -> None:
    names = [(kernel.source.label, kernel.name) for kernel in all_kernels()]
    assert sorted(names) == sorted(set(names))


# Faults are told ---------------------------------------------------------------------------------


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    return Kernel("scale", Source(str(path)), "nothing", 256, registers=40, shared=33 * 4)


def test_a_good_kernel_has_no_complaints(kernel: Kernel, compiler: Compiler) -> None:
    for arch in ARCHITECTURES:
        assert complaints([kernel], compiler.compile(kernel.source, arch)) == []


def test_what_is_too_much_is_told(kernel: Kernel, compiler: Compiler) -> None:
    cubin = compiler.compile(kernel.source, 90)
    usage = cubin.usage["scale"]
    assert usage.shared == 33 * 4

    def said(declared: Kernel) -> str:
        return "\n".join(complaints([declared], cubin))

    assert f"{usage.registers} registers, at most 8" in said(replace(kernel, registers=8))
    assert "132 bytes of static shared memory, at most 128" in said(replace(kernel, shared=128))
    assert "bytes of shared memory, at most 232448" in said(
        replace(kernel, dynamic_shared=227 * 1024)
    )
    assert "registers of a block, at most 65536" in said(replace(kernel, threads=65536 // 8 + 1))
    assert "__launch_bounds__ of 256, declared are 128" in said(replace(kernel, threads=128))


def test_a_spill_is_told(tmp_path: Path, compiler: Compiler) -> None:
    path = tmp_path / "spills.cu"
    path.write_text(SPILLS)
    kernel = Kernel("spills", Source(str(path)), "nothing", 1024, registers=32, stack=4096)
    (complaint,) = complaints([kernel], compiler.compile(kernel.source, 90))
    assert "bytes spilled, at most 0" in complaint
    text = "\n".join(complaints([replace(kernel, stack=0)], compiler.compile(kernel.source, 90)))
    assert "bytes of stack, at most 0" in text


def test_undeclared_and_missing_kernels_are_told(kernel: Kernel, compiler: Compiler) -> None:
    other = replace(kernel, name="scales")
    text = "\n".join(complaints([other], compiler.compile(kernel.source, 90)))
    assert "scales is declared, but not there" in text
    assert "scale is not declared" in text


def test_a_warning_is_told(kernel: Kernel, compiler: Compiler) -> None:
    kernel.source.path.write_text(SCALE.replace("int i =", "int unused = 3;\n    int i ="))
    (complaint,) = complaints([kernel], compiler.compile(kernel.source, 90))
    assert 'scale.cu:5: warning #177-D: variable "unused"' in complaint


def test_an_error_is_one_readable_text(kernel: Kernel, compiler: Compiler) -> None:
    kernel.source.path.write_text(SCALE.replace("x[i] * by", "x[i] * buy"))
    with pytest.raises(CompileError) as caught:
        compiler.compile(replace(kernel.source, defines=(("ROWS", 4),)), 90)
    first, second, *_ = str(caught.value).splitlines()
    assert first.endswith("scale.cu[ROWS=4] does not compile for sm_90:")
    assert second.endswith('scale.cu:6: error: identifier "buy" is undefined')


def test_an_error_of_the_assembler_is_readable_too(kernel: Kernel, compiler: Compiler) -> None:
    kernel.source.path.write_text(SCALE.replace("scratch[33]", "scratch[1 << 16]"))
    with pytest.raises(CompileError, match=r"uses too much shared data \(0x40000 bytes"):
        compiler.compile(kernel.source, 90)


def test_one_error_ends_the_compilation_of_many(kernel: Kernel, compiler: Compiler) -> None:
    bad = kernel.source.path.with_name("bad.cu")
    bad.write_text("nonsense;\n")
    pairs = [(kernel.source, 90), (Source(str(bad)), 90), (kernel.source, 80)]
    with pytest.raises(CompileError, match=r"bad\.cu:1: error"):
        compiler.compile_all(pairs)


def test_progress_is_reported(kernel: Kernel) -> None:
    seen: list[tuple[int, int]] = []
    pairs = [(kernel.source, arch) for arch in (80, 90, 80)]
    cubins = Compiler().compile_all(pairs, lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]
    assert cubins[kernel.source, 90].arch == 90


def test_definitions_make_another_source(kernel: Kernel, compiler: Compiler) -> None:
    text = SCALE.replace("scratch[33]", "scratch[SIZE]")
    kernel.source.path.write_text(text)
    for size in (40, 50):
        source = replace(kernel.source, defines=(("SIZE", size),))
        assert compiler.compile(source, 90).usage["scale"].shared == 4 * size


EARLY = """
#include "base.cuh"
extern "C" __global__ void waits(float* x, int n) {
    float weight = x[n];
    wait_for_previous();
    let_next_start();
    if (n < 4) return;
    x[threadIdx.x] = weight;
}
extern "C" __global__ void ends(float* x, int n) {
    if (n < 4) return;
    wait_for_previous();
    x[threadIdx.x] = 0.0f;
}
extern "C" __global__ void writes(float* x, int n) {
    x[threadIdx.x] = 0.0f;
    wait_for_previous();
    atomicAdd(x + n, 1.0f);
}
extern "C" __global__ void stale(const float* __restrict__ x, float* __restrict__ y) {
    wait_for_previous();
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void never(float* x) { x[threadIdx.x] = 0.0f; }
"""


def test_a_kernel_that_does_not_wait_is_told(
    tmp_path: Path, sass: None, compiler: Compiler
) -> None:
    path = tmp_path / "early.cu"
    path.write_text(EARLY)
    for arch in (90, 100, 120):
        found = early_complaints(compiler.compile(Source(str(path)), arch))
        assert sorted(text.partition(".cu ")[2] for text in found) == [
            "ends may end without wait_for_previous()",
            "never may end without wait_for_previous()",
            "never writes before wait_for_previous()",
            "stale reads past the coherent caches",
            "writes writes before wait_for_previous()",
        ]
