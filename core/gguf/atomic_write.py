"""Files that appear complete or not at all.

Everything is written under temporary names in the final folder, synced, then renamed. Whatever
ends the work early, an interrupt included, the temporary files are removed.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from ..errors import ConfigError, NextnError
from .printable import printable_path

UNFINISHED: Final = ".part"  # ends the names of files that a kill left behind


@contextmanager
def atomic_write(finals: list[Path], overwrite: bool) -> Iterator[list[BinaryIO]]:
    """One open file per final path. Leaving the block normally puts all in place."""
    _refuse_existing(finals, overwrite)
    temporary: list[Path] = []
    files: list[BinaryIO] = []
    try:
        for final in finals:
            temporary.append(final.with_name(f".{secrets.token_hex(8)}.gguf.tmp"))
            files.append(open(temporary[-1], "xb"))  # noqa: SIM115 - closed below, all together
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())
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
