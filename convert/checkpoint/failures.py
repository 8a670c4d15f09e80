"""How a server can fail, in words for people."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from ...core.errors import NextnError

# No server of that name, none that listens, none that is who it says: not soon, either.
FINAL: Final = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError)


class RemoteError(NextnError):
    """Something on a server cannot be read."""


class TransientError(Exception):
    """Worth another try."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def busy(status: int) -> str:
    if status == 429:
        return "the server has had too many requests (429); try later, or set HF_TOKEN"
    return f"the server failed ({status}); try later"


def reason(status: int, *, has_token: bool) -> str:
    match status:
        case 401 if has_token:
            return "the server does not take this HF_TOKEN (401), or there is no such repository"
        case 401:
            return "no such repository, or a private or gated one (401): set HF_TOKEN for these"
        case 403:
            return (
                "access is denied (403): a gated repository wants its terms accepted on its page, "
                "and HF_TOKEN set"
            )
        case 404:
            return "there is no such repository, revision or file (404)"
    return f"the server answered with status {status}"


def named(error: Exception, host: str, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"{host} did not answer within {timeout_s:g} s"
    if isinstance(error, TransientError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not trusted ({error.verify_message})"
    if isinstance(error, OSError):
        return f"{host} cannot be reached: {error.strerror or error}"
    return f"the server's answer makes no sense ({type(error).__name__})"
