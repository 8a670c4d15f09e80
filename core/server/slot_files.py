"""Files of saved slots. Names come from clients; none of them leads out of the folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..errors import FileFormatError
from ..state.prefix_export import PrefixExport
from ..state.snapshot import SequenceSnapshot
from .api_errors import ApiError

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
# Devices on Windows, with any ending: the folder may be shared with a Windows machine.
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.ASCII | re.IGNORECASE)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_HERE: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Non-blocking: opening a pipe would otherwise wait for a writer.
_READ: Final = os.O_RDONLY | _HERE | getattr(os, "O_NONBLOCK", 0)
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _HERE
_PRIVATE: Final = 0o600


def check_name(name: str | None) -> str:
    if name is None:
        raise ApiError(400, "filename is missing", param="filename")
    if not _NAME.fullmatch(name) or _DEVICES.fullmatch(name) or name.endswith("."):
        raise ApiError(
            400,
            "filename must be 1 to 128 letters, digits, dots, dashes and underscores, and begin "
            f"with none of the dots, got {name!r:.60}",
            param="filename",
        )
    return name


def save(folder: Path, name: str, snapshot: SequenceSnapshot) -> int:
    """Returns the number of bytes written. The file appears whole or not at all, and replaces an
    older one; a link of that name is replaced, not followed."""
    temporary = f".{secrets.token_hex(8)}.slot.tmp"
    try:
        at = os.open(folder, _FOLDER)
        try:
            try:
                with os.fdopen(os.open(temporary, _WRITE, _PRIVATE, dir_fd=at), "wb") as file:
                    n = snapshot.write(file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
            finally:
                with suppress(OSError):  # it has its name now, or must not stay
                    os.unlink(temporary, dir_fd=at)
            with suppress(OSError):
                os.fsync(at)
        finally:
            os.close(at)
    except OSError as error:
        raise ApiError(500, f"{name} cannot be written: {error.strerror or error}") from None
    return n


def load(folder: Path, name: str, max_bytes: int) -> tuple[PrefixExport, int]:
    """Returns the slot and the number of bytes read. Raises an `ApiError` if the file is not a
    saved slot."""
    try:
        at = os.open(folder, _FOLDER)
        try:
            number = os.open(name, _READ, dir_fd=at)
        finally:
            os.close(at)
        try:
            size = _check_file(os.fstat(number), name, max_bytes)
        except ApiError:
            os.close(number)
            raise
        with os.fdopen(number, "rb") as file:
            return PrefixExport.split(SequenceSnapshot.read(file, name)), size
    except FileNotFoundError:
        raise ApiError(400, f"there is no saved slot {name}", param="filename") from None
    except FileFormatError as error:
        message = str(error)
        raise _refused(message if message.startswith(name) else f"{name}: {message}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(f"{name} is a link, which is not followed") from None
        raise _refused(f"{name} cannot be read: {error.strerror or error}") from None


def _check_file(about: os.stat_result, name: str, max_bytes: int) -> int:
    if not stat.S_ISREG(about.st_mode):
        raise _refused(f"{name} is not a plain file")
    if about.st_size > max_bytes:  # before there is memory for it
        raise _refused(f"{name} is larger than any saved slot of this server")
    return about.st_size


def _refused(message: str) -> ApiError:
    return ApiError(400, message, param="filename")
