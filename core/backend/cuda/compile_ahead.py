"""Kernels of a model, compiled while its weights are on their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread

from ....cuda_kernels.compile import CompileError
from ....cuda_kernels.kernel import Kernel, Launcher
from ...errors import ModelError
from ..interface import Report

_LOOK = 0.1  # seconds between two reports


class AheadCompiler:
    def __init__(self, launcher: Launcher, kernels: Callable[[], Sequence[Kernel]]) -> None:
        """`kernels` is called in the thread that compiles: it takes some tenths of a second."""
        self._launcher, self._kernels = launcher, kernels
        self._done, self._all = 0, 0  # sources
        self._is_cancelled = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="nextn-compile", daemon=True)
        self._thread.start()

    def finish(self, report: Report) -> None:
        """Wait for all of them. ModelError if one does not compile."""
        while self._thread.is_alive():
            self._thread.join(_LOOK)
            if self._all:
                report(f"compiling {self._all} kernels", self._done / self._all)
        if isinstance(self._error, CompileError):
            raise ModelError(f"--device cuda: a kernel cannot be compiled: {self._error}") from None
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """What is being compiled ends, and the rest is left."""
        self._is_cancelled.set()

    def _run(self) -> None:
        try:
            self._launcher.warm(self._kernels(), self._note)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error

    def _note(self, done: int, of: int) -> None:
        self._done, self._all = done, of
        if self._is_cancelled.is_set():
            raise InterruptedError("loading has ended")
