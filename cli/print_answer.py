"""One answer of the model: generated, printed token by token, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from ..core.generation import NO_TOKEN, Stats

if TYPE_CHECKING:
    from ..core.audit import RowRecorder, Verdict
    from ..core.generation import Event, GenerateParams
    from ..core.runtime import Runtime
    from ..core.state.embedded_rows import ModelPrompt

INTERRUPTED: Final = "interrupted"  # the one stop reason that is not the runtime's


class PrintedAnswer(Struct):
    """The events so far, and at the end all of them."""

    params: GenerateParams
    stats: Stats
    events: list[Event] = field(default_factory=list)
    stop_reason: str = ""
    verdict: Verdict | None = None  # with --verify-lossless

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def tokens(self) -> list[int]:
        """The generated tokens, including the end-of-text token."""
        return [event.token for event in self.events if event.token != NO_TOKEN]

    @property
    def is_interrupted(self) -> bool:
        return self.stop_reason == INTERRUPTED


class Printer(Protocol):
    """Prints an answer on stdout."""

    def event(self, event: Event) -> None: ...

    def close(self) -> None:
        """Called after the last event, also after an error."""

    def end(self, answer: PrintedAnswer) -> None:
        """Called when the answer has ended, regularly or by Ctrl-C."""


def print_answer(
    runtime: Runtime,
    prompt: str | Sequence[int] | ModelPrompt,
    params: GenerateParams,
    printer: Printer,
    recorder: RowRecorder | None = None,
) -> PrintedAnswer:
    """Return the answer. Ctrl-C ends it early and is not an error.

    With a `recorder`, it is compared with a second run without speculation.
    """
    before = runtime.stats
    answer = PrintedAnswer(params, Stats(load_ms=before.load_ms))
    try:
        for event in runtime.generate(prompt, params, on_row=recorder):
            answer.events.append(event)
            printer.event(event)
            answer.stop_reason = event.stop_reason or answer.stop_reason
    except KeyboardInterrupt:
        answer.stop_reason = INTERRUPTED
    finally:
        printer.close()
    if runtime.stats is not before:  # the generation has started
        answer.stats = runtime.stats
    if recorder is not None and not answer.is_interrupted:
        from ..core.audit import audit

        try:
            answer.verdict = audit(runtime, prompt, params, recorder.rows)
        except KeyboardInterrupt:
            answer.stop_reason = INTERRUPTED
    printer.end(answer)
    return answer
