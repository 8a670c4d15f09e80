"""What a step launches: as few kernels as planned, and the same ones whatever the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from support.host_device import HostDevice, use_for_cuda
from support.running import Running, random_tokens, start
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.step import build_step
from nextn.core.models.drafters.mtp_network import H_NEXTN

Tiny = Callable[..., TinyModel]
# norm, input product, mixer, output product; norm, gates and ups, down. Attention is three.
DELTA, ATTENTION = 7, 9
ROUTED = 1  # launches more: route, gates and ups, down; the sum is the next norm's
AROUND = 3  # embedding, last norm, head
SUMMITS = 1  # of logits, where the head is not quantised
RING = 1  # where inputs of convolutions go, once for all layers


def launches(text: Running, tokens: list[int]) -> list[str]:
    backend = text.machine.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend.device, HostDevice)
    made = backend.device.launcher.launches
    made.clear()
    text.append(tokens)
    return [launch.name for launch in made]


@pytest.mark.parametrize(
    ("family", "kind", "expected"),
    [
        ("qwen3", "Q8_0", AROUND + 2 * ATTENTION),
        ("llama", "BF16", AROUND + SUMMITS + 2 * ATTENTION),
        ("qwen3", "F32", AROUND + SUMMITS + 2 * ATTENTION),
        ("qwen35", "Q8_0", AROUND + RING + 3 * DELTA + ATTENTION),
        ("qwen35moe", "Q8_0", AROUND + RING + 3 * DELTA + ATTENTION + 4 * ROUTED),
    ],
)
def test_a_step_is_as_many_launches_as_planned(
    family: str, kind: str, expected: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch)
    text = start(tiny(family, quantise=kind).path, "cuda")
    first = launches(text, random_tokens(3))
    assert len(first) == len(launches(text, random_tokens(1, seed=1))) == expected
    assert first == launches(text, random_tokens(3, seed=2))  # wrong drafts and positions apart


def test_a_prompt_keeps_its_last_rows_by_itself(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than a ring has: one launch more in each recurrent layer, and none for places."""
    use_for_cuda(monkeypatch)
    text = start(tiny("qwen35", quantise="Q8_0").path, "cuda")
    made = launches(text, random_tokens(20))
    assert made.count("gdn_keep_rows") == 3
    assert len(made) == AROUND + 3 * (DELTA + 1) + ATTENTION


def test_a_head_begins_with_one_launch(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token's row is looked up, normed and put beside the hidden row at once."""
    use_for_cuda(monkeypatch)
    text = start(tiny("qwen35", mtp=True, quantise="Q8_0").path, "cuda")
    machine = text.machine
    head, backend = machine.model.nextn[0], machine.backend
    machine.run = backend.compile(
        head.forward, machine.state, max_rows=4, taps=frozenset({H_NEXTN})
    )
    step = build_step([text.piece(random_tokens(2))])
    hidden = np.ones((2, machine.model.hparams.n_embd), np.float32)
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend.device, HostDevice)
    machine.run(replace(step, hidden=hidden))
    names = [launch.name for launch in backend.device.launcher.launches]
    assert names[:2] == ["embed_concat_quant", "qmm_Q8_0_4"]
    assert len(names) == 2 + ATTENTION + 3  # and the tap, the last norm, the logits
