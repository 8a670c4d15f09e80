"""The training loop, which can be interrupted at any time and resumes.

A checkpoint holds weights, optimiser, place in the data, clock and loss curve. No random number is
drawn outside what the seed and the place determine, so a resumed run goes on as if never stopped.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import ConfigError
from . import losses
from .nano_network import Network
from .optimiser import Optimiser
from .training_data import Batches, Position
from .training_schedule import Clock, SchedulePoint, ThreadCount, TrainingBudget, schedule_point

SAVE_EVERY = 150.0  # seconds
MEASURE_EVERY = 200  # steps
MAX_GRADIENT = 5.0

Report = Callable[[str], None]


@dataclass
class LossRecord:
    """One point of the loss curve, in nats per token."""

    step: int
    tokens: int
    seconds: float
    scale: float
    trunk: float
    mtp: float
    held_out: float | None = None


@dataclass
class TrainingProgress:
    step: int = 0
    tokens: int = 0
    clock: Clock = field(default_factory=Clock)
    curve: list[LossRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    path: Path
    fingerprint: str  # equal for runs that may continue each other

    def write(self, state: dict[str, Any]) -> None:
        """Replaces the old file once the new one is on the disk."""
        part = self.path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    def read(self, device: str) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.path, map_location=device, weights_only=True)
        if state["fingerprint"] != self.fingerprint:
            raise ConfigError(
                f"{self.path} belongs to another corpus, shape or seed; give another --work"
            )
        return state


class Trainer:
    def __init__(
        self,
        network: Network,
        batches: Batches,
        budget: TrainingBudget,
        checkpoint: TrainingCheckpoint,
        *,
        held_out: Tensor | None = None,
        device: str = "cpu",
        threads: ThreadCount | None = None,
        report: Report | None = None,
    ) -> None:
        self.network, self.batches, self.budget = network.to(device), batches, budget
        self.optimiser = Optimiser(network)
        self.checkpoint = checkpoint
        self.held_out, self.device, self.threads = held_out, device, threads
        self.report = report or (lambda _: None)
        self.progress = TrainingProgress()
        if checkpoint.path.exists():
            self._load()

    @property
    def part(self) -> float:
        return self.budget.progress(self.progress.tokens, self.progress.clock.seconds)

    def run(self, max_steps: int | None = None) -> None:
        """Trains to the end of the budget, or for `max_steps` steps."""
        last_saved = time.monotonic()
        has_head = self.network.shape.num_mtp_layers > 0
        for n_done, rows in enumerate(self.batches):
            if self.part >= 1 or n_done == max_steps:
                self.batches.position.row -= len(rows)  # not used
                break
            start = time.monotonic()
            self._step(rows.to(self.device), schedule_point(self.part, has_head=has_head))
            now = time.monotonic()
            self.progress.clock.add(now - start)
            if self.threads is not None:
                self.threads.after_step(now - start)
            if now - last_saved > SAVE_EVERY:
                self.save()
                last_saved = now
        self.save()

    def _step(self, rows: Tensor, at: SchedulePoint) -> None:
        p = self.progress
        self.network.train()
        with self._half_precision():
            if at.head_only:
                trunk, mtp = torch.zeros(()), losses.chained(self.network, rows)
                mtp.backward()
            else:
                trunk, mtp = losses.joint(self.network, rows)
                (trunk + losses.MTP_WEIGHT * mtp).backward()
        for name, parameter in self.network.named_parameters():
            # The head's gradients reach the shared embedding and head, which stay as they are.
            if at.head_only and not name.startswith("mtp."):
                parameter.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT))
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient of step {p.step} is {norm}")
        self.optimiser.step(self.budget.rate * at.scale)
        p.step += 1
        p.tokens += rows.shape[0] * (rows.shape[1] - losses.AHEAD)
        seconds, scale = round(p.clock.seconds, 1), round(at.scale, 4)
        record = LossRecord(p.step, p.tokens, seconds, scale, _rounded(trunk), _rounded(mtp))
        if self.held_out is not None and (p.step % MEASURE_EVERY == 0 or p.step == 1):
            record.held_out = self.measure()
        p.curve.append(record)
        if p.step % 20 == 0 or p.step <= 5:
            self.report(_line(record, self.part))

    @torch.no_grad()
    def measure(self) -> float:
        """The trunk's loss on the held-out rows, in nats per token."""
        assert self.held_out is not None
        self.network.eval()
        rows = self.held_out.to(self.device)
        with self._half_precision():
            found = [losses.joint(self.network, row)[0] for row in rows.split(4)]
        return round(float(torch.stack(found).mean()), 4)

    def _half_precision(self) -> torch.autocast:
        return torch.autocast(self.device.split(":")[0], torch.bfloat16)

    def save(self) -> None:
        p = self.progress
        state = {
            "fingerprint": self.checkpoint.fingerprint,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "position": asdict(self.batches.position),
            "step": p.step,
            "tokens": p.tokens,
            "seconds": p.clock.seconds,
            "recent": list(p.clock.recent),
            "curve": [asdict(record) for record in p.curve],
        }
        self.checkpoint.write(state)

    def _load(self) -> None:
        state = self.checkpoint.read(self.device)
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.batches.position = Position(**state["position"])
        p = self.progress = TrainingProgress(state["step"], state["tokens"])
        p.clock.seconds = state["seconds"]
        p.clock.recent.extend(state["recent"])
        p.curve = [LossRecord(**record) for record in state["curve"]]
        self.report(f"resumed at step {p.step}, {p.clock.seconds / 60:.1f} min")


def keep_freed_memory() -> None:
    """glibc returns large blocks to the system at once; new ones cost a fifth of a step."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((-4, 0), (-1, -1), (-2, 500_000_000)):
            mallopt(option, value)  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD


def _rounded(value: Tensor) -> float:
    return round(float(value.detach()), 4)


def _line(record: LossRecord, part: float) -> str:
    held_out = "" if record.held_out is None else f", held out {record.held_out:.4f}"
    return (
        f"{100 * part:5.1f} %  step {record.step}  {record.tokens / 1e6:.2f}M tokens  "
        f"{record.seconds / 60:.1f} min  rate {record.scale:.3f}  "
        f"loss {record.trunk:.4f}  mtp {record.mtp:.4f}{held_out}"
    )
