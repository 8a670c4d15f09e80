"""What a model takes on a device, told before it is loaded: against what it then takes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from weakref import finalize

import numpy as np
import pytest
from support import device_loops
from support.host_device import HostDevice, use_for_cuda
from support.random_file import Sizes
from support.sparse_file import write_sparse_qwen35
from support.tiny_models import TinyModel
from support.vocab import N_VOCAB

import nextn.core
from nextn.core.backend.cuda.device_contract import Numpy, Shape
from nextn.core.errors import ConfigError, ModelError
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import NO_SPECULATION
from nextn.cuda_kernels.kernel import Array

Tiny = Callable[..., TinyModel]


class Counting(HostDevice):
    """Knows what of its arrays is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0

    def empty(self, shape: Shape, dtype: str) -> Array:
        return self._counted(super().empty(shape, dtype))

    def zeros(self, shape: Shape, dtype: str) -> Array:
        return self._counted(super().zeros(shape, dtype))

    def put(self, values: Numpy) -> Array:
        return self._counted(super().put(values))

    def free_bytes(self) -> int:
        return self.free - self.live

    def _counted(self, array: Array) -> Array:
        owner: np.ndarray = array
        while isinstance(owner.base, np.ndarray):  # views keep it alive
            owner = owner.base
        self._change(array.nbytes)
        finalize(owner, self._change, -array.nbytes)
        return array

    def _change(self, n_bytes: int) -> None:
        self.live += n_bytes
        self.most = max(self.most, self.live)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    use_for_cuda(monkeypatch, device=made)
    return made


@pytest.mark.parametrize(
    ("family", "kind"), [("qwen3", "Q8_0"), ("qwen35moe", "Q8_0"), ("qwen35", "F32")]
)
def test_what_is_foretold_is_what_is_taken(
    family: str, kind: str, tiny: Tiny, device: Counting
) -> None:
    """Weights and state to the byte; with steps, no more than was said, and not much less."""
    path = tiny(family, quantise=kind).path
    with nextn.core.load(path, "cuda", n_ctx=128, spec=NO_SPECULATION) as runtime:
        budget, weights = runtime.budget, runtime.backend.weight_bytes()
        assert device.live == weights == budget.weights
        runtime.new_engine(budget)
        assert device.most - weights == budget.kv + budget.recurrent


@pytest.mark.slow
def test_steps_take_what_was_foretold(tiny: Tiny, device: Counting) -> None:
    path = tiny("qwen35", quantise="Q8_0").path
    with nextn.core.load(path, "cuda", n_ctx=64, spec=NO_SPECULATION) as runtime:
        budget = runtime.budget
        params = GenerateParams(max_tokens=3, sampling=SamplingParams(temperature=0.0))
        list(runtime.generate([5] * 60, params))
        vocab_subset = device.most - budget.weights - budget.kv - budget.recurrent
    assert 0.3 * budget.working.scratch < vocab_subset <= budget.working.scratch


@pytest.mark.slow
def test_rounds_take_what_was_foretold(tiny: Tiny, device: Counting) -> None:
    """Whose logits no step has kept room for."""
    path = tiny("qwen35", mtp=True, quantise="Q8_0").path
    with device_loops.runtime(path) as runtime:
        made = device_loops.writing(runtime, 3)
        budget = runtime.plan(3)
        for n in range(3):
            made.add(n, device_loops.GREEDY)
        made.drain()
        assert made.n_rounds
        taken = device.most - budget.weights - budget.kv - budget.recurrent
    assert 0.3 * budget.working.scratch < taken <= budget.working.scratch


