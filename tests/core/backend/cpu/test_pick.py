"""The kernel that picks tokens, on every platform: no fused roundings, the same tokens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nextn.core.backend import picking
from nextn.core.backend.cpu.kernels.sample import PICK, write_pick
from nextn.core.backend.cpu.machine_code import optimised, target_machine
from nextn.core.backend.cpu.simd import SETS, Simd
from nextn.core.backend.interface import MAXIMA_BLOCK
from nextn.core.sampling.native_picks import make_pick_request
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

from .test_sets import ARM_SETS, LINUX, GenericArm, GenericX86, needs_qemu, run_in_qemu

FUSED = r"\s(vfn?m(?:add|sub)\w*|fn?m(?:add|sub)|fml[as])\s"
PLATFORMS: list[tuple[Simd, str]] = [
    *((SETS[name](), "x86_64") for name in ("avx512-vnni", "avx-vnni", "avx2", "ssse3")),
    (SETS["neon-dotprod"](), "aarch64"),
    (GenericX86(), "x86_64"),
    (GenericArm(), "aarch64"),
]


@pytest.mark.parametrize(("simd", "architecture"), PLATFORMS, ids=lambda x: getattr(x, "name", x))
def test_nothing_is_fused_and_nothing_is_called(simd: Simd, architecture: str) -> None:
    machine = target_machine(simd, LINUX[architecture])
    text = machine.emit_assembly(optimised("pick", write_pick, machine, simd, PICK))
    assert re.search(r"\s(v?divpd|fdiv)\s", text), "the logarithm divides"
    assert re.findall(FUSED, text) == []
    assert re.findall(r"^\s+(?:callq?|bl)\s.*", text, re.MULTILINE) == []


def test_every_set_is_looked_at() -> None:
    assert {simd.name.split(" ")[0] for simd, _ in PLATFORMS} == set(SETS)


def test_fused_operations_would_be_seen() -> None:
    for line in ("\tvfmadd213pd\t%zmm0", "\tfmla\tv0.2d", "\tfmadd\td0", "\tvfnmadd231sd\t%xmm1"):
        assert re.search(FUSED, line)


PICKS = """
    int64_t *request = (int64_t *)load("request");
    int64_t logits = load("logits"), maxima = load("maxima"), scratch = load("scratch");
    request[IDS] = load("ids");
    request[VALUES] = load("values");
    int64_t (*pick)(int64_t, int64_t, int64_t, int64_t, int64_t) = (void *)kernel;
    static int64_t tokens[COUNT];
    for (int i = 0; i < COUNT; i++)
        tokens[i] = pick(logits, maxima, (int64_t)request, scratch, i);
    save((int64_t)tokens, sizeof(tokens));
"""


@needs_qemu
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=2**63 + 5),
        SamplingParams(seed=1, top_k=200, top_p=0.99, min_p=0.001, temperature=1.5),
        SamplingParams(seed=2, logit_bias=((3, 20.0), (5, -np.inf))),
        SamplingParams(temperature=0),
    ],
    ids=["defaults", "many", "biased", "greedy"],
)
@pytest.mark.parametrize("simd", ARM_SETS, ids=lambda simd: simd.name)
def test_picks_on_aarch64(simd: Simd, params: SamplingParams, tmp_path: Path) -> None:
    size, count = 5_003, 200
    row = np.random.default_rng(4).normal(0, 3, size).astype(np.float32)
    starts = range(0, size, MAXIMA_BLOCK)
    maxima = np.array([row[i : i + MAXIMA_BLOCK].max() for i in starts], np.float32)
    request = make_pick_request(params, 6, size)
    assert request is not None
    words, ids, values = request.arrays
    body = PICKS.replace("COUNT", str(count))
    body = body.replace("IDS", str(picking.BIAS_IDS)).replace("VALUES", str(picking.BIAS_VALUES))
    out = run_in_qemu(
        tmp_path, simd, write_pick, PICK, body, request=words, logits=row, maxima=maxima, ids=ids,
        values=values, scratch=np.zeros(picking.SCRATCH_BYTES, np.uint8),
    )  # fmt: skip
    sampler = Sampler(params, n_vocab=size, sequence=6)
    assert out.view(np.int64).tolist() == [sampler.pick(row, (), i) for i in range(count)]
