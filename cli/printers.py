"""How an answer is printed: as text, or as JSON for programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..core.generation import NO_TOKEN, TARGET
from .auditing import verdict_fields
from .console import Console
from .print_answer import PrintedAnswer

if TYPE_CHECKING:
    from ..core.generation import Event
    from ..core.runtime import Runtime
    from .shown_reply import ShownReply

# Green, cyan, magenta, yellow, blue, and six that are bright: drafters in the order in which
# they first appear. One colour per drafter.
COLOURS: Final = ("32", "36", "35", "33", "34", "92", "95", "96", "94", "93", "91")


class TextPrinter:
    def __init__(
        self, output: Console, *, show_drafts: bool = False, reply: ShownReply | None = None
    ) -> None:
        """`reply`: how replies are shown that have marks of channels."""
        self._output = output
        self._show_drafts, self._reply = show_drafts, reply
        self._colours: dict[str, str] = {TARGET: ""}

    def event(self, event: Event) -> None:
        text = event.text if self._reply is None else self._reply.feed(event.text)
        self._output.text(text, self._colour(event.source))

    def close(self) -> None:
        if self._reply is not None:
            self._output.text(self._reply.end())
        self._output.end_text()

    def end(self, answer: PrintedAnswer) -> None:
        if len(self._colours) > 1:
            names = [name for name in self._colours if name != TARGET]
            self._output.legend({name: self._colours[name] for name in names})

    def _colour(self, source: str) -> str:
        if not self._show_drafts:
            return ""
        if source not in self._colours:
            self._colours[source] = COLOURS[(len(self._colours) - 1) % len(COLOURS)]
        return self._colours[source]


class JsonPrinter:
    """One object at the end, and with `each` one per token before it."""

    def __init__(self, output: Console, runtime: Runtime, model: Path, *, each: bool) -> None:
        self._output, self._runtime, self._model, self._each = output, runtime, model, each

    def event(self, event: Event) -> None:
        if self._each and event.token != NO_TOKEN:
            shown = {"token": event.token, "text": event.text, "source": event.source}
            self._output.line(dumps(shown | self._logprob(event)))

    def close(self) -> None:
        pass

    def end(self, answer: PrintedAnswer) -> None:
        self._output.line(dumps(self._result(answer)))

    def _result(self, answer: PrintedAnswer) -> dict[str, Any]:
        result = {"text": answer.text, "tokens": answer.tokens, "stop_reason": answer.stop_reason}
        if answer.params.logprobs is not None:
            events = [event for event in answer.events if event.token != NO_TOKEN]
            result["logprobs"] = [
                self._piece(event.token) | self._logprob(event) for event in events
            ]
        return (
            result
            | answer.stats.as_json()
            | {
                "model": str(self._model),
                "device": self._runtime.device,
                "seed": answer.params.sampling.seed,
                "spec_types": list(self._runtime.spec_types),
            }
            | verdict_fields(answer.verdict, self._runtime.tokenizer)
        )

    def _logprob(self, event: Event) -> dict[str, Any]:
        """Return the fields of the log-probability; none without --logprobs."""
        if event.logprob is None:
            return {}
        best = [
            self._piece(token) | {"logprob": finite(logprob)}
            for token, logprob in event.top_logprobs
        ]
        return {"logprob": finite(event.logprob), "top_logprobs": best}

    def _piece(self, token: int) -> dict[str, Any]:
        """A token's bytes need not be whole characters; the text is for reading."""
        data = self._runtime.tokenizer.piece(token, show_special=True)
        return {"token": token, "text": data.decode("utf-8", "replace"), "bytes": list(data)}


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def finite(logprob: float) -> float | None:
    """JSON has no infinity; null stands for an impossible token."""
    return logprob if math.isfinite(logprob) else None
