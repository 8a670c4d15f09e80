"""Whole models through the CUDA kernels: near the reference, and the same bits however cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checked_sources import if_backend_changed
from msgspec.structs import replace
from support.every_family import WITH_CHECKPOINT_HEAD
from support.running import Running, random_tokens, start
from support.tiny_gemma import GEMMAS
from support.tiny_heads import KINDS, build_head
from support.tiny_models import TinyModel
from support.vocab import N_VOCAB

from nextn.core.backend.layers import Floats
from nextn.core.backend.step import build_step
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

pytestmark = if_backend_changed

Tiny = Callable[..., TinyModel]
TOKENS = random_tokens(22, seed=5)
# What half-precision keys and values cost, in logits of deviation about 1.
NEAR = 0.02
RECURRENT = ("granitehybrid", "falcon-h1", "nemotron_h", "mamba2", "lfm2", "lfm2moe", "kimi-linear")
CASES = [
    ("llama", "BF16"),
    ("llama-yarn", "F16"),
    ("qwen2", "F32"),
    ("qwen3", "Q8_0"),
    ("qwen3next", "Q8_0"),
    ("qwen35", "F32"),
    ("qwen35moe", "Q8_0"),
    ("qwen3moe", "BF16"),
    *(
        (family, "BF16")
        for family in (
            *WITH_CHECKPOINT_HEAD,
            *GEMMAS,
            "olmo2",
            "phi",
            "cohere2",
            "hunyuan-dense",
            "mistral3",
            "llama4-chunks",
        )
    ),
    *((family, "BF16") for family in RECURRENT),
]
# Kernels of a GPU take keys of whole sixteens, as released models have them.
WIDER = {
    "mimo2": ({"head_dim": 32}, {"attention.key_length": 32, "rope.dimension_count": 10}),
    **dict.fromkeys(
        ("deepseek2", "glm4-lite"),
        (
            {"qk_rope_head_dim": 16},
            {
                "attention.key_length": 48,
                "attention.key_length_mla": 32,
                "rope.dimension_count": 16,
            },
        ),
    ),
}
HYBRIDS = [
    ("qwen35", "Q8_0"),
    ("qwen35moe", "Q8_0"),
    *((family, "Q8_0") for family in ("granitehybrid", "falcon-h1", "lfm2", "kimi-linear")),
]
OTHERS = [("qwen3", "Q8_0"), ("llama", "BF16"), ("llama4-chunks", "Q8_0")]


@pytest.mark.parametrize(("family", "kind"), CASES)
@pytest.mark.slow
def test_logits_are_near_the_references(
    family: str, kind: str, tiny: Tiny, shim: None, tmp_path: Path
) -> None:
    if family in WIDER:
        settings, keys = WIDER[family]
        of = KINDS[family]
        wider = dataclasses.replace(of, settings=of.settings | settings, keys=of.keys | keys)
        path = build_head(family, tmp_path, kind=wider, quantise=kind).trunk
    else:
        path = tiny(family, quantise=kind).path
    made, expected = (start(path, device).append(TOKENS) for device in ("cuda", "torch"))
    assert np.isfinite(made).all()
    assert np.abs(made - expected).max() < NEAR
    assert np.abs(start(path, "cuda").append(TOKENS[:3]) - expected[3:6]).max() > 10 * NEAR


@pytest.mark.parametrize(("family", "kind"), [*OTHERS, *HYBRIDS])
@pytest.mark.slow
def test_cuts_company_and_wrong_drafts_change_no_bit(
    family: str, kind: str, tiny: Tiny, shim: None
) -> None:
    path = tiny(family, quantise=kind).path
    whole = start(path, "cuda").append(TOKENS)
    for lengths in ([1] * len(TOKENS), [5, 1, 3, 4, 2, 3, 4]):
        assert np.array_equal(start(path, "cuda").append_cut(TOKENS, lengths), whole)
    assert np.array_equal(with_wrong_drafts(start(path, "cuda")), whole)
    assert np.array_equal(in_company(start(path, "cuda")), whole)


def with_wrong_drafts(text: Running) -> Floats:
    rng, made = np.random.default_rng(1), []
    while text.n_tokens < len(TOKENS):
        first = text.n_tokens
        true = TOKENS[first : first + int(rng.integers(1, 4))]
        wrong = rng.integers(0, 256, int(rng.integers(0, 3))).tolist()
        made.append(text.forward([*true, *wrong]).logits[: len(true)])
        text.accept(len(true) + len(wrong), len(true))
    return np.concatenate(made)


def in_company(text: Running) -> Floats:
    """Another text in the same steps, before it and longer."""
    other, made = Running(text.machine, slot=2, pages=range(20, 40)), []
    for i in range(len(TOKENS)):
        noise = random_tokens(3 - i % 2, seed=i)
        step = build_step([other.piece(noise), text.piece(TOKENS[i : i + 1])])
        made.append(text.machine.run(step).logits[-1:].copy())
        other.accept(len(noise), len(noise))
        text.accept(1, 1)
    return np.concatenate(made)


def test_taps_are_those_of_the_reference(tiny: Tiny, shim: None) -> None:
    path = tiny("qwen35moe", quantise="Q8_0").path
    taps = {}
    for device in ("cuda", "torch"):
        text = start(path, device)
        names = frozenset({"h_nextn", "blk.1.input", "blk.3.input"})
        machine = text.machine
        machine.run = machine.backend.compile(
            machine.model.forward, machine.state, max_rows=32, taps=names
        )
        taps[device] = text.forward(TOKENS[:6]).taps
        assert taps[device].keys() == names
    for name, rows in taps["torch"].items():
        assert np.abs(taps["cuda"][name] - rows).max() < NEAR * max(1, np.abs(rows).max())


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_tokens_are_picked_as_the_sampler_picks_them(family: str, tiny: Tiny, shim: None) -> None:
    """With a bias and filters, greedily, and by nobody's wish."""
    text = start(tiny(family, quantise="Q8_0").path, "cuda")
    text.append(TOKENS[:9])
    samplers = [
        Sampler(SamplingParams(temperature=0.0), n_vocab=N_VOCAB),
        Sampler(
            SamplingParams(temperature=0.9, seed=5, logit_bias=((3, 4.0), (7, -np.inf))),
            n_vocab=N_VOCAB,
        ),
    ]
    step = build_step([text.piece(TOKENS[9:12])])
    for sampler in samplers:
        request = sampler.request
        assert request
        step = replace(step, requests=np.array([request], np.int64))
        output = text.machine.run(step)
        assert output.picked is not None
        expected = [sampler.pick(row, position=10 + i) for i, row in enumerate(output.logits)]
        assert list(output.picked) == expected
