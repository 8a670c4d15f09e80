"""Several ranks on the CPU: over the reference backend, or over the CUDA backend's shim."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.host_device import use_for_cuda

from nextn.core.backend.cuda.prompt import PromptSizes
from nextn.core.backend.layers import HALF_FLOATS
from nextn.core.backend.step import Step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models.base import Model
from nextn.core.ranks.backend import RankedBackend
from nextn.core.ranks.load import load_ranked, open_ranks
from nextn.core.ranks.process import Worker
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import SpecOptions
from nextn.core.state.sizes import StateSizes
from nextn.core.tokenizer import load_tokenizer

N_CTX = 128
SHORT_PROMPTS = PromptSizes(few=8, calls=(16, 32), chunk=64)
SIZES = StateSizes(N_CTX)
SLOW_S = 2.5


def as_here() -> None:
    """What the process of a rank calls first: it computes as the tests' does."""
    torch.set_num_threads(1)
    patch(pytest.MonkeyPatch())


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, prompts=SHORT_PROMPTS)


def stuck_in_its_last_step() -> None:
    """The third of three rows: the process lives, and its step does not end."""
    slow_at_first()
    run, n_run = Worker.step, 0

    def step(self: Worker, state: int, number: int, step: Step) -> None:
        nonlocal n_run
        n_run += step.n_rows == 3
        if n_run == 3:
            time.sleep(1000)
        run(self, state, number, step)

    pytest.MonkeyPatch().setattr(Worker, "step", step)


def slow_at_first() -> None:
    """The first step of each size takes long, as if kernels were compiled; loading does, too."""
    as_here()
    run, load, seen = Worker.step, Worker.load, set[int]()

    def step(self: Worker, state: int, number: int, step: Step) -> None:
        if step.n_rows not in seen:
            seen.add(step.n_rows)
            time.sleep(SLOW_S)
        run(self, state, number, step)

    def slowly(self: Worker, path: str, blocks: range) -> None:
        time.sleep(SLOW_S)
        load(self, path, blocks)

    pytest.MonkeyPatch().setattr(Worker, "step", step)
    pytest.MonkeyPatch().setattr(Worker, "load", slowly)


def open_here(devices: list[str], prepare: Callable[[], None] = as_here) -> RankedBackend:
    return open_ranks(devices, HALF_FLOATS, prepare=f"{__name__}:{prepare.__name__}")


def load(path: Path, backend: RankedBackend, *, with_nextn: bool = True) -> Model:
    return load_ranked(open_gguf(path), backend, lambda model: SIZES, with_nextn=with_nextn)


def runtime_over(path: Path, backend: RankedBackend, spec: SpecOptions) -> Runtime:
    model = load(path, backend)
    file = open_gguf(path)
    return Runtime(file, model, backend, load_tokenizer(file.metadata), N_CTX, spec)


def pids(backend: RankedBackend) -> list[int]:
    """Of ranks 1 …"""
    return [member.process.pid for member in backend.ring._crew.members]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
