"""A tiny run: the loss falls, a resumed run is the same run, the schedule ends where it should."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from nextn.convert.nano import losses
from nextn.convert.nano.corpus import Corpus, SourceFile
from nextn.convert.nano.nano_network import Network
from nextn.convert.nano.nano_shapes import NanoShape
from nextn.convert.nano.optimiser import orthogonalise
from nextn.convert.nano.training import Trainer, TrainingCheckpoint
from nextn.convert.nano.training_data import Batches, TrainingData
from nextn.convert.nano.training_schedule import (
    HEAD_PART,
    STALL,
    Clock,
    ThreadCount,
    TrainingBudget,
    schedule_point,
)
from nextn.core.errors import ConfigError

from .test_network import SMALL_DRAFT, SMALL_NANO

LENGTH, ROWS = 40, 2
LINES = "".join(f"def add_{i}(first, second):\n    return first + {i}\n\n" for i in range(60))


@pytest.fixture(scope="module")
def prepared() -> TrainingData:
    files = [SourceFile("3.9.0", f"{i}.py", LINES.replace("add", f"add{i}")) for i in range(4)]
    return TrainingData.of_corpus(Corpus(files[:3], files[3:]), [], 300)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trainer(
    prepared: TrainingData, path: Path, budget: TrainingBudget, shape: NanoShape = SMALL_NANO
) -> Trainer:
    torch.manual_seed(5)
    network = Network(dataclasses.replace(shape, vocab_size=len(prepared.vocabulary)))
    batches = Batches(
        lambda number: prepared.epoch(5, number),
        length=LENGTH,
        ahead=losses.AHEAD,
        rows=ROWS,
        seed=5,
    )
    rows = prepared.held_out_rows(LENGTH + losses.AHEAD)
    checkpoint = TrainingCheckpoint(path, prepared.fingerprint(shape))
    return Trainer(network, batches, budget, checkpoint, held_out=rows)


@pytest.mark.parametrize("shape", [SMALL_NANO, SMALL_DRAFT], ids=["hybrid", "plain"])
def test_the_loss_falls(shape: NanoShape, prepared: TrainingData, tmp_path: Path) -> None:
    made = trainer(prepared, tmp_path / "a.pt", TrainingBudget(tokens=60 * LENGTH * ROWS), shape)
    before = made.measure()
    made.run()
    assert made.progress.step == 60
    assert made.measure() < 0.5 * before
    curve = made.progress.curve
    if shape.num_mtp_layers:
        assert curve[0].mtp == pytest.approx(curve[0].trunk, abs=0.2)
        joint = [record.mtp for record in curve if record.trunk]
        assert joint[-1] < 0.6 * joint[0]


def test_a_resumed_run_is_the_same_run(prepared: TrainingData, tmp_path: Path) -> None:
    """Stopped twice, once in the part that trains the head alone."""
    budget = TrainingBudget(tokens=20 * LENGTH * ROWS)
    whole = trainer(prepared, tmp_path / "whole.pt", budget)
    whole.run()
    for steps in (7, 11, None):
        parts = trainer(prepared, tmp_path / "parts.pt", budget)
        parts.run(steps)
    assert parts.progress.step == whole.progress.step == 20
    for (name, a), b in zip(
        whole.network.state_dict().items(), parts.network.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name
    losses_of = [[(r.trunk, r.mtp) for r in t.progress.curve] for t in (whole, parts)]
    assert losses_of[0] == losses_of[1]


def test_the_end_trains_the_head_alone(prepared: TrainingData, tmp_path: Path) -> None:
    made = trainer(prepared, tmp_path / "a.pt", TrainingBudget(tokens=20 * LENGTH * ROWS))
    made.run(18)
    before = {name: p.clone() for name, p in made.network.state_dict().items()}
    made.run()
    changed = {n for n, p in made.network.state_dict().items() if not torch.equal(p, before[n])}
    assert changed
    assert all(name.startswith("mtp.") for name in changed)


def test_a_foreign_checkpoint_is_refused(prepared: TrainingData, tmp_path: Path) -> None:
    trainer(prepared, tmp_path / "a.pt", TrainingBudget(tokens=1)).save()
    with pytest.raises(ConfigError, match="another corpus"):
        trainer(prepared, tmp_path / "a.pt", TrainingBudget(tokens=1), SMALL_DRAFT)


def test_chained_loss_has_the_trunk_as_target(prepared: TrainingData, tmp_path: Path) -> None:
    """The loss of a head that equals the trunk is the trunk's own entropy."""
    network = trainer(prepared, tmp_path / "a.pt", TrainingBudget(tokens=1)).network
    rows = prepared.held_out_rows(LENGTH + losses.AHEAD)[:2]
    hidden = network.model(rows).detach()
    # A head without weights of its own that is handed the trunk's later rows.
    handed = iter([hidden[:, 1 + i : 1 + i + LENGTH] for i in range(losses.CHAIN)])
    network.draft_rows = lambda *_: next(handed)  # type: ignore[method-assign]
    log_probs = torch.log_softmax(network.lm_head(hidden), -1).detach()
    entropy = float(-(log_probs.exp() * log_probs).sum(-1).mean())
    assert float(losses.chained(network, rows).detach()) == pytest.approx(entropy, rel=0.05)


def test_the_rate_is_a_factor(prepared: TrainingData, tmp_path: Path) -> None:
    """Adam's first step is as long as its rate."""
    moved = []
    for rate in (1.0, 0.25):
        budget = TrainingBudget(tokens=100 * LENGTH * ROWS, rate=rate)
        made = trainer(prepared, tmp_path / f"{rate}.pt", budget)
        norm = made.network.model.norm.weight
        before = norm.detach().clone()
        made.run(1)
        moved.append(float((norm - before).detach().abs().mean()))
    assert moved[1] == pytest.approx(0.25 * moved[0], rel=0.01)


def test_schedule() -> None:
    assert schedule_point(0.0, has_head=True).scale < 0.1
    assert schedule_point(0.3, has_head=True).scale == 1
    assert schedule_point(1 - HEAD_PART - 1e-6, has_head=True).scale < 1e-4
    assert schedule_point(1 - HEAD_PART + 1e-6, has_head=True).head_only
    assert not schedule_point(0.999, has_head=False).head_only
    assert TrainingBudget(minutes=2).progress(10**9, 60.0) == 0.5
    assert TrainingBudget(tokens=100).progress(25, 1e9) == 0.25


def test_the_clock_leaves_out_time_stopped() -> None:
    clock = Clock()
    for _ in range(10):
        clock.add(1.0)
    clock.add(600.0)
    assert clock.seconds == 10 + STALL


def test_orthogonal_factor() -> None:
    stack = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(stack))
    assert values.min() > 0.5
    assert values.max() < 1.4


def thread_counts(seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The counts that 200 steps ran on; the first step on another count takes much longer."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    threads, taken, last = ThreadCount(2), [], 0
    for _ in range(200):
        now = threads.current
        taken.append(now)
        threads.after_step(seconds[now] + (5.0 if now != last else 0.0))
        last = now
    return taken


def test_threads_that_wait_for_each_other_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = thread_counts({2: 2.0, 1: 4.0}, monkeypatch)
    assert idle.count(2) > 150
    assert idle.count(1) > 6  # tried again and again
    busy = thread_counts({2: 5.0, 1: 4.0}, monkeypatch)
    assert busy.count(1) > 130
