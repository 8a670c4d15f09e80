"""Byte ranges over HTTP with the standard library: connections kept, failures in one line each.

Statuses, ranges, sizes and redirects are checked: an answer may be wrong, as a file may be.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import NextnError
from ..gguf.printable import printable

T = TypeVar("T")

MAX_REDIRECTS: Final = 5
MAX_JSON_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 1 << 20
_PROGRESS_BYTES: Final = 1 << 16  # less than this between two failures is no progress
_LONGEST_WAIT_S: Final = 20.0  # that a server may ask for before the next try
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
# No server of that name, none that listens, no trusted certificate: another try fails as well.
_FINAL: Final = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError)
_TRUE: Final = ("1", "ON", "YES", "TRUE")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class RemoteError(NextnError):
    """Something on a server cannot be read."""


class TransientError(Exception):
    """Worth another try."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class HttpClient:
    """Requests one after the other; not for several threads at once."""

    def __init__(
        self,
        endpoint: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        pause_s: float = 0.5,
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._timeout_s, self._retries, self._pause_s = timeout_s, retries, pause_s
        self._home, self._token = _origin(_split(self.endpoint)), token
        self._connections: dict[tuple[str, str, int], HTTPConnection] = {}
        self._latest_host = self._home[1]
        self._moved: dict[str, str] = {}  # where a URL led to; such places expire

    def twin(self) -> HttpClient:
        """For another thread: the same, with connections of its own."""
        found = copy(self)
        found._connections, found._moved = {}, dict(self._moved)
        return found

    def json(self, url: str, what: str) -> Any:
        def attempt() -> bytes:
            response = self._follow(url, {}, what)
            if response.status != 200:
                raise self._refusal(response, what)
            raw = self._body(response, MAX_JSON_BYTES + 1)
            if len(raw) > MAX_JSON_BYTES:
                self._drop()
                raise RemoteError(f"{what}: the server's answer is too long")
            return raw

        try:
            return json.loads(self._retried(attempt, what))
        except (ValueError, RecursionError):
            raise RemoteError(f"{what}: the server's answer is not JSON") from None

    def size(self, url: str, what: str) -> int:
        """Return the size of a file that no listing has."""

        def attempt() -> int:
            response = self._follow(url, {"Range": "bytes=0-0"}, what)
            found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            length = response.headers.get("Content-Length", "")
            if response.status == 206 and found and found[3] != "*":
                self._body(response, 2)
                return int(found[3])
            self._drop()
            if response.status == 200 and length.isdecimal():
                return int(length)
            if response.status in (200, 206):
                raise RemoteError(f"{what}: the server does not say how large it is")
            raise self._refusal(response, what)

        return self._retried(attempt, what)

    def read(self, url: str, start: int, stop: int, size: int, what: str) -> memoryview:
        """The bytes start..stop in one piece, which is in memory once."""
        found, at = bytearray(stop - start), 0
        for piece in self.stream(url, start, stop, size, what):
            found[at : at + len(piece)] = piece
            at += len(piece)
        return memoryview(found).toreadonly()

    def stream(self, url: str, start: int, stop: int, size: int, what: str) -> Iterator[bytes]:
        """The bytes start..stop of a file of `size`, in pieces. Goes on where it was cut off."""
        at, failures, last = start, 0, start
        while at < stop:
            try:
                for piece in self._range(url, at, stop, size, what):
                    at += len(piece)
                    yield piece
            except (TransientError, OSError, HTTPException) as error:
                self._drop()
                failures = 1 if at - last >= _PROGRESS_BYTES else failures + 1
                last = at
                self._wait(error, failures, what)

    def close(self) -> None:
        self._drop()

    def _range(self, url: str, at: int, stop: int, size: int, what: str) -> Iterator[bytes]:
        response = self._follow(url, {"Range": f"bytes={at}-{stop - 1}"}, what)
        end = self._check_range(response, at, stop, size, what)
        is_whole = False
        try:
            while at < end:
                piece = response.read(min(PIECE_BYTES, end - at))
                if not piece:
                    raise TransientError(f"the connection was cut {end - at} bytes early")
                at += len(piece)
                is_whole = at == end
                yield piece
        finally:
            if not is_whole or not response.isclosed():
                self._drop()  # the rest of the answer would be taken for the next one

    def _check_range(self, response: HTTPResponse, at: int, stop: int, size: int, what: str) -> int:
        """Where the bytes of an answer end. Raises if they are not the requested ones."""
        if response.status == 200:
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) != size:
                raise self._wrong(what, f"has {length} bytes, {size} were expected")
            if at == 0 and stop == size:
                return stop
            raise self._wrong(what, "the server sends whole files only, no byte ranges")
        if response.status == 416:
            raise self._wrong(what, f"ends before byte {stop}")
        if response.status != 206:
            raise self._refusal(response, what)
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != at or not at <= int(found[2]) < stop:
            sent = printable(response.headers.get("Content-Range", "no range"))
            raise self._wrong(what, f"the server sent {sent}, not bytes {at}-{stop - 1}")
        if found[3] != "*" and int(found[3]) != size:
            raise self._wrong(what, f"has {found[3]} bytes, {size} were expected")
        return int(found[2]) + 1

    def _wrong(self, what: str, why: str) -> RemoteError:
        self._drop()
        return RemoteError(f"{what}: {why}")

    def _follow(self, url: str, headers: dict[str, str], what: str) -> HTTPResponse:
        moved = self._moved.pop(url, None)
        if moved is not None:
            response = self._request(moved, headers)
            if response.status in (200, 206, 416):
                self._moved[url] = moved
                return self._plain(response, what)
            self._drop()  # such places are signed, and expire: request it again
        at = url
        for _ in range(MAX_REDIRECTS + 1):
            response = self._request(at, headers)
            if response.status not in _REDIRECTS:
                if response.status in (200, 206) and at != url:
                    self._moved[url] = at
                return self._plain(response, what)
            self._body(response, 1 << 16)
            at = self._next(at, response.headers.get("Location"), what)
        raise RemoteError(f"{what}: the server redirects again and again")

    def _plain(self, response: HTTPResponse, what: str) -> HTTPResponse:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self._wrong(what, "the server sent it compressed without need")
        return response

    def _next(self, url: str, location: str | None, what: str) -> str:
        target = urljoin(url, location or "")
        scheme = urlsplit(target).scheme
        if not location or scheme not in ("http", "https"):
            raise RemoteError(f"{what}: the server redirects to {printable(location)}")
        if scheme == "http" and urlsplit(url).scheme == "https":
            raise RemoteError(
                f"{what}: the server redirects from https to {printable(target)}, which is not "
                "followed"
            )
        return target

    def _request(self, url: str, headers: dict[str, str]) -> HTTPResponse:
        parts = _split(url)
        origin = _origin(parts)
        self._latest_host = origin[1]
        sent = {"User-Agent": "nextn", "Accept-Encoding": "identity", **headers}
        is_private = parts.scheme == "https" or parts.hostname in _LOOPBACK
        if self._token and origin == self._home and is_private:
            sent["Authorization"] = f"Bearer {self._token}"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        while True:
            is_fresh = origin not in self._connections
            connection, prefix = self._connection(parts, origin)
            try:
                connection.request("GET", prefix + path, headers=sent)
                return connection.getresponse()
            except (OSError, HTTPException):
                self._drop()
                if is_fresh:  # else it was kept, and closed by the other side meanwhile
                    raise

    def _connection(
        self, parts: SplitResult, origin: tuple[str, str, int]
    ) -> tuple[HTTPConnection, str]:
        """A connection, and what precedes the path in a request: a proxy needs the whole URL."""
        scheme, host, port = origin
        proxy = None if host in _LOOPBACK or proxy_bypass(host) else getproxies().get(scheme)
        prefix = f"{scheme}://{parts.netloc}" if proxy and scheme == "http" else ""
        if origin in self._connections:
            return self._connections[origin], prefix
        kind = HTTPSConnection if scheme == "https" else HTTPConnection
        if proxy:
            at = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
            made = kind(at.hostname or "", at.port or 8080, timeout=self._timeout_s)
            if scheme == "https":
                made.set_tunnel(host, port)
        else:
            made = kind(host, port, timeout=self._timeout_s)
        self._connections[origin] = made
        return made, prefix

    def _body(self, response: HTTPResponse, most: int) -> bytes:
        raw = response.read(most)
        if not response.isclosed():
            self._drop()
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and len(raw) < min(most, int(length)):
            raise TransientError("the answer was cut off")
        return raw

    def _refusal(self, response: HTTPResponse, what: str) -> Exception:
        self._drop()
        status = response.status
        if status == 429 or status >= 500:
            wanted = response.headers.get("Retry-After", "")
            wait_s = min(float(wanted), _LONGEST_WAIT_S) if wanted.isdecimal() else 0.0
            return TransientError(_busy(status), wait_s)
        return RemoteError(f"{what}: {_reason(status, has_token=self._token is not None)}")

    def _retried(self, attempt: Callable[[], T], what: str) -> T:
        failures = 0
        while True:
            try:
                return attempt()
            except (TransientError, OSError, HTTPException) as error:
                self._drop()
                failures += 1
                self._wait(error, failures, what)

    def _wait(self, error: Exception, failures: int, what: str) -> None:
        is_final = isinstance(error, _FINAL)
        if is_final or failures > self._retries:
            raise RemoteError(
                f"{what}: {_named(error, self._latest_host, self._timeout_s)}"
            ) from None
        wanted = error.wait_s if isinstance(error, TransientError) else 0.0
        time.sleep(max(wanted, self._pause_s * 2 ** (failures - 1)))

    def _drop(self) -> None:
        for connection in self._connections.values():
            with suppress(OSError):
                connection.close()
        self._connections.clear()


