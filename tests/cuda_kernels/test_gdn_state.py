"""Recurrent state saved, loaded and copied: to the bit, and as the reference keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shim.machine import HostMachine, Machine
from support.gdn import (
    PARTS,
    GdnLayer,
    KernelRun,
    Part,
    ReferenceRun,
    Text,
    bits,
    error,
    garbage_state,
    gdn_shape,
)

from nextn.core.backend.step import pending_accepted_after
from nextn.cuda_kernels.gdn_layout import (
    GdnShape,
    GdnState,
    replay_bytes,
    replay_memory,
    snapshot_bytes,
    snapshot_memory,
)
from nextn.cuda_kernels.gdn_state import (
    HEADER,
    snapshot_parts,
    snapshot_words,
    state_copy,
    state_load,
    state_save,
)

Floats = NDArray[np.float32]
WINDOW = 5
N_SLOTS = 3
LAYERS = [GdnLayer(gdn_shape((1, 2), 16, window=WINDOW, tiled=True), seed=s) for s in (1, 2)]
SHAPE = LAYERS[0].shape
LAYOUT = SHAPE.layout
STEPS = [(5, 3), (1, 1), (1, 1), (4, 2)]  # two of them leave factors of several steps


class Model:
    """Two layers with their states side by side, each fed with rows of its own."""

    def __init__(self, machine: Machine, layers: Sequence[GdnLayer] = LAYERS) -> None:
        self.machine, self.layers = machine, layers
        self.shape = layers[0].shape
        self.states = garbage_state(machine, self.shape, N_SLOTS, len(layers))
        self.runs = [KernelRun(machine, layer, N_SLOTS) for layer in layers]
        for i, run in enumerate(self.runs):
            run.state = self.states.layer(i)

    def step(self, text: Text, n_rows: int, n_valid: int) -> Floats:
        """True rows of both layers."""
        out = []
        for run, layer in zip(self.runs, self.layers, strict=True):
            mine = Text(layer, text.slot)
            mine.past, mine.n_pending_accepted = text.past, text.n_pending_accepted
            out.append(run.step([mine.part(n_rows, n_valid)]).rows[:n_valid])
        text.settle(n_rows, n_valid)
        return np.stack(out)

    def follow(self, text: Text, steps: Sequence[tuple[int, int]] = STEPS) -> Floats:
        return np.concatenate([self.step(text, *of) for of in steps], axis=1)

    def text(self, slot: int, like: Text | None = None) -> Text:
        text = Text(self.layers[0], slot)
        if like is not None:
            text.past, text.n_pending_accepted = like.past, like.n_pending_accepted
        return text

    def save(self, text: Text) -> Floats:
        words = snapshot_words(self.shape.layout, len(self.layers), text.n_pending_accepted)
        snapshot = self.machine.garbage(words)
        state_save(
            self.machine.launcher,
            self.shape.layout,
            self.states,
            text.slot,
            text.n_pending_accepted,
            snapshot,
        )
        return self.machine.get(snapshot)

    def load(self, text: Text, snapshot: Floats) -> None:
        image = self.machine.put(snapshot)
        state_load(
            self.machine.launcher,
            self.shape.layout,
            self.states,
            text.slot,
            text.n_pending_accepted,
            image,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: self.machine.get(getattr(self.states, name)) for name in PARTS}


def parts_of(snapshot: Floats, n_pending: int) -> dict[str, Floats]:
    parts = snapshot_parts(LAYOUT, len(LAYERS), n_pending)
    return {
        name: snapshot[first : first + int(np.prod(size))].reshape(size)
        for name, (first, size) in parts.items()
    }


def references(steps: Sequence[tuple[int, int]], slot: int) -> list[ReferenceRun]:
    runs = [ReferenceRun(layer, N_SLOTS) for layer in LAYERS]
    for run, layer in zip(runs, LAYERS, strict=True):
        text = Text(layer, slot)
        for of in steps:
            run.step([text.part(*of)])
            text.settle(*of)
    return runs


@pytest.mark.parametrize("n_steps", [1, 4])
def test_a_snapshot_holds_what_the_references_does(machine: Machine, n_steps: int) -> None:
    """After one step the inputs before the state are zeros: there were none."""
    model = Model(machine)
    text = model.text(2)
    model.follow(text, STEPS[:n_steps])
    snapshot = model.save(text)
    assert snapshot[:HEADER].view(np.int32).tolist() == [
        text.past - text.n_pending_accepted,
        text.n_pending_accepted,
        0,
        0,
    ]
    for i, reference in enumerate(references(STEPS[:n_steps], 2)):
        want = reference.state.save(2, [], 0, text.n_pending_accepted)
        for name, part in parts_of(snapshot, text.n_pending_accepted).items():
            expected = want[f"delta.0.{name}"]
            assert part[i].shape == expected.shape
            if name in ("conv", "inputs"):
                assert np.array_equal(part[i], expected)
            else:
                assert np.abs(part[i] - expected).max(initial=0) < 1e-6


@pytest.mark.parametrize("n_steps", range(1, 5))
def test_saved_and_loaded_elsewhere_it_goes_on_alike(machine: Machine, n_steps: int) -> None:
    model, other = Model(machine), Model(machine)
    text = model.text(0)
    model.follow(text, STEPS[:n_steps])
    snapshot = model.save(text)
    copy = other.text(1, text)
    other.load(copy, snapshot)
    assert np.array_equal(bits(other.save(copy)), bits(snapshot))
    rest = [(1, 1), (5, 2), (2, 2)]
    assert np.array_equal(other.follow(copy, rest), model.follow(text, rest))


def test_a_references_image_loads() -> None:
    model = Model(HostMachine(6))
    text = model.text(1)
    runs = references(STEPS, 0)
    for of in STEPS:
        text.settle(*of)
    snapshot = np.zeros(snapshot_words(LAYOUT, 2, text.n_pending_accepted), np.float32)
    snapshot[:HEADER].view(np.int32)[0] = text.past - text.n_pending_accepted
    for i, run in enumerate(runs):
        image = run.state.save(0, [], 0, text.n_pending_accepted)
        for name, part in parts_of(snapshot, text.n_pending_accepted).items():
            part[i] = image[f"delta.0.{name}"]
    model.load(text, snapshot)
    parts = [
        Part(0, text.past, text.n_pending_accepted, layer.true_rows[text.past :][:3])
        for layer in LAYERS
    ]
    got = model.step(text, 3, 3)
    for made, run, rows in zip(got, runs, parts, strict=True):
        assert error(made, run.step([rows])) < 1e-6


@pytest.mark.parametrize("n_steps", range(1, 5))
def test_a_copied_slot_goes_on_alike(machine: Machine, n_steps: int) -> None:
    model = Model(machine)
    text = model.text(2)
    model.follow(text, STEPS[:n_steps])
    before = model.arrays()
    state_copy(machine.launcher, LAYOUT, model.states, 2, 0, text.n_pending_accepted)
    after = model.arrays()
    for name in PARTS:
        assert np.array_equal(bits(after[name][:, 1:]), bits(before[name][:, 1:]))
    rest = [(3, 1), (1, 1), (5, 5)]
    assert np.array_equal(model.follow(model.text(0, text), rest), model.follow(text, rest))


def test_what_cannot_be_is_said() -> None:
    model = Model(HostMachine(0))
    launcher, states = model.machine.launcher, model.states
    with pytest.raises(ValueError, match="slot 1 cannot be copied to itself"):
        state_copy(launcher, LAYOUT, states, 1, 1, 0)
    with pytest.raises(ValueError, match="slot 3; there are 3"):
        state_copy(launcher, LAYOUT, states, 1, 3, 0)
    with pytest.raises(ValueError, match="6 pending factors; a window holds 5"):
        state_copy(launcher, LAYOUT, states, 0, 1, 6)
    with pytest.raises(ValueError, match="snapshot: shape"):
        state_save(launcher, LAYOUT, states, 0, 1, np.zeros(7, np.float32))
    wrong = GdnState(*(getattr(states, name) for name in ("ring", *PARTS[1:])))
    with pytest.raises(ValueError, match="state: shape"):
        state_copy(launcher, LAYOUT, wrong, 0, 1, 0)


# What it costs -----------------------------------------------------------------------------------


def test_bytes_of_a_step_beside_snapshots() -> None:
    """A 27B: 48 layers of 48 value heads; figures of docs/kernels.md."""
    dense = GdnShape(16, 48, 128, 4, 16, 19, True)
    megabytes = {
        n: (replay_bytes(dense, 48, n, n).total / 1e6, snapshot_bytes(dense, 48, n).total / 1e6)
        for n in (1, 4, 8, 16)
    }
    rounded = {n: tuple(map(round, pair)) for n, pair in megabytes.items()}
    assert rounded == {1: (305, 302), 4: (315, 755), 8: (327, 1359), 16: (353, 2567)}
    # decoding token by token, a state is stored at every fourth step
    steps, replay, total = 400, 0, 0
    for _ in range(steps):
        kept = pending_accepted_after(replay, 1, 0, 16)
        total += replay_bytes(dense, 48, 1, replay, stores=not kept).total
        replay = kept + 1
    assert round(total / steps / 1e6) == 194
    assert round(replay_memory(dense, 48) / 1e6) == 51
    assert round(snapshot_memory(dense, 48, 16) / 1e6) == 2265
