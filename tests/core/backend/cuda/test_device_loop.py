"""Rounds that the device makes by itself, against the same model asked step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.host_device import HostDevice, use_for_cuda
from support.running import Machine, Running, load, random_tokens
from support.tiny_models import TinyModel
from support.vocab import N_VOCAB

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.interface.device_loop import (
    DeviceDrafter,
    DeviceLoop,
    DeviceLoopPlan,
    DeviceSequence,
    DraftLimit,
)
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
PROMPTS = [random_tokens(n, seed=n, n_vocab=256) for n in (6, 9)]
PAGES = [np.arange(8, dtype=np.int32), np.arange(20, 28, dtype=np.int32)]
SAMPLERS = [
    Sampler(SamplingParams(temperature=0.0), n_vocab=N_VOCAB),
    Sampler(SamplingParams(temperature=0.8, seed=3), n_vocab=N_VOCAB),
]
N_TOKENS = 9


def a_machine(tiny: Tiny, family: str, *, mtp: bool) -> Machine:
    model, backend = load(tiny(family, mtp=mtp, quantise="Q8_0").path, "cuda")
    taps = frozenset({H_NEXTN}) if mtp else frozenset()
    return Machine(model, backend, window=4, taps=taps)


def read_prompts(machine: Machine) -> list[tuple[Running, int, np.ndarray | None]]:
    """Each text with its first token, and the hidden row before it."""
    found = []
    for i, prompt in enumerate(PROMPTS):
        text = Running(machine, slot=i, pages=PAGES[i].tolist())
        output = text.forward(prompt)
        text.accept(len(prompt), len(prompt))
        token = SAMPLERS[i].pick(output.logits[-1], position=len(prompt))
        found.append((text, token, output.taps[H_NEXTN][-1:] if machine.taps else None))
    return found


def plainly(machine: Machine, n: int) -> tuple[list[list[int]], list[Running]]:
    """Tokens of each text, the first of which came out of its prompt."""
    made, texts = [], []
    for i, (text, token, _) in enumerate(read_prompts(machine)):
        tokens = [token]
        while len(tokens) < n:
            row = text.append([tokens[-1]])[0]
            tokens.append(SAMPLERS[i].pick(row, position=text.n_tokens))
        made.append(tokens)
        texts.append(text)
    return made, texts


def begin(machine: Machine, *, max_draft: int, stops: tuple[int, ...] = ()) -> DeviceLoop:
    drafter = None
    if machine.taps:
        drafter = DeviceDrafter(machine.model.nextn[0].forward, H_NEXTN, max_draft)
    plan = DeviceLoopPlan(machine.model.forward, machine.state, N_VOCAB, stops, 4, drafter)
    rounds = machine.backend.compile_device_loop(plan)
    assert rounds is not None
    texts = []
    for i, (text, token, hidden) in enumerate(read_prompts(machine)):
        end, request = text.n_tokens + N_TOKENS, SAMPLERS[i].request
        assert request
        texts.append(
            DeviceSequence(
                i,
                {"pages": PAGES[i]},
                text.n_tokens,
                text.n_pending_accepted,
                end,
                request,
                [token],
                hidden,
            )
        )
    rounds.begin(texts, max_draft, drafts=bool(machine.taps))
    return rounds


@pytest.mark.parametrize(
    ("family", "mtp", "most"),
    [("qwen3", False, 0), ("qwen35", True, 2), ("qwen35moe", True, 3), ("qwen35", True, 0)],
)
@pytest.mark.slow
def test_two_texts_are_those_of_plain_decoding(
    family: str, mtp: bool, most: int, tiny: Tiny, shim: None
) -> None:
    expected, ends = plainly(a_machine(tiny, family, mtp=mtp), N_TOKENS)
    machine = a_machine(tiny, family, mtp=mtp)
    rounds = begin(machine, max_draft=3)
    made: list[list[int]] = [[], []]
    rows = [end.n_tokens for end in ends]
    n_drafted = 0
    rounds.enqueue([DraftLimit(most)] * 2, 32)
    for _ in range(N_TOKENS):
        rounds.enqueue([DraftLimit(most), DraftLimit(max(most - 1, 0))], 32)
        assert rounds.n_under_way == 2
        result = rounds.collect()
        assert result.step_ms > 0
        for sequence, tokens in zip(result.sequences, made, strict=True):
            assert not sequence.is_unsure
            tokens += sequence.tokens
            n_drafted += len(sequence.drafted)
            assert sequence.tokens[: sequence.n_accepted] == sequence.drafted[: sequence.n_accepted]
    rounds.collect()
    assert made == [tokens[1:] for tokens in expected]
    assert bool(n_drafted) == bool(most)
    assert [left.past for left in rounds.end()] == rows


def test_logits_stay_on_the_device(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round copies nothing to the host, and what is posted between rounds is nothing either."""
    use_for_cuda(monkeypatch)
    machine = a_machine(tiny, "qwen35", mtp=True)
    rounds = begin(machine, max_draft=3)
    backend = machine.backend
    assert isinstance(backend, CudaBackend)
    device = backend.device
    assert isinstance(device, HostDevice)
    rounds.enqueue([DraftLimit(2), DraftLimit(2)], 32)
    device.launcher.launches.clear()

    def refuse(*_: object) -> None:
        raise AssertionError("a copy between host and device")

    for name in ("get", "put", "write", "post"):
        monkeypatch.setattr(device, name, refuse)
    rounds.enqueue([DraftLimit(2), DraftLimit(2)], 32)
    assert sum(len(sequence.tokens) for sequence in rounds.collect().sequences) >= 2
    names = [launch.name for launch in device.launcher.launches]
    assert names.count("draft_pick") == 2
    assert [names.count(n) for n in ("draft_begin", "verify_begin", "spec_accept")] == [1, 1, 1]
    assert names[-1] == "spec_accept"
