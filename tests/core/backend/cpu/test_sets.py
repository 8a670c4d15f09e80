"""Instruction sets: exact dot products, the instructions that come out, and other platforms' code.

Sets that this CPU lacks are compiled and read; NEON also runs, in qemu, where that is installed.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.blocks import random_blocks
from support.int8_rows import pack
from support.running import load
from support.tiny_models import TinyModel

from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.backend.cpu.emit import F32, I8, I16, I32, KERNEL, Emitter, vector
from nextn.core.backend.cpu.formats import FORMATS, find_tile_format
from nextn.core.backend.cpu.formats.tile_format import CpuTileFormat
from nextn.core.backend.cpu.kernels.tile import TILE, weight_bits, write_tile
from nextn.core.backend.cpu.machine_code import Kernels, optimised, target_machine
from nextn.core.backend.cpu.simd import SETS, SIGNED_BITS, AvxVnni, Generic, NeonDotprod, Simd
from nextn.core.backend.cpu.simd import neon as neon_module
from nextn.core.backend.cpu.tile_matrix import Repacker
from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import MatrixPart
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

Tiny = Callable[..., TinyModel]
LINUX = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
N_CASES, N_TERMS, N_ROWS = 600, 8, 2
QUANTISED = [form for form in FORMATS.values() if not form.is_float]


class LongVnni(AvxVnni):
    """AVX-VNNI's code in the instructions of AVX512, for CPUs that have only those."""

    name = "avx-vnni as avx512"
    features = ("avx2", "fma", "avx512vl", "avx512vnni")


class GenericArm(Generic):
    name = "generic on aarch64"

    def cpu(self) -> str:
        return "generic"


class GenericX86(Generic):
    name = "generic on x86-64"

    def cpu(self) -> str:
        return "x86-64"


RUNNABLE: list[Simd] = [made() for made in SETS.values() if made.is_available()]
if LongVnni.is_available():
    RUNNABLE.append(LongVnni())


def call(simd: Simd, folder: Path, write: Callable[[Emitter], None], *arrays: NDArray[Any]) -> None:
    """Run a kernel whose arguments are arrays."""
    kernels = Kernels(simd, folder)  # holds the code: must outlive the call
    address = kernels.get({"test": write})["test"]
    words = np.array([a.ctypes.data for a in arrays], np.int64)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)(words.ctypes.data, 0, 1)


# Dot products ------------------------------------------------------------------------------------


def write_dots(e: Emitter, bits: int, *, weighs: bool = False) -> None:
    """Arguments: weights (cases, terms, 64), activations (cases, terms, rows), totals; and what the
    pairs of each row are multiplied by, int16 (rows, 2)."""
    weights_at, x_at, totals_at = e.words(e.parameters[0], 3)
    pairs = None
    if weighs:
        pairs_at = e.words(e.parameters[0], 4)[3]
        pairs = [e.splat(e.load(I32, pairs_at + 4 * m)) for m in range(N_ROWS)]
    with e.range(0, N_CASES) as case:
        terms = []
        for term in range(N_TERMS):
            weights = e.load(vector(I8, 64), weights_at + case * (64 * N_TERMS) + 64 * term, 1)
            at = x_at + case * (4 * N_TERMS * N_ROWS) + 4 * N_ROWS * term
            terms.append((weights, [e.splat(e.load(I32, at + 4 * m)) for m in range(N_ROWS)]))
        addresses = [totals_at + case * (64 * N_ROWS) + 64 * m for m in range(N_ROWS)]
        totals = [e.load(vector(I32), address) for address in addresses]
        for total, address in zip(
            e.simd.dots(e, totals, iter(terms), bits, pairs), addresses, strict=True
        ):
            e.store(total, address)
    e.finish()


