"""A rank other than 0: a process that holds a range of layers and does as it is told.

It ends with the process that started it, whose end closes its stdin.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from ..backend import create_backend
from ..backend.interface import Backend, RunRows, SlotImage, State, Taps
from ..backend.layers import StateShape
from ..backend.step import Step
from ..errors import NextnError
from ..gguf.reader import GgufFile, open_gguf
from ..models import prepare_model, survey_model
from ..models.base import Model, Share
from .group import Group, PeerLostError
from .orders import DONE, END, FAULT, PEER_LOST, PROGRESS, READY, TAPS, WARNING, Message, Order
from .pulse import Place, Pulse

_STARTS = frozenset({"join", "free", "load", "new_state"})  # orders that may take long


def command(descriptor: int) -> list[str]:
    package = __name__.rpartition(".")[0]
    return [sys.executable, "-c", f"from {package}.process import main; main({descriptor})"]


def main(descriptor: int) -> NoReturn:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe = Connection(descriptor)
    code = 0
    try:
        _serve(pipe)
    except PeerLostError:
        code = PEER_LOST
    except (EOFError, ConnectionError):  # rank 0 is gone
        code = 1
    except BaseException as error:  # noqa: BLE001 - rank 0 tells it
        code = 1
        with contextlib.suppress(OSError):
            pipe.send(Message(FAULT, (_said(error),)))
    os._exit(code)  # nothing here is worth waiting for others


_folders: list[Path] = []  # where the ranks met


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    for folder in _folders:  # rank 0 may not have had the time
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _serve(pipe: Connection) -> None:
    order: Order = pipe.recv()
    _folders.append(Path(order.store).parent)
    pulse = Pulse(Path(order.pulse))
    pulse.start()
    sys.path[:] = order.path
    if order.prepare:
        module, _, name = order.prepare.partition(":")
        getattr(importlib.import_module(module), name)()
    logging.getLogger(__package__.partition(".")[0]).addHandler(_Telling(pipe))
    worker = Worker(pipe, order, pulse)
    pipe.send(Message(READY, (worker.backend.details,)))
    while True:
        with pulse.at(Place.IDLE):
            name, arguments = pipe.recv()
        if name == END:
            return
        with pulse.at(Place.STARTS if name in _STARTS else Place.RUNS):
            getattr(worker, name)(*arguments)


def _said(error: BaseException) -> str:
    """One line."""
    is_torchs = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    if isinstance(error, MemoryError) or is_torchs or type(error).__name__ == "OutOfMemoryError":
        return "ran out of memory"
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return text if isinstance(error, NextnError) else f"failed, {type(error).__name__}: {text}"


class _Telling(logging.Handler):
    """Warnings are rank 0's to give."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.WARNING)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.send(Message(WARNING, (record.getMessage(),)))


class _Held:
    """A state, and what was compiled for it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.runs: dict[int, tuple[RunRows, Taps]] = {}


class Worker:
    """Each public method is a message. Who is asked for something answers `DONE`; the others are
    orders that nobody waits for, and what fails in them ends the process."""

    model: Model
    group: Group

    def __init__(self, pipe: Connection, order: Order, pulse: Pulse) -> None:
        self._pipe, self._order, self._pulse = pipe, order, pulse
        self.backend: Backend = create_backend(order.device, None, order.kv_types)
        self._states: dict[int, _Held] = {}
        self._file: GgufFile | None = None

    def join(self) -> None:
        order = self._order
        self.group = Group(Path(order.store), order.rank, order.n_ranks, self.backend)
        self._done()

    def free(self) -> None:
        self._done(self.backend.free_device_bytes())

    def load(self, path: str, blocks: range) -> None:
        """Weights of another model make room first."""
        self._states.clear()
        if self._file is not None:
            del self.model
            gc.collect()
            self._file.close()
        before = self.backend.weight_bytes()
        self.backend.report = lambda what, fraction: self._tell(PROGRESS, fraction)
        file = self._file = open_gguf(path)  # stays: some weights are laid out at first use
        survey = survey_model(file, with_nextn=False, share=Share(blocks, has_ends=False))
        self.model = prepare_model(survey, file, self.backend, with_nextn=False)
        self._done(self.backend.weight_bytes() - before)

    def new_state(self, number: int, shape: StateShape, sizes: dict[str, int]) -> None:
        self._states[number] = _Held(self.backend.new_state(shape, **sizes))
        self._done()

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._states.pop(number, None)

    def compile(self, state: int, number: int, max_rows: int, taps: Taps) -> None:
        held = self._states[state]
        run = self.backend.compile_rows(
            self.model.pass_on, held.state, max_rows=max_rows, taps=taps
        )
        held.runs[number] = run, taps

    def step(self, state: int, number: int, step: Step) -> None:
        run, taps = self._states[state].runs[number]
        rows = self.backend.new_rows(step.n_rows, self.model.hparams.n_embd)
        with self._pulse.at(Place.WAITS):
            self.group.receive(rows)
        output = run(replace(step, received=rows))
        with self._pulse.at(Place.WAITS):
            self.group.send(output.logits)
        if taps:
            self._tell(TAPS, {name: self.backend.to_host(x) for name, x in output.taps.items()})

    def copy_pages(self, state: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.backend.copy_pages(self._states[state].state, sources, targets)

    def copy_slot(self, state: int, source: int, target: int, n_pending: int) -> None:
        self.backend.copy_slot(self._states[state].state, source, target, n_pending)

    def save_slot(self, state: int, slot: int, *rest: Any) -> None:
        self._done(self.backend.save_slot(self._states[state].state, slot, *rest))

    def load_slot(self, state: int, slot: int, pages: Sequence[int], image: SlotImage) -> None:
        self.backend.load_slot(self._states[state].state, slot, pages, image)

    def _done(self, answer: Any = None) -> None:
        self._tell(DONE, answer)

    def _tell(self, name: str, answer: Any) -> None:
        self._pipe.send(Message(name, (answer,)))
