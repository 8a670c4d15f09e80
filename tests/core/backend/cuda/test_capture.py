"""What happens while launches are captured: launches, and nothing that lasts.

Memory made then belongs to all graphs in turn. So whatever stays from run to run has to be there
from the first, uncaptured one; kernels, too, because loading one ends a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.host_device import HostDevice, use_for_cuda
from support.running import Running, random_tokens, start
from support.tiny_models import TinyModel

from nextn.core.backend import cuda
from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.interface import DraftLoopPlan, DraftSettings
from nextn.core.backend.step import build_step
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
FORBIDDEN = "zeros", "put", "get", "write", "mirror", "wait"
GREEDY = SamplingParams(temperature=0.0)


class Capturing(HostDevice):
    """Work that is captured may launch and take passing memory; what it took is spoilt after each
    run, as by other graphs."""

    def __init__(self) -> None:
        super().__init__()
        self._passing: list[Any] = []
        self.is_capturing = False
        self.captured: list[list[str]] = []
        for name in FORBIDDEN:
            setattr(self, name, self._refused(getattr(self, name), name))

    def empty(self, shape: Any, dtype: str) -> Any:
        made = super().empty(shape, dtype)
        if self.is_capturing:
            self._passing.append(made)
        return made

    def repeatable(self, work: Callable[[], Any]) -> Callable[[], Any]:
        def repeat() -> Any:
            self.is_capturing, first = True, len(self.launcher.launches)
            made = work()
            self.is_capturing = False
            self.captured.append([launch.name for launch in self.launcher.launches[first:]])
            for array in self._passing:
                array.reshape(-1).view(np.uint8)[...] = 0xF5
            self._passing.clear()
            return made

        return repeat

    def _refused(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def checked(*arguments: Any) -> Any:
            assert not self.is_capturing, f"{name} while launches are captured"
            return method(*arguments)

        return checked


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    use_for_cuda(monkeypatch)
    made = Capturing()
    monkeypatch.setattr(cuda, "open_device", lambda index: made)
    return made


@pytest.mark.parametrize(("family", "kind"), [("qwen35moe", "Q8_0"), ("llama", "BF16")])
def test_nothing_that_lasts_is_made_while_capturing(
    family: str, kind: str, tiny: Tiny, device: Capturing
) -> None:
    """And the captured launches are those of the first run, with the same results."""
    path = tiny(family, quantise=kind).path
    whole = start(path, "cuda").append(random_tokens(9))
    device.captured.clear()
    text, tokens = start(path, "cuda"), random_tokens(9)
    first = len(device.launcher.launches)
    made = [text.append(tokens[:3])]
    names = [launch.name for launch in device.launcher.launches[first:]]
    made += [text.append(tokens[3:6]), text.append(tokens[6:])]
    assert np.array_equal(np.concatenate(made), whole)
    assert device.captured == [names] * 2


def test_picks_and_taps_outlive_what_other_graphs_do(tiny: Tiny, device: Capturing) -> None:
    text = start(tiny("qwen35", mtp=True, quantise="Q8_0").path, "cuda")
    machine, sampler = text.machine, Sampler(GREEDY, n_vocab=512)
    machine.run = machine.backend.compile(
        machine.model.forward, machine.state, max_rows=8, taps=frozenset({H_NEXTN})
    )
    step = build_step([text.piece(random_tokens(2))])
    step = replace(step, requests=np.array([sampler.request], np.int64))
    plain = machine.run(step)
    want = plain.logits.copy(), plain.taps[H_NEXTN].copy(), plain.picked
    again = machine.run(step)
    assert device.captured
    draft_twice(text)
    assert again.picked == want[2]
    assert np.array_equal(again.logits, want[0])
    assert np.array_equal(again.taps[H_NEXTN], want[1])


def draft_twice(text: Running) -> None:
    """As it comes and captured: the same drafts."""
    machine = text.machine
    assert isinstance(machine.backend, CudaBackend)
    run = machine.backend.compile_draft_loop(
        machine.model.nextn[0].forward, machine.state, DraftLoopPlan(8, 3, 512, H_NEXTN)
    )
    sampler = DraftSampler(Sampler(GREEDY, n_vocab=512))
    hidden = np.ones((2, machine.model.hparams.n_embd), np.float32)
    step = replace(build_step([text.piece(random_tokens(2))]), hidden=hidden)
    drafts = [run(step, [DraftSettings(sampler, 3)]) for _ in range(3)]
    assert drafts[0] == drafts[1] == drafts[2]
    assert len(drafts[0].tokens[0]) == 3
