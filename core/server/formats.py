"""The base of response formats: events of a stream, or one object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import msgspec

from ..worker.mailboxes import Progress
from .answer import Answer
from .api_errors import ApiError
from .parsed_request import ParsedRequest

DONE: Final = b"data: [DONE]\n\n"
encode: Final = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def failure_event(error: ApiError, path: str) -> bytes:
    """At the end of a stream, in the form of the API that the path is of."""
    body = error.body_for(path)
    if path.startswith("/api/"):
        return encode(body) + b"\n"
    return (b"event: error\n" if "type" in body else b"") + event(body)


class Format(ABC):
    """The form of one response. A stream is: `opening` of each text when it begins, `piece`s, its
    `ending`; and after all texts `closing`."""

    media_type = b"text/event-stream"

    def __init__(self, parsed: ParsedRequest) -> None:
        self.parsed = parsed

    @property
    def warnings(self) -> dict[str, Any]:
        """A field of the response: which tools were left out, and what of a schema was not
        enforced, if there is something."""
        found = self.parsed.left_out + self.parsed.warnings
        return {"warnings": list(found)} if found else {}

    def opening(self, answer: Answer) -> bytes:
        return b""

    def is_complete(self, answer: Answer, text: str) -> bool:
        """Whether nothing is needed behind `text`, which is new. Called for streams and others."""
        return False

    @abstractmethod
    def piece(self, answer: Answer, text: str) -> bytes:
        """`text` is new, and not empty."""

    @abstractmethod
    def progress(self, answer: Answer, progress: Progress) -> bytes:
        """The event for the progress of its prompt."""

    @abstractmethod
    def ending(self, answer: Answer) -> bytes:
        """The text is complete."""

    def ping(self) -> bytes:
        """Of a stream that is silent for long: a comment."""
        return b":\n\n"

    def closing(self, answers: list[Answer]) -> bytes:
        return b""

    def failure(self, error: ApiError) -> bytes:
        """In the middle of a stream, whose status is sent already."""
        return event(error.body)

    @abstractmethod
    def whole(self, answers: list[Answer]) -> Any:
        """The response without a stream."""


def progress_object(progress: Progress) -> dict[str, Any]:
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": int(progress.ms),
    }
