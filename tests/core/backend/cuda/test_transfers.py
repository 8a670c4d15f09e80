"""What travels between host and device: little, and no logits unless somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from shim.launcher import HostLauncher
from support.host_device import HostDevice, use_for_cuda
from support.running import Running, random_tokens, start
from support.scripted import Oracle, drain
from support.tiny_models import TinyModel
from support.vocab import N_VOCAB

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.step import build_step
from nextn.core.errors import ModelError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions
from nextn.cuda_kernels.compile import CompileError

Tiny = Callable[..., TinyModel]
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=8)
SAMPLED = GenerateParams(SamplingParams(temperature=0.8, seed=3), max_tokens=8)


@pytest.fixture(autouse=True)
def shim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary steps only: of rounds see test_device_loop_engine.py."""
    use_for_cuda(monkeypatch)
    monkeypatch.setattr(CudaBackend, "compile_device_loop", lambda *_: None)


def device_of(of: Runtime | Running) -> HostDevice:
    backend = of.machine.backend if isinstance(of, Running) else of.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend.device, HostDevice)
    return backend.device


@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_tokens_come_back_and_nothing_else(how: GenerateParams, tiny: Tiny) -> None:
    """Plain, then with drafts to verify, of which every other one is wrong at its second token."""
    path = tiny("qwen35", quantise="Q8_0").path
    prompt = random_tokens(9, n_vocab=256)
    with load_runtime(path, "cuda", n_ctx=128) as runtime:
        fetched = device_of(runtime).fetched
        engine = runtime.new_engine(runtime.plan(1))
        engine.add(prompt, how)
        plain = drain(engine)
        assert fetched == [(1,)] * len(plain)
        oracle = Oracle(lambda n, place: int(n % 2 == 0 and place == 1), length=3)
        oracle.n_vocab = runtime.n_vocab
        engine = runtime.new_engine(runtime.plan(1), oracle)
        text = engine.add(prompt, how)
        oracle.texts[text.id] = [*prompt, *(event.token for event in plain)]
        fetched.clear()
        assert [e.token for e in drain(engine)] == [e.token for e in plain]
    assert max(fetched) > (1,)
    assert all(len(shape) == 1 for shape in fetched)


def test_drafts_of_a_head_bring_hidden_rows_back_and_no_logits(tiny: Tiny) -> None:
    """To be verified: tokens, and the rows that the head is to continue from. Of the head: drafts,
    without a copy for each token."""
    path = tiny("qwen35", mtp=True, quantise="Q8_0").path
    options = SpecOptions(types=("mtp",), fixed=True, draft_n_max=3)
    with load_runtime(path, "cuda", n_ctx=128, spec=options) as runtime:
        device = device_of(runtime)
        drafter = build_speculator(runtime.setting(1))
        engine = runtime.new_engine(runtime.plan(1), drafter)
        text = engine.add(random_tokens(9, n_vocab=256), replace(SAMPLED, max_tokens=12))
        engine.step()
        device.fetched.clear()
        device.sent.clear()
        n_steps = text.stats.steps
        drain(engine)
        n_steps = text.stats.steps - n_steps
    assert text.stats.draft_n > n_steps
    assert not [shape for shape in device.fetched if shape[-1] == N_VOCAB]
    assert len(device.sent) <= 2 * n_steps
    assert len(device.fetched) <= 3 * n_steps


def test_logits_come_when_somebody_looks(tiny: Tiny) -> None:
    path = tiny("qwen35", quantise="Q8_0").path
    with load_runtime(path, "cuda", n_ctx=128) as runtime:
        fetched = device_of(runtime).fetched
        engine = runtime.new_engine(runtime.plan(1))
        engine.add(random_tokens(9, n_vocab=256), replace(GREEDY, logprobs=2))
        events = drain(engine)
    assert [shape for shape in fetched if len(shape) > 1] == [(1, N_VOCAB)] * len(events)


def test_what_is_looked_at_too_late_is_refused(tiny: Tiny) -> None:
    text = start(tiny("qwen3", quantise="Q8_0").path, "cuda")
    step = build_step([text.piece(random_tokens(3))])
    run = text.machine.run
    early = run(step)
    kept = early.logits
    late = run(step)
    assert np.array_equal(early.logits, kept)
    assert late.maxima is not None
    run(step)
    with pytest.raises(RuntimeError, match="the logits of a step were read after"):
        _ = late.logits


def test_a_step_is_one_copy_to_the_device(tiny: Tiny) -> None:
    """Of all that describes it, whatever its shape; and it is not touched while it leaves."""
    text = start(tiny("qwen35", quantise="Q8_0").path, "cuda")
    device, lengths = device_of(text), [3, 1, 1, 3, 40, 1, 3]
    device.sent.clear()
    whole = start(tiny("qwen35", quantise="Q8_0").path, "cuda").append(random_tokens(52))
    assert np.array_equal(text.append_cut(random_tokens(52), lengths), whole)
    assert len(device.sent) == len(lengths)


def test_what_failed_the_first_time_takes_nothing_along(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step of that shape has numbers of its own."""
    path = tiny("qwen3", quantise="Q8_0").path
    text, tokens = start(path, "cuda"), random_tokens(3)
    with monkeypatch.context() as patch:
        patch.setattr(HostLauncher, "start", refuse)
        with pytest.raises(ModelError):
            text.forward(random_tokens(3, seed=9))
    assert np.array_equal(text.append(tokens), start(path, "cuda").append(tokens))


def refuse(*_: object, **__: object) -> None:
    raise CompileError("no such thing")
