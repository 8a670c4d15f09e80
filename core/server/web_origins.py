"""Reads the Host and Origin headers of requests: which names and pages are of this machine."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

WEB_SCHEMES: Final = ("http", "https")
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")
# Strictly: a browser resolves the whole of a name, so no part of it may decide.
_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::(\d{1,5}))?", re.ASCII)
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s]*)", re.ASCII)
_MAX_PORT: Final = 65535
# Of multicast DNS and clusters; reserved for private networks.
_PRIVATE_ENDINGS: Final = (".local", ".internal", ".home.arpa")


def host_name(authority: str) -> str:
    """Returns the name or address in `NAME[:PORT]`; empty if it is malformed."""
    match = _AUTHORITY.fullmatch(authority.strip().lower())
    if match is None:
        return ""
    address, name, port = match.groups()
    if port is not None and not 0 < int(port) <= _MAX_PORT:
        return ""
    return name or (address if _is_address(address) else "")


def split_origin(origin: str) -> tuple[str, str]:
    """Returns scheme and authority; both are empty for `null` and what is no origin."""
    match = _ORIGIN.fullmatch(origin.lower())
    return (match[1], match[2]) if match else ("", "")


def is_loopback(host: str) -> bool:
    if host in _LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local(name: str, *, addresses: bool = True) -> bool:
    """Returns whether this is a name of this machine. `addresses`: or any IP address, which DNS
    rebinding cannot use."""
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return True
    return _is_address(name) if addresses else is_loopback(name)


def is_private(name: str) -> bool:
    """Returns whether the public DNS has no such name."""
    return is_local(name) or (bool(name) and ("." not in name or name.endswith(_PRIVATE_ENDINGS)))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
