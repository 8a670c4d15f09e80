"""Files that appear complete or not at all.

Everything is written under temporary names in the final folder, synced, then renamed. Whatever
ends the work early, an interrupt included, the temporary files are removed. A kill leaves them:
their names have the final one in them, and while they are written they are locked, so that
`remove_leftovers` can tell them from those of a run that goes on.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from ..errors import ConfigError, NextnError
from .printable import printable_path

try:
    import fcntl
except ImportError:  # no locks on this system
    fcntl = None  # type: ignore[assignment]

UNFINISHED: Final = ".part"  # ends the names of files that a kill left behind
_MOST_OF_NAME: Final = 220  # bytes; names have 255 at most


@contextmanager
def atomic_write(
    finals: list[Path], overwrite: bool, *, keeps_access: bool = False
) -> Iterator[list[BinaryIO]]:
    """One open file per final path. Leaving the block normally puts all in place. `keeps_access`:
    mode and owner are those of the files that are replaced."""
    _refuse_existing(finals, overwrite)
    temporary: list[Path] = []
    files: list[BinaryIO] = []
    try:
        for final in finals:
            files.append(_create(final, temporary))
        yield files
        for file, final in zip(files, finals, strict=True):
            file.flush()
            if keeps_access and final.exists():
                _give_access(file, final)
            os.fsync(file.fileno())
            if fcntl is None:  # a system on which open files keep their names
                file.close()
        _refuse_existing(finals, overwrite)
        # The first shard last: without it the others are no model.
        for source, final in reversed(list(zip(temporary, finals, strict=True))):
            os.replace(source, final)
        _sync_folder(finals[0].parent)
    except OSError as error:
        raise NextnError(
            f"{printable_path(finals[0])}: cannot be written: {error.strerror or error}"
        ) from error
    finally:
        _discard(files, temporary)


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """One file that replaces another when it is complete. OSErrors are the caller's."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_leftovers(final: Path) -> list[Path]:
    """Remove what runs that were killed have left of this file, or of its shards, and return it.

    What a run is writing now stays, and so does all where files cannot be locked.
    """
    stem = re.escape(final.name.removesuffix(".gguf"))
    shard = r"(-\d{5}-of-\d{5})?"
    ours = re.compile(rf"\.{stem}{shard}(\.gguf)?\.[0-9a-f]{{16}}{re.escape(UNFINISHED)}")
    removed = []
    with suppress(OSError):
        for path in sorted(final.parent.iterdir()):
            if ours.fullmatch(path.name) and path.is_file() and _is_left(path):
                path.unlink()
                removed.append(path)
    return removed


def _is_left(path: Path) -> bool:
    if fcntl is None:
        return False
    try:
        with open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _create(final: Path, temporary: list[Path]) -> BinaryIO:
    """A locked file beside `final`, whose path is added to `temporary`."""
    while True:
        name = final.name if len(os.fsencode(final.name)) <= _MOST_OF_NAME else "long"
        path = final.with_name(f".{name}.{secrets.token_hex(8)}{UNFINISHED}")
        temporary.append(path)
        file = open(path, "xb")  # noqa: SIM115 - closed by the caller, all together
        if fcntl is None:
            return file
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():  # nothing took it for a leftover before it was locked
            return file
        file.close()
        temporary.pop()


def _give_access(file: BinaryIO, like: Path) -> None:
    old = like.stat()
    if hasattr(os, "fchown"):
        os.fchown(file.fileno(), old.st_uid, old.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))


def _refuse_existing(finals: list[Path], overwrite: bool) -> None:
    for final in finals:
        if os.path.lexists(final) and not overwrite:
            raise ConfigError(f"{printable_path(final)}: exists already; it was not overwritten")


def _discard(files: list[BinaryIO], temporary: list[Path]) -> None:
    for file in files:
        with suppress(OSError):  # a full disk fails again when the rest is flushed
            file.close()
    for path in temporary:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """So that the new names survive a power cut. Not every system can do this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
