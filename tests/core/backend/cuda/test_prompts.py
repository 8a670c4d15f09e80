"""Prompts through products of many rows: near the reference, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace
from support.host_device import HostDevice, use_for_cuda
from support.running import Machine, Running, load, random_tokens, start
from support.tiny_models import TinyModel
from support.vocab import N_VOCAB

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.device_contract import Numpy
from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import build_step
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
WINDOW = 4
# Short prompts are prompts here already.
SIZES = PromptSizes(few=WINDOW + 4, calls=(64, 128), chunk=128)
TOKENS = random_tokens(90, seed=5)
CUTS = [0, 76, 90]  # the first piece has a chunk of the delta rule


@pytest.fixture(params=[0, 11], ids=["in order", "permuted"])
def shim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, seed=request.param, prompts=SIZES)


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances: Floats = weights / weights.sum(axis=1, keepdims=True)
    return chances


def divergence(made: Floats, expected: Floats) -> float:
    """Of next tokens, on average."""
    p, q = softmax(expected.astype(np.float64)), softmax(made.astype(np.float64))
    return float((p * (np.log(p) - np.log(q))).sum(axis=1).mean())


def read(text: Running, tokens: list[int], cuts: list[int] = CUTS) -> Floats:
    return np.concatenate([text.append(tokens[a:b]) for a, b in pairwise(cuts)])


CASES = [
    ("llama", "F16"),
    ("qwen2", "Q8_0"),
    ("qwen3", "BF16"),
    ("qwen35", "Q8_0"),
    ("qwen35moe", "Q8_0"),
    ("granitehybrid", "Q8_0"),
    ("lfm2", "Q8_0"),
]


@pytest.mark.parametrize(("family", "kind"), CASES)
@pytest.mark.slow
def test_a_prompt_is_near_the_reference(
    family: str, kind: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch, prompts=SIZES)
    path = tiny(family, quantise=kind).path
    made = read(start(path, "cuda"), TOKENS)
    expected = start(path, "torch").append(TOKENS)
    assert np.isfinite(made).all()
    # A product of bfloat16 rows is off by 2^-9 / sqrt(3) of a value in each of its inputs, which
    # some ten of them in a row make less than 1 % of a logit; its square is what the law of next
    # tokens is off by.
    assert np.linalg.norm(made - expected) < 0.015 * np.linalg.norm(expected)
    assert divergence(made, expected) < 2e-4


@pytest.mark.slow
def test_a_later_piece_of_a_prompt_goes_on_where_the_first_ended(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrence that runs it in chunks, too, and what is written behind it."""
    use_for_cuda(monkeypatch, prompts=SIZES)
    tokens, path = random_tokens(154, seed=6), tiny("qwen35", quantise="Q8_0").path
    made = read(start(path, "cuda"), tokens, [0, 75, 151, 152, 153, 154])
    expected = start(path, "torch").append(tokens)
    # In one piece the error is as large.
    assert np.linalg.norm(made - expected) < 0.03 * np.linalg.norm(expected)
    behind = slice(151, None)
    error = np.linalg.norm(made[behind] - expected[behind])
    assert error < 0.03 * np.linalg.norm(expected[behind])


@pytest.mark.parametrize(("family", "kind"), [("qwen3", "Q8_0"), ("qwen35moe", "Q8_0")])
@pytest.mark.slow
def test_company_changes_no_bit(family: str, kind: str, tiny: Tiny, shim: None) -> None:
    """Two prompts, one that ends within the step, and a text that is being written."""
    machine = Machine(*load(tiny(family, quantise=kind).path, "cuda"), window=WINDOW)
    prompts = [random_tokens(74, seed=1), random_tokens(20, seed=2), random_tokens(5, seed=3)]

    def texts() -> list[Running]:
        return [Running(machine, slot, range(8 * slot, 8 * slot + 8)) for slot in range(3)]

    alone = [text.append(prompt) for text, prompt in zip(texts(), prompts, strict=True)]
    together = texts()
    step = build_step([text.piece(p) for text, p in zip(together, prompts, strict=True)])
    rows = machine.run(step).logits
    ends = np.cumsum([0, *map(len, prompts)])
    for found, (first, end) in zip(alone, pairwise(ends), strict=True):
        assert np.array_equal(rows[first:end], found)
    # and what they left is the same
    for text, prompt in zip(together, prompts, strict=True):
        text.accept(len(prompt), len(prompt))
    again = texts()
    for text, prompt in zip(again, prompts, strict=True):
        text.n_tokens = text.n_pending_accepted = 0
        text.append(prompt)
    images = [[text.image() for text in group] for group in (together, again)]
    for one, other in zip(*images, strict=True):
        assert all(np.array_equal(one[name], part) for name, part in other.items())


def test_what_comes_behind_a_prompt_has_the_same_bits_in_any_width(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified rows are those of single ones, and both continue from what the prompt left."""
    use_for_cuda(monkeypatch, prompts=SIZES)
    path = tiny("qwen35", quantise="Q8_0").path
    rest = random_tokens(7, seed=9)
    made = []
    for lengths in ([1] * 7, [3, 4], [2, 1, 4]):
        text = start(path, "cuda")
        read(text, TOKENS)
        made.append(text.append_cut(rest, lengths))
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])


def test_taps_and_requests_come_from_all_parts(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, prompts=SIZES)
    path = tiny("qwen3", quantise="Q8_0").path
    taps = frozenset({"blk.1.input"})
    machine = Machine(*load(path, "cuda"), window=WINDOW, taps=taps)
    sampler = Sampler(SamplingParams(temperature=0.0), n_vocab=N_VOCAB)
    texts = [Running(machine, slot, range(8 * slot, 8 * slot + 8)) for slot in range(2)]
    prompts = [TOKENS[:3], TOKENS[:40]]
    pieces = [replace(t.piece(p), n_out=1) for t, p in zip(texts, prompts, strict=True)]
    step = replace(build_step(pieces), requests=np.array([sampler.request] * 2, np.int64))
    output = machine.run(step)
    assert output.picked is not None
    assert list(output.picked) == output.logits.argmax(axis=1).tolist()
    own = Machine(machine.model, machine.backend, window=WINDOW, taps=taps)
    for b, prompt in enumerate(prompts):
        alone = Running(own, b, range(8 * b, 8 * b + 8)).forward(prompt)
        rows = step.rows(b)
        assert np.array_equal(output.taps["blk.1.input"][rows], alone.taps["blk.1.input"])
        assert np.array_equal(output.logits[b], alone.logits[-1])


def test_a_prompt_is_run_by_the_kernels_for_many_rows(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the head, which has few rows; and its row count is one of those that are fixed."""
    use_for_cuda(monkeypatch, prompts=SIZES)
    text = start(tiny("qwen35", quantise="Q8_0").path, "cuda")
    backend = text.machine.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend.device, HostDevice)
    shapes: set[int] = set()
    matmul = backend.device.matmul

    def noted(a: Numpy, w: Numpy, out: Numpy) -> None:
        shapes.add(len(a))
        matmul(a, w, out)

    monkeypatch.setattr(backend.device, "matmul", noted)
    piece = replace(text.piece(TOKENS[:80]), n_out=1)
    text.machine.run(build_step([piece]))
    names = [launch.name for launch in backend.device.launcher.launches]
    assert shapes == {128}
    assert sum(name.startswith("attn_prefill") for name in names) == 1
    assert sum(name.startswith("gdn_chunk_run") for name in names) == 3
    assert not any(name.startswith("attn_verify") for name in names)
    assert [name for name in names if name.startswith("qmm")] == ["qmm_Q8_0_4"]
