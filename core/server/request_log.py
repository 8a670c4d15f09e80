"""The log of requests: one record for each, when its response has ended.

Texts and prompts are in it only with `ServerSettings.logs_texts`; what errors quote from a request
is left out as well.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api_errors import ApiError

RECORD: Final = "spec.record"  # in the scope: the `RequestRecord`
REQUEST_ID: Final = b"x-request-id"
CLIENT_LEFT: Final = 499  # nginx's number, never sent
ENDED, LEFT, FAILED, ABORTED = "end", "left", "error", "aborted"
_ID: Final = re.compile(rb"[\w.:-]{1,64}", re.ASCII)
_LONGEST: Final = 200  # characters of a path
# Probes and scrapes come every few seconds.
_ROUTINE: Final = frozenset(("/health", "/v1/health", "/ping", "/metrics", "/load"))
# From a quotation mark that begins a word to one that ends it, or to the end of the message.
_QUOTED: Final = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1(?!\w)).)*(?:\1|$)""", re.DOTALL)
_QUOTING: Final = (400, 500, 501)  # statuses of errors about the body of a request
_log: Final = logging.getLogger(__name__)


class RequestRecord:
    """What is known of a request. Written in the loop's thread."""

    def __init__(self, scope: Scope, *, with_texts: bool = False) -> None:
        self.began_at = time.perf_counter()
        self.with_texts = with_texts
        self.id = _id_of(scope)
        self.status = 0  # that was sent
        self.error: ApiError | None = None  # also behind the beginning of a stream
        self.is_gone = False  # the client left before the end of the response
        self.is_whole = False
        # Model, counts and stop reasons of a request for text; asked when it has ended.
        self.counts: Callable[[], Mapping[str, Any]] = dict

    def known(self) -> dict[str, Any]:
        """What only the process that answers the request knows, for one that forwards it."""
        found = dict(self.counts())
        if self.error is not None:
            found |= {"error": (self.error.status, self.error.message)}
        return found

    def learn(self, known: Mapping[str, Any]) -> None:
        """`known`: of the process that answers the request."""
        counts = dict(known)
        error = counts.pop("error", None)
        self.error = None if error is None else ApiError(*error)
        self.counts = lambda: counts

    def fields(self, scope: Scope) -> dict[str, Any]:
        """In the order of a line."""
        status = self.status or (CLIENT_LEFT if self.is_gone else 0)
        counts = dict(self.counts())
        texts = {name: counts.pop(name) for name in ("prompt_text", "text") if name in counts}
        end = self._end(counts.pop(ENDED, ""))
        found: dict[str, Any] = {
            "id": self.id,
            "client": _address(scope.get("client")),
            "method": scope["method"],
            "path": _path_of(scope),
            "status": status,
            "seconds": round(time.perf_counter() - self.began_at, 4),
            **counts,
        }
        if end:
            found[ENDED] = end
        if self.error is not None:
            message = self.error.message
            is_plain = self.with_texts or self.error.status not in _QUOTING
            found["reason"] = message if is_plain else without_quotes(message)
        return found | texts

    def _end(self, end: str) -> str:
        if self.is_gone:
            return LEFT
        if self.error is not None:
            return FAILED
        return end if self.is_whole else ABORTED

    @property
    def level(self) -> int:
        if self.error is not None and not self.is_gone:
            return logging.ERROR if self.error.status == 500 else logging.WARNING
        return logging.INFO


class RequestLog:
    """ASGI, around the whole application. `statuses`: how many requests ended with each."""

    def __init__(self, app: ASGIApp, statuses: Counter[int], *, with_texts: bool = False) -> None:
        self._app, self.statuses, self._with_texts = app, statuses, with_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if RECORD in scope:  # of a process that forwards requests and logs them
            await self._app(scope, receive, send)
            return
        # The connection notes there that its client has left.
        record = scope[RECORD] = RequestRecord(scope, with_texts=self._with_texts)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                if not record.is_gone:
                    record.status = message["status"]
                headers = [*message.get("headers", ()), (REQUEST_ID, record.id.encode())]
                message = {**message, "headers": headers}
            elif not message.get("more_body") and not record.is_gone:
                record.is_whole = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._write(record.fields(scope), record.level)

    def note_unreadable(self, client: object, status: int, reason: str) -> None:
        """A request that is not HTTP, or too large to be read."""
        fields = {"client": _address(client), "status": status, "reason": reason}
        self._write({"method": "-", "path": "-"} | fields, logging.WARNING)

    def _write(self, fields: Mapping[str, Any], level: int) -> None:
        status = fields["status"]
        self.statuses[status] += 1
        is_probe = fields["method"] in ("GET", "HEAD") and fields["path"].endswith(tuple(_ROUTINE))
        if is_probe and status == 200:
            level = logging.DEBUG
        if _log.isEnabledFor(level):
            extra = {"fields": fields}
            _log.log(level, "%s %s %d", fields["method"], fields["path"], status, extra=extra)


def note_leaving(scope: Mapping[str, Any]) -> None:
    """The client has gone before the end of the response."""
    record = scope.get(RECORD)
    if record is not None:
        record.is_gone = True


def note_error(scope: Scope, error: ApiError) -> None:
    """The response says this error."""
    record = scope.get(RECORD)
    if record is not None:
        record.error = error


def log_speculation(fields: Mapping[str, Any]) -> None:
    """What drafts were worth, when a model is unloaded; nothing if there were none."""
    if fields:
        _log.info("speculation", extra={"fields": fields})


def note_read(scope: Scope, model: str, n_tokens: int) -> None:
    """The model has read so many tokens, and wrote none."""
    record = scope.get(RECORD)
    if record is not None:
        record.counts = lambda: {"model": model, "prompt": n_tokens}


def without_quotes(message: str) -> str:
    """Errors quote what was sent, whole or cut off."""
    return _QUOTED.sub("'...'", message)


def _id_of(scope: Scope) -> str:
    """The client's `X-Request-Id`, if it is a plain word."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID and _ID.fullmatch(value):
            found: str = value.decode("ascii")
            return found
    return secrets.token_hex(8)


def _address(client: object) -> str:
    if not isinstance(client, tuple | list) or len(client) != 2:
        return "-"
    host, port = client
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _path_of(scope: Scope) -> str:
    """As it was sent, without the query, which may hold what is private."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return raw.decode("ascii", "backslashreplace")[:_LONGEST]
