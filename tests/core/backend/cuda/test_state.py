"""State on the device: saved while factors are pending, copied, loaded elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.running import PAGES, Machine, Running, load, random_tokens
from support.tiny_models import TinyModel

Tiny = Callable[..., TinyModel]
WINDOW = 4


# One of each kind of recurrence.
KINDS = ("qwen35", "granitehybrid", "lfm2", "kimi-linear")


def machine(tiny: Tiny, device: str = "cuda", family: str = "qwen35") -> Machine:
    return Machine(*load(tiny(family, quantise="Q8_0").path, device), window=WINDOW)


@pytest.mark.parametrize(
    ("family", "device"), [*((family, "cuda") for family in KINDS), ("qwen35", "cuda q8_0")]
)
@pytest.mark.parametrize("n_valid", [1, 3, WINDOW])
@pytest.mark.slow
def test_saved_while_pending_goes_on_elsewhere(
    tiny: Tiny, n_valid: int, family: str, device: str, shim: None
) -> None:
    truth = random_tokens(30, seed=6)
    first = Running(machine(tiny, device, family))
    first.append(truth[:19])
    wrong = [t if i < n_valid else (t + 101) % 512 for i, t in enumerate(truth[19 : 19 + WINDOW])]
    first.forward(wrong)
    first.accept(WINDOW, n_valid)
    image = first.image()
    assert all(np.isfinite(part).all() for part in image.values())
    other = Machine(first.machine.model, first.machine.backend, window=WINDOW)
    second = Running(other, 1, [13, 2, 40, 7], first.n_tokens, first.n_pending_accepted)
    other.backend.load_slot(other.state, 1, second.pages, image)
    again = second.image()
    assert image.keys() == again.keys()
    assert all(np.array_equal(again[name], part) for name, part in image.items())
    rest = truth[first.n_tokens :]
    assert np.array_equal(first.append(rest), second.append(rest))


@pytest.mark.parametrize("family", KINDS)
def test_a_copied_slot_goes_on_alike(tiny: Tiny, family: str, shim: None) -> None:
    truth = random_tokens(24, seed=8)
    first = Running(machine(tiny, family=family))
    first.append(truth[:20])
    backend, state = first.machine.backend, first.machine.state
    backend.copy_slot(state, 0, 1, first.n_pending_accepted)
    backend.copy_pages(state, [PAGES[1]], [30])
    second = Running(first.machine, 1, [PAGES[0], 30], 20, first.n_pending_accepted)
    want = first.append(truth[20:])
    assert np.array_equal(second.append(truth[20:]), want)


@pytest.mark.parametrize("family", KINDS)
def test_nothing_of_what_was_refused_is_saved(tiny: Tiny, family: str, shim: None) -> None:
    """Two texts with one truth and other wrong drafts leave the same image."""
    truth, images = random_tokens(20, seed=3), []
    for wrong in (7, 8):
        text = Running(machine(tiny, family=family))
        text.append(truth[:17])
        text.forward([truth[17], *random_tokens(WINDOW - 1, seed=wrong)])
        text.accept(WINDOW, 1)
        images.append(text.image())
    assert images[0].keys() == images[1].keys()
    for name, part in images[0].items():
        assert np.array_equal(images[1][name], part), name
