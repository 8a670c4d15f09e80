"""The address of a server, from `--url`; checked before anything is sent."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}
_VERSION: Final = "/v1"


class ServerAddress(Struct, frozen=True):
    """`prefix` stands in front of /v1/… and of /completion; it is mostly empty."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def shown(self) -> str:
        """The URL, without a default port."""
        return f"{self.scheme}://{self.place}{self.prefix}"

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_address(url: str) -> ServerAddress:
    """The address of a URL with or without /v1 at its end, as clients of either kind have it."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", url):
        raise ConfigError(f"a server's URL begins with http:// or https://, got {url!r}")
    if re.search(r"[\x00-\x20\x7f-\x9f]", url):
        raise ConfigError(f"a server's URL holds no spaces or control characters, got {url!r}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in _PORTS:
        raise ConfigError(f"only http and https servers can be measured, got {parts.scheme}://")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a URL with a user or password would end up in reports; use --api-key")
    if parts.query or parts.fragment:
        raise ConfigError(f"a server's URL ends with its path, without ? and #, got {url!r}")
    if not parts.hostname or port == 0:
        raise ConfigError(f"{url!r} names no {'port' if parts.hostname else 'host'}")
    prefix = parts.path.rstrip("/").removesuffix(_VERSION).rstrip("/")
    return ServerAddress(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], prefix)