def test_logits_of_rounds_are_foretold(
    tiny: Tiny, device: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all rows that verify in all sequences: more than a step may have."""
    path, scratch = tiny("qwen35", mtp=True, quantise="Q8_0").path, []
    with device_loops.runtime(path) as runtime:
        for longest in (1, 16):
            monkeypatch.setattr("nextn.core.backend.cuda.plan.HEAD_DRAFTS", longest)
            scratch.append(runtime.plan(16).working.scratch)
    logits = 16 * 15 * N_VOCAB * 4
    assert scratch[1] - scratch[0] > logits


def test_nothing_is_sent_of_what_is_refused(tiny: Tiny, device: Counting) -> None:
    path = tiny("qwen35moe", quantise="Q8_0").path
    with nextn.core.load(path, "cuda", n_ctx=128) as runtime:
        budget = runtime.budget
    del runtime
    device.free, device.most = budget.weights + budget.needed - budget.recurrent - 1, 0
    with pytest.raises((ConfigError, ModelError)) as caught:
        nextn.core.load(path, "cuda", n_ctx=128)
    assert device.most == 0
    said = str(caught.value)
    assert "\n" not in said
    assert "--device cpu" in said


def test_the_refusal_names_what_helps(tiny: Tiny, device: Counting) -> None:
    path = tiny("qwen3", quantise="Q8_0").path
    with nextn.core.load(path, "cuda", n_ctx=64) as runtime:
        device.free = runtime.budget.weights + runtime.budget.needed
    del runtime
    with pytest.raises(ConfigError) as caught:
        nextn.core.load(path, "cuda", n_ctx=4096)
    assert re.search(
        r"GiB to work with\) beside .* are free; give a smaller -c \(up to 64 would fit\); "
        r"--cache-type-k q8_0 with --cache-type-v q8_0, a smaller file or --device cpu may help"
        r", too$",
        str(caught.value),
    )


@pytest.mark.parametrize("name", ["cuda", "cpu"])
def test_a_context_that_nobody_asked_for_is_what_fits(
    name: str, tiny: Tiny, device: Counting, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tiny("qwen3", quantise="Q8_0").path
    with nextn.core.load(path, name) as runtime:
        usual, budget = runtime.n_ctx, runtime.budget
    del runtime  # and its arrays
    weights, needed = budget.weights, budget.needed - 2 * budget.page_bytes
    device.free = weights + needed
    # The host's memory is asked for before and after the weights were loaded.
    answers = [weights + needed]
    monkeypatch.setattr(
        "nextn.core.fitting.available_memory", lambda: answers.pop() if answers else needed
    )
    monkeypatch.setattr("nextn.core.fitting.LEAST_CONTEXT", usual - 128)
    with caplog.at_level(logging.WARNING), nextn.core.load(path, name) as runtime:
        assert usual - 128 <= runtime.n_ctx < usual
        assert f"has {runtime.n_ctx} tokens: {usual} do not fit into memory" in caplog.text
    answers.append(weights + needed)
    monkeypatch.setattr("nextn.core.fitting.LEAST_CONTEXT", usual)
    with pytest.raises(ConfigError, match="not enough memory"):
        nextn.core.load(path, name)


def test_codebooks_are_counted_as_what_they_become(tmp_path: Path, device: Counting) -> None:
    sizes = Sizes(n_layers=4, n_embd=256, n_ff=512, n_vocab=1024, n_delta_heads=2)
    path = write_sparse_qwen35(tmp_path / "iq2.gguf", "IQ2_XXS", sizes)
    device.free = 2 * path.stat().st_size
    with pytest.raises(ModelError, match=r"expands its types.*Q4_K.*--device cpu"):
        nextn.core.load(path, "cuda", n_ctx=64)


def test_an_interrupt_while_loading_leaves_nothing(
    tiny: Tiny, device: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("qwen3", quantise="Q8_0").path
    original, n_sent = device.send, 0

    def interrupted(staged: Numpy, target: Array) -> None:
        nonlocal n_sent
        n_sent += 1
        if n_sent == 5:
            raise KeyboardInterrupt
        original(staged, target)

    monkeypatch.setattr(device, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        nextn.core.load(path, "cuda", n_ctx=64)
    assert device.most > 0
    device.arrive()
    assert device.live == 0
