"""Unix sockets to listen on: a file, which is there as long as the server."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from ..errors import ConfigError

_ENDING: Final = ".sock"
_PREFIX: Final = "unix:"
_HIDDEN: Final = 0o117  # the file is for its owner and group
_ANSWER_S: Final = 5.0


def unix_path(host: str) -> str | None:
    """The file that a --host names, as llama-server and nginx write it; None: it is an address."""
    if host.startswith(_PREFIX):
        return host.removeprefix(_PREFIX).removeprefix("//") or None
    return host if host.endswith(_ENDING) else None


def open_unix_socket(path: str, backlog: int) -> socket.socket:
    """Replaces a file that a server has left behind, and no other."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError(f"cannot listen on {path}: this system has no Unix sockets")
    _make_room(path)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_HIDDEN)  # the file never has other rights, not for a moment
    try:
        found.bind(path)
        found.listen(backlog)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {path}: {_reason(error)}") from None
    finally:
        os.umask(before)
    return found


def remove_socket_files(hosts: Iterable[str]) -> None:
    """Called at the end. Those that are addresses have no file."""
    for path in filter(None, map(unix_path, hosts)):
        with suppress(OSError):
            os.unlink(path)


def _make_room(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {_reason(error)}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {path}: it is a file, and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_S)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as error:
            raise ConfigError(f"cannot listen on {path}: {_reason(error)}") from None
    raise ConfigError(f"cannot listen on {path}: another server does; give another --host")


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason[:1].lower() + reason[1:]
