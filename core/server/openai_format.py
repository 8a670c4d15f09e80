"""What OpenAI's completions and chat completions have in common."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from typing import Any, Final

from ..worker.mailboxes import Progress
from .answer import Answer, now, total_usage
from .formats import DONE, Format, encode, event, progress_object
from .native import NativeFormat
from .parsed_request import ParsedRequest
from .service import Service

FINGERPRINT: Final = "b0-nextn"  # llama-server's clients expect a build, which begins with b


class OpenAIFormat(Format):
    kind = ""  # `object` of the response
    chunk_kind = ""  # `object` of an event
    id_prefix = ""

    def __init__(self, parsed: ParsedRequest, service: Service) -> None:
        super().__init__(parsed)
        self._native = NativeFormat(parsed, service) if parsed.verbose else None
        self.frame = {
            "id": self.id_prefix + secrets.token_urlsafe(18),
            "created": now(),
            "model": parsed.model,
            "system_fingerprint": FINGERPRINT,
        }
        self.chunk_frame = {**self.frame, "object": self.chunk_kind}
        # Most events differ in a few bytes; the rest is encoded once.
        self._tail = b"," + encode(self.chunk_frame)[1:] + b"\n\n"

    def chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        if not more:
            return b'data: {"choices":[' + encode(choice) + b"]" + self._tail
        return event({"choices": [choice], **self.chunk_frame, **more})

    def progress(self, answer: Answer, progress: Progress) -> bytes:
        written = self.chunk_frame | {"prompt_progress": progress_object(progress)}
        return event({"choices": [], **written})

    def closing(self, answers: list[Answer]) -> bytes:
        written = b""
        if self.parsed.with_usage:
            timings = answers[0].timings()
            usage = self.usage(answers)
            written = event({"choices": [], **self.chunk_frame, "usage": usage, "timings": timings})
        return written + DONE

    def whole(self, answers: list[Answer]) -> Any:
        return {
            "choices": [self.choice(answer) for answer in answers],
            **self.frame,
            "object": self.kind,
            "usage": self.usage(answers),
            "timings": answers[0].timings(),
            **self.warnings,
            **self.verbose(answers[0]),
        }

    def verbose(self, answer: Answer) -> dict[str, Any]:
        """Returns llama.cpp's own response beside OpenAI's, if it was requested."""
        return {} if self._native is None else {"__verbose": self._native.final(answer)}

    def usage(self, answers: list[Answer]) -> dict[str, Any]:
        return total_usage(answers)

    @abstractmethod
    def choice(self, answer: Answer) -> dict[str, Any]:
        """Returns a choice of the whole response."""

    def more(self, answer: Answer) -> dict[str, Any]:
        """Returns the fields of an event besides its choice."""
        return {"timings": answer.timings()} if self.parsed.timings_each else {}

    def last(self, answer: Answer) -> dict[str, Any]:
        """Returns the fields of the last event of a choice: timings, unless an event with the usage
        follows, which has them."""
        more = self.more(answer) if self.parsed.with_usage else {"timings": answer.timings()}
        return more | self.warnings | self.verbose(answer)

    @property
    def is_plain(self) -> bool:
        """Whether events hold text only."""
        parsed = self.parsed
        return parsed.params.logprobs is None and not (parsed.timings_each or parsed.with_sources)

    def sources(self, answer: Answer) -> dict[str, Any]:
        """Returns the tokens of an event, the drafter of each, and rejected draft tokens."""
        if not self.parsed.with_sources:
            return {}
        tokens = answer.fresh_tokens()
        return {"tokens": tokens, **answer.sources_of(tokens)}


def finish_reason(answer: Answer) -> str:
    return "length" if answer.is_cut else "stop"
