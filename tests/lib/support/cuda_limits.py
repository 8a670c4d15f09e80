"""What a compiled source may take, as lists of complaints."""

from __future__ import annotations

from collections.abc import Iterable

from nextn.cuda_kernels.compile import Cubin
from nextn.cuda_kernels.image import shapes
from nextn.cuda_kernels.kernel import Kernel
from nextn.cuda_kernels.report import Usage

from .sass import functions, reached_before

# bytes that a block may have, by compute capability times ten (CUDA C++ Programming Guide)
SHARED_OF_A_BLOCK = {
    80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10
}  # fmt: skip
REGISTERS_OF_A_BLOCK = 65536


def complaints(kernels: Iterable[Kernel], cubin: Cubin) -> list[str]:
    """About the kernels that a source declares and those that it has."""
    declared = {kernel.name: kernel for kernel in kernels if kernel.source == cubin.source}
    place = f"{cubin.source.label} sm_{cubin.arch}"
    bad = [f"{place}: {name} is declared, but not there" for name in declared.keys() - cubin.usage]
    bad += [f"{place}: {name} is not declared" for name in cubin.usage.keys() - declared]
    if cubin.warnings:
        bad.append(f"{place}: {cubin.warnings}")
    bounds = shapes(cubin.image)
    for name in sorted(declared.keys() & cubin.usage):
        if bounds[name].threads != declared[name].threads:
            threads = f"{bounds[name].threads}, declared are {declared[name].threads} threads"
            bad.append(f"{place} {name}: __launch_bounds__ of {threads}")
        found = _of_one(declared[name], cubin.usage[name], cubin.arch)
        bad += [f"{place} {name}: {text}" for text in found]
    return bad


def early_complaints(cubin: Cubin) -> list[str]:
    """About kernels that may be launched before the one before them has ended.

    What they write may still be read by it; and the kernel behind them waits for them alone, so
    they must not end before it does. What they read may still be written by it: a load that is not
    coherent (`ld.global.nc`) might get what was there before.
    """
    bad = []
    for name, function in functions(cubin).items():
        code = reached_before(function, "ACQBULK")
        if name not in cubin.usage:
            continue
        if code.kinds["global store"] or code.kinds["atomic"]:
            bad.append(f"{cubin.source.label} {name} writes before wait_for_previous()")
        if code.count("EXIT"):
            bad.append(f"{cubin.source.label} {name} may end without wait_for_previous()")
        if any("CONSTANT" in each.opcode for each in function.instructions):
            bad.append(f"{cubin.source.label} {name} reads past the coherent caches")
    return bad


def _of_one(kernel: Kernel, usage: Usage, arch: int) -> list[str]:
    threads = -(-kernel.threads // 32) * 32
    pairs = [
        ("registers", usage.registers, kernel.registers),
        ("registers of a block", threads * -(-usage.registers // 8) * 8, REGISTERS_OF_A_BLOCK),
        ("bytes of static shared memory", usage.shared, kernel.shared),
        (
            "bytes of shared memory",
            usage.shared + kernel.dynamic_shared,
            SHARED_OF_A_BLOCK[arch],
        ),
        ("bytes of stack", usage.stack, kernel.stack),
        ("bytes spilled", usage.spilled, 0),
    ]
    return [f"{is_} {what}, at most {may}" for what, is_, may in pairs if is_ > may]
