"""The socket of a server. Imports nothing slow, so that it can be opened first."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from ..errors import ConfigError
from .unix_sockets import open_unix_socket, unix_path

BACKLOG: Final = 2048


def open_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Called before anything slow, so that errors are reported at once. `is_shared`: other
    processes may listen on the same port, and the system gives each its share."""
    if (path := unix_path(host)) is not None:
        return open_unix_socket(path, BACKLOG)
    if is_shared and not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("--reuse-port: this system shares no ports among processes")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error}") from None
    family, _, _, _, address = found[0]
    try:
        listening = socket.create_server(
            address[:2], family=family, backlog=BACKLOG, reuse_port=is_shared
        )
    except OSError as error:
        where = url_of(host, port)
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ConfigError(
            f"cannot listen on {where}: {reason[:1].lower()}{reason[1:]}; give another --port or "
            "--host"
        ) from None
    # Connections inherit it. Without it the end of a response waits until the client has said that
    # the head came, 40 ms on Linux. asyncio sets it, but not for sockets without a protocol number.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(host: str, port: int, *, is_secure: bool = False) -> str:
    if (path := unix_path(host)) is not None:
        return f"unix:{path}"
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{'https' if is_secure else 'http'}://{shown}:{port}"


def check_certificate(certificate: str, key: str) -> None:
    """Raises a `ConfigError` before the model loads; uvicorn reads the files later."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"{certificate} and {key} are no certificate with its private key in PEM format, "
            f"without a password: {reason}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")
