"""One answer of the model: run it, show it as it comes, and say what it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ..core.generation import NO_TOKEN, Stats

if TYPE_CHECKING:
    from ..core.audit import Verdict
    from ..core.generation import Event, GenerateParams
    from ..core.runtime import Runtime
    from .auditing import Auditor

INTERRUPTED: Final = "interrupted"  # the one stop reason that is not the runtime's


@dataclass(slots=True)
class Answer:
    """What came out so far, and at the end all of it."""

    params: GenerateParams
    stats: Stats
    events: list[Event] = field(default_factory=list)
    stop_reason: str = ""
    verdict: Verdict | None = None  # of the auditor, if one was asked

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def tokens(self) -> list[int]:
        """Those that were made, the one that ended the text included."""
        return [event.token for event in self.events if event.token != NO_TOKEN]

    @property
    def is_interrupted(self) -> bool:
        return self.stop_reason == INTERRUPTED


class Printer(Protocol):
    """How an answer is shown on stdout."""

    def event(self, event: Event) -> None: ...

    def close(self) -> None:
        """No more events come, for whatever reason."""

    def end(self, answer: Answer) -> None:
        """It ended in order, or by Ctrl-C."""


def make_answer(
    runtime: Runtime,
    prompt: str | Sequence[int],
    params: GenerateParams,
    printer: Printer,
    auditor: Auditor | None = None,
) -> Answer:
    """Ctrl-C ends it early, and is no error."""
    before = runtime.stats
    answer = Answer(params, Stats(load_ms=before.load_ms))
    try:
        witness = None if auditor is None else auditor.witness
        for event in runtime.generate(prompt, params, on_row=witness):
            answer.events.append(event)
            printer.event(event)
            answer.stop_reason = event.stop_reason or answer.stop_reason
    except KeyboardInterrupt:
        answer.stop_reason = INTERRUPTED
    finally:
        printer.close()
    if runtime.stats is not before:  # it got as far as starting
        answer.stats = runtime.stats
    if auditor is not None and not answer.is_interrupted:
        try:
            answer.verdict = auditor.check(runtime, prompt, params)
        except KeyboardInterrupt:
            answer.stop_reason = INTERRUPTED
    printer.end(answer)
    return answer
