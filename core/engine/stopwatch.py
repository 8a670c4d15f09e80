"""Where the time of an engine's steps goes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from .engine import Engine

PHASES: Final = ("draft", "verify", "sampling", "settle")


class Stopwatch:
    """Seconds in all since an engine was given one; costs a microsecond per step.

    `verify` is the pass of the model, prompts included; tokens that a backend picks itself are
    picked there. Where a device makes rounds by itself, `draft` is what it takes to enqueue them,
    and `verify` all the rest.
    """

    def __init__(self, engine: Engine) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        drafting = engine._drafting
        self._watch(drafting, "draft", "draft")
        self._watch(engine, "_run", "verify")
        self._watch(engine._verifier, "accept", "sampling")
        self._watch(drafting, "tell", "settle")
        self._watch(engine, "_settle", "settle")
        self._watch(engine._ahead, "_keep_ahead", "draft")
        self._watch(engine._ahead, "_read_round", "verify")

    def lap(self) -> tuple[float, ...]:
        return tuple(self.seconds.values())

    def _watch(self, owner: object, name: str, phase: str) -> None:
        """The method of this one object, from now on with its time taken."""
        inner: Callable[..., Any] = getattr(owner, name)
        seconds = self.seconds

        def timed(*args: Any) -> Any:
            began = perf_counter()
            result = inner(*args)
            seconds[phase] += perf_counter() - began
            return result

        setattr(owner, name, timed)