def hub_token() -> str | None:
    """HF_TOKEN, or what `hf auth login` has saved."""
    from huggingface_hub import get_token

    return get_token()


def is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def client_from_environment() -> HttpClient:
    """HF_ENDPOINT, HF_HUB_DOWNLOAD_TIMEOUT and the login, as the hub's own tools read them."""
    timeout = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return HttpClient(
        os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
        hub_token(),
        timeout_s=float(timeout) if timeout.isdecimal() and int(timeout) else 30.0,
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not url.isascii() or any(c <= " " for c in url):
        raise RemoteError(f"{printable(url)} is no address of a server")
    return parts


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname or "", parts.port or default


def _busy(status: int) -> str:
    if status == 429:
        return "the server has had too many requests (429); try later, or log in (hf auth login)"
    return f"the server failed ({status}); try later"


def _reason(status: int, *, has_token: bool) -> str:
    match status:
        case 401 if has_token:
            return "the server does not take your token (401), or there is no such repository"
        case 401:
            return (
                "no such repository, or a private or gated one (401): these need a token (hf auth "
                "login or HF_TOKEN)"
            )
        case 403:
            return (
                "access is denied (403): a gated repository needs its terms accepted on its page, "
                "and your token (hf auth login or HF_TOKEN)"
            )
        case 404:
            return "there is no such repository, revision or file (404)"
    return f"the server answered with status {status}"


def _named(error: Exception, host: str, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"{host} did not answer within {timeout_s:g} s"
    if isinstance(error, TransientError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not trusted ({error.verify_message})"
    if isinstance(error, OSError):
        return f"{host} cannot be reached: {error.strerror or error}"
    return f"the server's answer makes no sense ({type(error).__name__})"