def dot_inputs(bits: int, *, signed: bool) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Random bytes, and in every other case nothing but extremes; totals that are not zero. No
    activation is -128, which signed weights could not negate."""
    rng = np.random.default_rng(bits)
    low, high = (-128, 127) if signed else (0, 2**bits - 1)
    weights = rng.integers(low, high, (N_CASES, N_TERMS, 64), endpoint=True)
    least = -127 if signed else -128
    x = rng.integers(least, 127, (N_CASES, N_TERMS, N_ROWS, 4), endpoint=True)
    weights[::2] = rng.choice([low, high], weights[::2].shape)
    x[::2] = rng.choice([least, 127], x[::2].shape)
    weights[0], x[0] = high, least  # the largest sums of either sign
    weights[2], x[2] = high, 127
    weights[4], x[4] = low, least
    totals = rng.integers(-(2**20), 2**20, (N_CASES, N_ROWS, 16)).astype(np.int32)
    return weights.astype(np.int8 if signed else np.uint8), x.astype(np.int8), totals


def expected_dots(weights: NDArray[Any], x: NDArray[Any], totals: NDArray[Any]) -> NDArray[Any]:
    lanes = weights.astype(np.int64).reshape(N_CASES, N_TERMS, 16, 4)
    made: NDArray[np.int64] = totals + np.einsum("ctlb,ctmb->cml", lanes, x.astype(np.int64))
    return made


@pytest.mark.parametrize("bits", range(1, SIGNED_BITS + 1))
@pytest.mark.parametrize("simd", RUNNABLE, ids=lambda simd: simd.name)
def test_dot_products_are_exact(simd: Simd, bits: int, tmp_path: Path) -> None:
    weights, x, totals = dot_inputs(bits, signed=bits == SIGNED_BITS and simd.takes_signed)
    want = expected_dots(weights, x, totals)
    call(simd, tmp_path, partial(write_dots, bits=bits), weights, x, totals)
    assert np.array_equal(totals, want)


@pytest.mark.parametrize("bits", [*range(1, 8), SIGNED_BITS])
@pytest.mark.parametrize(
    "simd", [simd for simd in RUNNABLE if simd.weighs_pairs], ids=lambda simd: simd.name
)
def test_weighed_pairs_are_exact(simd: Simd, bits: int, tmp_path: Path) -> None:
    weights, x, totals = dot_inputs(bits, signed=bits == SIGNED_BITS)
    pairs = np.random.default_rng(8).integers(1, 256, (N_ROWS, 2)).astype(np.int16)
    pairs[0] = 255, 1
    weighed = x.astype(np.int64) * np.repeat(pairs, 2, axis=1)
    want = expected_dots(weights, weighed, totals)
    call(simd, tmp_path, partial(write_dots, bits=bits, weighs=True), weights, x, totals, pairs)
    assert np.array_equal(totals, want)


@pytest.mark.parametrize("simd", RUNNABLE, ids=lambda simd: simd.name)
def test_lookups_find_every_entry(simd: Simd, tmp_path: Path) -> None:
    table = np.random.default_rng(5).permutation(256)[:16]
    index = np.random.default_rng(6).integers(0, 16, 64, dtype=np.uint8)
    out = np.zeros(64, np.uint8)

    def write(e: Emitter) -> None:
        source, target = e.words(e.parameters[0], 2)
        found = e.simd.lookup(e, table.tolist(), e.load(vector(I8, 64), source, 1))
        e.store(found, target, 1)
        e.finish()

    call(simd, tmp_path, write, index, out)
    assert np.array_equal(out, table[index])


@pytest.mark.parametrize("form", QUANTISED, ids=lambda form: form.name)
def test_weights_have_no_more_bits_than_is_claimed(form: CpuTileFormat, tmp_path: Path) -> None:
    """What sums in 16 bits rely on; and the claim is tight but for formats without a zero point."""
    claims: list[int] = []
    used = np.zeros(64, np.uint8)
    quants = np.random.default_rng(7).integers(0, 256, form.quant_bytes, dtype=np.uint8)
    scales = np.zeros(form.scale_bytes, np.uint8)

    def write(e: Emitter) -> None:
        quants_at, scales_at, target = e.words(e.parameters[0], 3)
        for group in form.groups(e, quants_at, scales_at):
            claims.append(weight_bits(group))
            for v in range(8):
                e.store(e.load(vector(I8, 64), target, 1) | group.vector(v), target, 1)
        e.finish()

    call(Generic(), tmp_path, write, aligned_copy(quants), scales, used)
    most = int(np.bitwise_or.reduce(used)).bit_length()
    assert claims
    assert most <= min(claims)
    assert most == min(claims) or min(claims) == 5


def aligned_copy(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    room = np.zeros(data.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + data.nbytes] = data.reshape(-1)
    return room[start : start + data.nbytes]


# The instructions that come out -------------------------------------------------------------------


@cache
def hybrid_kernels(tiny: Tiny) -> dict[str, tuple[Callable[[Emitter], None], Any]]:
    """Name, writer and kind of a small hybrid file's kernels, and one tile of every format.

    Of tiles only the narrow ones: the wide are the same instructions in greater number.
    """
    found: dict[str, tuple[Callable[[Emitter], None], Any]] = {}

    class Watching(Kernels):
        def get(self, wanted: Any, report: Any = None, kinds: Any = None) -> dict[str, int]:
            found.update({n: (write, (kinds or {}).get(n, KERNEL)) for n, write in wanted.items()})
            return super().get(wanted, report, kinds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nextn.core.backend.cpu.backend.Kernels", Watching)
        model, backend = load(tiny("qwen35moe", quantise="Q8_0").path, "cpu", 1)
        assert isinstance(backend, CpuBackend)
        state = backend.new_state(
            model.state_shape, StateRoom(n_pages=2, page_len=64, n_slots=1, window=4)
        )
        backend.compile(model.forward, state, max_rows=4)
    assert {"delta", "attend", "product", "tile"} <= {name.split("_")[0] for name in found}
    for form in QUANTISED:
        found[f"tile_{form.name}_1"] = (partial(write_tile, form=form, m=1), TILE)
    return {
        n: made for n, made in found.items() if not n.endswith(("_8", "_16")) or "tile" not in n
    }


@cache
def assembly(tiny: Tiny, simd_class: type[Simd], architecture: str) -> str:
    """Of all kernels; each must also make an object."""
    simd = simd_class()
    machine = target_machine(simd, LINUX[architecture])
    texts = []
    for name, (write, kind) in hybrid_kernels(tiny).items():
        module = optimised(name, write, machine, simd, kind)
        assert machine.emit_object(module)[:4] == b"\x7fELF"
        texts.append(machine.emit_assembly(module))
    return "\n".join(texts)


EXPECTED: list[tuple[type[Simd], str, list[str], list[str]]] = [
    # set, architecture, instructions that must be there, and that must not
    (
        SETS["avx512-vnni"], "x86_64",
        [r"vpdpbusd\s.*%zmm", r"vpshufb\s.*%zmm", r"vfmadd\w+ps\s.*%zmm", r"vcvtph2ps\s.*%zmm"],
        [r"vpmaddubsw"],
    ),
    (
        SETS["avx-vnni"], "x86_64",
        [r"\{vex\}\s+vpdpbusd\s.*%ymm", r"vpshufb\s.*%ymm", r"vfmadd\w+ps\s.*%ymm", "vcvtph2ps"],
        [r"%zmm", r"%[xy]mm(1[6-9]|[23]\d)", r"%k[0-7]", r"vpmaddubsw"],
    ),
    (
        SETS["avx2"], "x86_64",
        [r"vpmaddubsw\s.*%ymm", r"vpmaddwd\s.*%ymm", r"vpshufb\s.*%ymm", r"vfmadd\w+ps\s.*%ymm"],
        [r"%zmm", r"%[xy]mm(1[6-9]|[23]\d)", r"%k[0-7]", r"vpdpbusd"],
    ),
    (
        SETS["ssse3"], "x86_64",
        [r"pmaddubsw\s.*%xmm", r"pmaddwd\s.*%xmm", r"mulps\s"],
        [r"%[yz]mm", r"^\s+v[a-z]", r"pmulld", r"pblendvb", r"ptest"],
    ),
    (
        SETS["neon-dotprod"], "aarch64",
        [r"sdot\s+v\d+\.4s, v\d+\.16b", r"tbl\s+v\d+\.16b", r"fcvtl\s", r"fcvtn\s", r"fmla\s"],
        [r"\sz\d+\.[bhsd]", r"usdot", r"smmla"],
    ),
    (
        GenericX86, "x86_64", [r"pmaddwd\s.*%xmm", r"mulps\s"],
        [r"%[yz]mm", r"^\s+v[a-z]", r"pshufb", r"pmaddubsw", r"pmulld", r"pblendvb", r"ptest"],
    ),
    (GenericArm, "aarch64", [r"smlal", r"fmul\s"], [r"sdot", r"udot", r"\sz\d+\.[bhsd]"]),
]  # fmt: skip


exhaustive = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("simd_class", "architecture", "present", "absent"),
    # Each compiles every kernel, in up to half a minute.
    [
        each if each[0].name in ("avx2", "neon-dotprod") else pytest.param(*each, marks=exhaustive)
        for each in EXPECTED
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_kernels_consist_of_the_instructions_of_their_set(
    simd_class: type[Simd], architecture: str, present: list[str], absent: list[str], tiny: Tiny
) -> None:
    text = assembly(tiny, simd_class, architecture)
    for pattern in present:
        assert re.search(pattern, text, re.MULTILINE), pattern
    for pattern in absent:
        found = re.search(rf".*{pattern}.*", text, re.MULTILINE)
        assert found is None, found
    called = set(re.findall(r"^\s+(?:callq?|bl)\s+(\w+)", text, re.MULTILINE))
    assert called <= {"spec_syscall", "memset", "memcpy"}, (
        "half floats and fma have no library here"
    )


def test_every_set_is_looked_at() -> None:
    looked_at = {simd_class.name.split(" ")[0] for simd_class, *_ in EXPECTED}
    assert looked_at == set(SETS)
    assert list(SETS)[-1] == "generic"


# Which set is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "system", "info", "available"),
    [
        ("aarch64", "linux", "Features\t: fp asimd asimdhp asimddp sve\n", True),
        ("aarch64", "linux", "Features\t: fp asimd asimdhp\n", False),
        ("aarch64", "linux", "", False),
        ("arm64", "darwin", "", True),
        ("x86_64", "darwin", "", False),
        ("x86_64", "linux", "Features\t: asimddp\n", False),
    ],
)
def test_the_dot_product_of_neon_is_asked_for(
    machine: str, system: str, info: str, available: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cpu_info = tmp_path / "cpuinfo"
    if info:
        cpu_info.write_text(f"processor\t: 0\n{info}")
    monkeypatch.setattr(neon_module, "CPU_INFO", cpu_info)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(
        "nextn.core.backend.cpu.emit.binding.get_host_cpu_features", dict[str, bool]
    )
    assert NeonDotprod.is_available() is available


@pytest.mark.parametrize(
    ("present", "best"),
    [
        ("avx2 fma f16c avxvnni avx512f avx512bw avx512vl avx512vnni", "avx512-vnni"),
        ("avx2 fma f16c avxvnni", "avx-vnni"),
        ("avx2 fma f16c avx512f avx512bw avx512vl", "avx2"),
        ("avx2 fma ssse3", "ssse3"),
        ("avx", "generic"),
    ],
)
def test_the_best_set_with_all_its_features_is_first(
    present: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = dict.fromkeys(present.split(), True)
    monkeypatch.setattr(
        "nextn.core.backend.cpu.emit.binding.get_host_cpu_features",
        lambda: features,
    )
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert next(name for name, made in SETS.items() if made.is_available()) == best


# Another platform, in qemu -----------------------------------------------------------------------

QEMU, CROSS_GCC = "qemu-aarch64", "aarch64-linux-gnu-gcc"
needs_qemu = pytest.mark.skipif(
    not (shutil.which(QEMU) and shutil.which(CROSS_GCC)),
    reason=f"runs aarch64 code: needs {QEMU} (qemu-user) and {CROSS_GCC}",
)
HARNESS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int64_t spec_syscall(void) { return 0; }
static int64_t load(const char *name) {
    FILE *file = fopen(name, "rb");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *room = aligned_alloc(64, (size + 127) / 64 * 64);
    if (fread(room, 1, size, file) != (size_t)size) exit(2);
    fclose(file);
    return (int64_t)room;
}
static void save(int64_t data, size_t size) {
    FILE *file = fopen("out", "wb");
    if (fwrite((void *)data, 1, size, file) != size) exit(3);
    fclose(file);
}
void kernel(PARAMETERS);
int main(void) { BODY return 0; }
"""


