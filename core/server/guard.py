"""Checks of Host, Origin and API key, before anything of a request is read."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..speculation.owners import owner_name
from .api_errors import ApiError, headers_too_large
from .replies import error_response
from .request_bodies import SharedBody
from .settings import ANY_ORIGIN, ServerSettings
from .web_origins import WEB_SCHEMES, host_name, is_local, split_origin

PUBLIC: Final = frozenset(("/health", "/v1/health", "/ping"))
OWNER: Final = "spec.owner"  # in the scope: whose request it is
_READING: Final = ("GET", "HEAD")
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_BETWEEN: Final = 4  # bytes around a name and its value
_MAX_KEY: Final = 4096  # characters


def owner_of(request: Request, body: SharedBody) -> str:
    """Whose text it is: what one owner wrote is not drafted for another. By key, and within it by
    `cache_salt`, which is also vLLM's word, or OpenAI's `user`."""
    key: str = request.scope.get(OWNER, "")
    return owner_name(key, body.cache_salt or body.user or "")


class Guard:
    """ASGI, around the whole application. `public`: paths that need no key."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, public: frozenset[str] = PUBLIC
    ) -> None:
        self._app, self._settings, self._public = app, settings, public
        self._keys = [(_digest(key), _name(key)) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        origin = _origin_of(headers)
        is_readable = origin is not None and self._settings.knows_origin(origin)
        if is_readable and origin is not None:
            send = _with_cors(send, origin)
        try:
            self._check(scope, headers)
        except ApiError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        if _is_preflight(scope, headers):
            await _preflight(headers, is_readable, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        self._check_size(scope)
        host, path = headers.get("host", ""), scope["path"]
        if not self._settings.knows_host(host):
            raise _unknown_name(host)
        is_upgrade = "websocket" in headers.get("upgrade", "").lower()
        if path in self._public and scope["method"] in _READING and not is_upgrade:
            return
        if _is_preflight(scope, headers):
            return  # it does nothing, and without its headers the browser sends nothing after it
        if self._keys:
            # A key in a header is proof enough: a browser never adds it to a foreign page's
            # request by itself, and lets the page do so only after a preflight.
            scope[OWNER] = self._owner(headers)
        else:
            self._check_page(headers, host)
        if is_upgrade:
            raise ApiError(400, "this server has no websockets")

    def _check_size(self, scope: Scope) -> None:
        """h11 limits what is incomplete; headers that came in one piece pass it at any size."""
        size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
        size += sum(len(name) + len(value) + _BETWEEN for name, value in scope["headers"])
        if size > self._settings.max_header:
            raise headers_too_large(self._settings.max_header)

    def _check_page(self, headers: Headers, host: str) -> None:
        """Refuses what a web page of another site has sent. That its browser withholds the answer
        is not enough: simple requests are carried out without a preflight."""
        settings, origin = self._settings, _origin_of(headers)
        if ANY_ORIGIN in settings.cors_origins:
            return
        if origin is None:
            site = headers.get("sec-fetch-site")
            # Other ports of one host are the same site: of this machine, they may.
            is_near = site == "same-site" and is_local(host_name(host), addresses=False)
            if site in ("cross-site", "same-site") and not is_near:
                raise ApiError(
                    403, "this request comes from a page of another site: see --cors-origins"
                )
        elif not settings.knows_origin(origin) and not settings.is_own_page(origin, host):
            raise _foreign_page(origin, host)

    def _owner(self, headers: Headers) -> str:
        given = headers.get("x-api-key", "")
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = rest.strip()
        digest, owner = _digest(given[:_MAX_KEY]), ""
        for known, name in self._keys:  # all of them, always: the time is the same
            if hmac.compare_digest(digest, known):
                owner = name
        if not owner:
            raise ApiError(401, "Invalid API Key")
        return owner


def _origin_of(headers: Headers) -> str | None:
    """Browsers send one; several are none that is known."""
    return ", ".join(headers.getlist("origin")) if "origin" in headers else None


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "origin" in headers


def _unknown_name(host: str) -> ApiError:
    name = host_name(host)
    hint = f": --allowed-hosts {name} permits it" if name else ""
    return ApiError(403, f"this server is not called {host!r:.80}{hint}", kind=None)


def _foreign_page(origin: str, host: str) -> ApiError:
    scheme, authority = split_origin(origin)
    if scheme in WEB_SCHEMES and authority == host.lower():
        return _unknown_name(host)
    if not scheme:
        message = "pages that hide where they are from may not use this server: see --cors-origins"
    else:
        message = f"pages of {origin!r:.100} may not use this server: see --cors-origins"
    return ApiError(403, message)


def _digest(key: str) -> bytes:
    """Of one length, whatever was sent."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _name(key: str) -> str:
    return hashlib.sha256(b"owner " + key.encode()).hexdigest()[:16]


def _with_cors(send: Send, origin: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers.add_vary_header("Origin")
            # Capitals as llama-server writes them, for clients that look at names letter by letter.
            origins = (b"Access-Control-Allow-Origin", origin.encode("latin-1"))
            credentials = (b"Access-Control-Allow-Credentials", b"true")
            message = {**message, "headers": [*headers.raw, origins, credentials]}
        await send(message)

    return wrapped


async def _preflight(
    headers: Headers, is_readable: bool, scope: Scope, receive: Receive, send: Send
) -> None:
    from starlette.responses import Response

    response = Response(status_code=200)
    if is_readable:  # without these headers a browser sends nothing
        wanted = headers.get("access-control-request-headers", "*")
        response.raw_headers += [
            (b"Access-Control-Allow-Methods", _METHODS),
            (b"Access-Control-Allow-Headers", wanted.encode("latin-1")),
            (b"Access-Control-Max-Age", b"600"),
        ]
    await response(scope, receive, send)
