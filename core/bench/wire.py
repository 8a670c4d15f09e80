"""HTTP to a server that is measured: one connection per request, every failure in one line."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from ..errors import ConfigError, NextnError
from .address import ServerAddress
from .sse import EventParser

MAX_ANSWER: Final = 64 << 20  # bytes of an answer that is no stream
_READ: Final = 1 << 16
_SHOWN: Final = 300  # characters of a server's message


class ServerError(NextnError):
    """A request to a server failed. `status` is 0 where it did not answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Timeouts(Struct, frozen=True):
    """Seconds."""

    connect: float = 10.0
    silence: float = 600.0  # without a byte: a long prompt is read silently
    whole: float = 3600.0  # of one request


_TIMEOUTS: Final = Timeouts()


class HttpAnswer(Struct, frozen=True):
    status: int
    text: str
    headers: dict[str, str]  # names in lower case

    def json(self) -> Any:
        """None where it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class Arrival(Struct, frozen=True):
    """What one read of the connection brought."""

    at: float  # `time.perf_counter`
    events: tuple[str, ...]


class Wire:
    """A server's address, with what every request to it needs."""

    def __init__(
        self, address: ServerAddress, api_key: str = "", timeouts: Timeouts = _TIMEOUTS
    ) -> None:
        if any(not "\x20" < c < "\x7f" for c in api_key):
            raise ConfigError("--api-key holds characters that no key has")
        self.address = address
        self._timeouts = timeouts
        self._headers = {"User-Agent": "nextn", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._has_key = bool(api_key)
        self._tls = ssl.create_default_context() if address.is_secure else None

    def get(self, path: str, *, seconds: float | None = None) -> HttpAnswer:
        with self._request("GET", path, None, seconds) as (_, response):
            return self._whole(response)

    def post(self, path: str, body: dict[str, Any], *, seconds: float | None = None) -> HttpAnswer:
        with self._request("POST", path, body, seconds) as (_, response):
            return self._whole(response)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Arrival]:
        """First an arrival without events when the request is on its way, then what comes."""
        deadline = time.monotonic() + self._timeouts.whole
        with self._request("POST", path, body, None) as (sent_at, response):
            if response.status != 200:
                raise self.refused(path, self._whole(response))
            yield Arrival(sent_at, ())
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise ServerError(f"{self._at(path)}: answered with {kind}, not with a stream")
            parser = EventParser()
            while piece := response.read1(_READ):
                events = parser.push(piece)
                if events:
                    yield Arrival(time.perf_counter(), tuple(events))
                if time.monotonic() > deadline:
                    seconds = self._timeouts.whole
                    raise ServerError(f"{self._at(path)}: not finished after {seconds:g} s")
            if events := parser.finish():
                yield Arrival(time.perf_counter(), tuple(events))

    def refused(self, path: str, answer: HttpAnswer) -> ServerError:
        """An error with the server's message."""
        message = message_of(answer)
        advice = ""
        if answer.status in (401, 403):
            advice = "; is the --api-key right?" if self._has_key else "; give its --api-key"
        elif 300 <= answer.status < 400:
            advice = f"; give that URL instead: {answer.headers.get('location', '?')[:_SHOWN]}"
        words = f": {message}" if message else ""
        return ServerError(
            f"{self._at(path)}: answered {answer.status}{words}{advice}", answer.status
        )

    def _at(self, path: str) -> str:
        return f"{self.address.shown}{path}"

    def _whole(self, response: http.client.HTTPResponse) -> HttpAnswer:
        data = response.read(MAX_ANSWER + 1)
        if len(data) > MAX_ANSWER:
            raise ServerError(f"{self.address.shown}: answered with more than {MAX_ANSWER} bytes")
        if response.length:  # of what was announced
            raise http.client.IncompleteRead(data, response.length)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, data.decode("utf-8", "replace"), headers)

    @contextmanager
    def _request(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float | None
    ) -> Iterator[tuple[float, http.client.HTTPResponse]]:
        """The clock starts when the connection stands."""
        connection = self._connection()
        try:
            connection.connect()
            silence = self._timeouts.silence if seconds is None else seconds
            connection.sock.settimeout(silence)
            headers, data = dict(self._headers), None
            if body is not None:
                data = json.dumps(body, allow_nan=False).encode()
                headers["Content-Type"] = "application/json"
            sent_at = time.perf_counter()
            connection.request(method, self.address.prefix + path, data, headers)
            yield sent_at, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self._at(path)}: {self._reason(error)}") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        at, wait = self.address, self._timeouts.connect
        if self._tls is not None:
            return http.client.HTTPSConnection(at.host, at.port, timeout=wait, context=self._tls)
        return http.client.HTTPConnection(at.host, at.port, timeout=wait)

    def _reason(self, error: Exception) -> str:
        match error:
            case ConnectionRefusedError():
                return "connection refused; is the server running?"
            case socket.gaierror():
                return f"there is no host {self.address.host}"
            case TimeoutError():
                return "no answer in time (--timeout sets how long to wait)"
            case ssl.SSLCertVerificationError(verify_message=why):
                return f"its certificate is not trusted: {why} (SSL_CERT_FILE names an authority)"
            case ssl.SSLError():
                return f"no TLS there ({error.reason}); is it http:// instead?"
            case http.client.RemoteDisconnected() if self._tls is None:
                return "the connection broke before the answer was complete; is it https:// there?"
            case http.client.IncompleteRead() | ConnectionError():
                return "the connection broke before the answer was complete"
            case http.client.HTTPException():
                return f"does not speak HTTP ({type(error).__name__}); is it https:// instead?"
        return f"{error.strerror or error}" if isinstance(error, OSError) else str(error)


def message_of(answer: HttpAnswer) -> str:
    """The message of an error, whatever shape a server gives it."""
    found = answer.json()
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    words = found if isinstance(found, str) else json.dumps(found) if found else answer.text
    return " ".join(words.split())[:_SHOWN]