def run_in_qemu(
    folder: Path, simd: Simd, write: Callable[[Emitter], None], kind: Any, body: str, **files: Any
) -> NDArray[np.uint8]:
    """What `body` saves, having called `kernel` with the arrays in `files`."""
    machine = target_machine(simd, LINUX["aarch64"])
    module = optimised("kernel", write, machine, simd, kind)
    (folder / "kernel.o").write_bytes(machine.emit_object(module))
    parameters = ", ".join(["int64_t"] * len(kind.args))
    (folder / "main.c").write_text(HARNESS.replace("PARAMETERS", parameters).replace("BODY", body))
    for name, array in files.items():
        (folder / name).write_bytes(array.tobytes())
    build = [CROSS_GCC, "-static", "-O1", "main.c", "kernel.o", "-o", "program"]
    for command in (build, [QEMU, "./program"]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (command, done.stderr)
    return np.fromfile(folder / "out", np.uint8)


ARM_SETS: list[Simd] = [NeonDotprod(), GenericArm()]


@needs_qemu
@pytest.mark.parametrize("bits", [4, 5, 6, 7, SIGNED_BITS])
@pytest.mark.parametrize("simd", ARM_SETS, ids=lambda simd: simd.name)
def test_dot_products_are_exact_on_aarch64(simd: Simd, bits: int, tmp_path: Path) -> None:
    weights, x, totals = dot_inputs(bits, signed=bits == SIGNED_BITS)
    body = """
        int64_t words[3] = {load("weights"), load("x"), load("totals")};
        kernel((int64_t)words, 0, 1);
        save(words[2], SIZE);
    """.replace("SIZE", str(totals.nbytes))
    write = partial(write_dots, bits=bits)
    out = run_in_qemu(tmp_path, simd, write, KERNEL, body, weights=weights, x=x, totals=totals)
    got = out.view(np.int32).reshape(totals.shape)
    assert np.array_equal(got, expected_dots(weights, x, totals))


@needs_qemu
@pytest.mark.parametrize("form", QUANTISED, ids=lambda form: form.name)
@pytest.mark.parametrize("simd", ARM_SETS, ids=lambda simd: simd.name)
def test_products_on_aarch64_equal_dequantised_weights(
    simd: Simd, form: CpuTileFormat, tmp_path: Path
) -> None:
    stored, m, n_in = find_format(form.name), 4, 512
    held = find_tile_format(form.name, simd)
    raw = random_blocks(form.name, 16, n_in)
    weights = stored.dequantize(raw.reshape(-1, stored.block_bytes)).reshape(16, n_in)
    tensor = Tensor("t", (16, n_in), stored, np.ascontiguousarray(raw).reshape(-1))
    host = type("Host", (Generic,), {"looks_up": simd.looks_up})()
    tiles = Repacker(Kernels(host, tmp_path), 1).repack(MatrixPart(tensor))
    x = np.random.default_rng(8).standard_normal((m, n_in)).astype(np.float32)
    records, values = pack(x, simd)
    body = f"""
        int64_t y = (int64_t)aligned_alloc(64, {64 * m});
        kernel(load("quants"), load("scales"), {n_in // held.span}, load("x"), 0, y, 64, 16, 0, 0);
        save(y, {64 * m});
    """
    out = run_in_qemu(
        tmp_path, simd, partial(write_tile, form=held, m=m), TILE, body,
        quants=tiles.quants, scales=tiles.scales, x=records,
    )  # fmt: skip
    want = values @ weights.T.astype(np.float64)
    got = out.view(np.float32).reshape(m, 16)
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


@needs_qemu
@pytest.mark.parametrize("simd", ARM_SETS, ids=lambda simd: simd.name)
def test_half_floats_on_aarch64_are_numpys(simd: Simd, tmp_path: Path) -> None:
    """All half floats to float32; and back, from floats that have to be rounded."""
    halves = np.arange(65536, dtype=np.uint16)
    nan = np.isnan(halves.view(np.float16))
    floats = np.random.default_rng(9).standard_normal(65536).astype(np.float32)
    floats[::2] *= 1e-6  # subnormal as half floats
    floats[:4] = [np.inf, -np.inf, 65519.9, -65520]
    n_bytes = 6 * 65536

    def write(e: Emitter) -> None:
        half_at, float_at, target = e.words(e.parameters[0], 3)
        with e.range(0, halves.nbytes, 32) as at:
            e.store(e.simd.from_half(e, e.load(vector(I16), half_at + at, 2)), target + at * 2)
            half = e.simd.to_half(e, e.load(vector(F32), float_at + at * 2))
            e.store(half, target + (4 * 65536) + at, 2)
        e.finish()

    body = f"""
        int64_t out = (int64_t)aligned_alloc(64, {n_bytes});
        int64_t words[3] = {{load("halves"), load("floats"), out}};
        kernel((int64_t)words, 0, 1);
        save(out, {n_bytes});
    """
    out = run_in_qemu(tmp_path, simd, write, KERNEL, body, halves=halves, floats=floats)
    up, down = out[: 4 * 65536].view(np.float32), out[4 * 65536 :].view(np.uint16)
    assert np.array_equal(up[~nan], halves.view(np.float16)[~nan].astype(np.float32))
    assert np.isnan(up[nan]).all()
    with np.errstate(over="ignore"):
        assert np.array_equal(down, floats.astype(np.float16).view(np.uint16))
