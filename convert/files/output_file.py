"""Where a file is written to: nothing is lost there, and nothing half done is left.

Everything is checked before the first byte is written: whether the output exists, is an input, is a
link, can be written to, and whether there is room.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import ConfigError, NextnError
from ...core.gguf.header import DEFAULT_ALIGNMENT
from ...core.gguf.printable import printable_path
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import align
from ...core.gguf.types import Writable
from ...core.gguf.writer import TensorData, write_gguf

Progress = Callable[[int, int], None]  # bytes that are done, of all
_HEADERS: Final = 64 << 20  # more than any header takes
_BACKUP: Final = ".bak"


class OutputFile(Struct, frozen=True):
    """`max_bytes`: in shards of about that size. `backup`: where the file that is replaced goes."""

    path: Path
    overwrite: bool = False
    max_bytes: int | None = None
    backup: Path | None = None

    @classmethod
    def in_place(cls, target: GgufFile) -> OutputFile:
        path = target.path
        if len(target.paths) > 1:
            raise ConfigError(f"{target.label} is one of several shards: merge them, or use -o")
        _refuse_link(path)
        _refuse_strangers_file(path)
        backup = path.with_name(path.name + _BACKUP)
        if os.path.lexists(backup):
            raise ConfigError(
                f"{printable_path(backup)} exists, and would be the backup: move it away first"
            )
        return cls(path, overwrite=True, backup=backup)


def write(
    output: OutputFile,
    entries: Mapping[str, Writable],
    tensors: Iterable[TensorData],
    sources: Iterable[GgufFile],
    progress: Progress = lambda done, total: None,
    inputs: Iterable[Path] = (),
) -> list[Path]:
    """`inputs`: other files that are read, and must not be replaced."""
    listed, opened = list(tensors), list(sources)
    alignment = opened[0].alignment if opened else DEFAULT_ALIGNMENT
    total = sum(tensor.n_bytes for tensor in listed)
    needed = sum(align(tensor.n_bytes, alignment) for tensor in listed)
    check_output(output, [*inputs, *(path for file in opened for path in file.paths)], needed)
    n_done = 0

    def report(n_bytes: int) -> None:
        nonlocal n_done
        n_done += n_bytes
        progress(n_done, total)
        if n_done >= total:
            _check_unchanged(opened)
            backup.make()

    with _Backup(output) as backup:
        return write_gguf(
            output.path,
            dict(entries),
            listed,
            alignment=alignment,
            max_shard_bytes=output.max_bytes,
            overwrite=output.overwrite,
            keeps_access=output.backup is not None,
            report=report,
        )


def _check_unchanged(sources: list[GgufFile]) -> None:
    for source in sources:
        if not source.is_unchanged():
            raise NextnError(f"{source.label} was written to meanwhile; nothing was made")


def check_output(output: OutputFile, inputs: Iterable[Path], total: int) -> None:
    """`total`: bytes of tensors. Also for callers that do something slow before they write."""
    path = output.path
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{printable_path(path)} is a folder; give the name of a file")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {printable_path(folder)}")
    if output.backup is None:
        _refuse_inputs(output, list(inputs))
        _refuse_link(path)
        if path.exists() and not output.overwrite:
            raise ConfigError(f"{printable_path(path)} exists already; --force replaces it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{printable_path(folder)} cannot be written to")
    free = shutil.disk_usage(folder).free
    if free < total + min(_HEADERS, total // 8):
        raise NextnError(
            f"{printable_path(folder)} has {free / 1e6:,.0f} MB free, {total / 1e6:,.0f} MB are "
            f"needed: make room, or choose another disk"
        )


def _refuse_inputs(output: OutputFile, inputs: list[Path]) -> None:
    path = output.path
    if path.exists() and any(path.samefile(part) for part in inputs):
        raise ConfigError(f"{printable_path(path)} is the input itself; give another name")
    if output.max_bytes is None:
        return
    shard = re.compile(re.escape(path.name.removesuffix(".gguf")) + r"-\d{5}-of-\d{5}\.gguf")
    folder = path.parent.resolve()
    for part in inputs:
        if part.resolve().parent == folder and shard.fullmatch(part.name):
            raise ConfigError(
                f"shards called {printable_path(path.name.removesuffix('.gguf'))}-... may replace "
                f"the input's, as {printable_path(part.name)} is one of its own shards; give "
                "another name"
            )


def _refuse_link(path: Path) -> None:
    """A link would be replaced by a file, or the file that it leads to be overwritten."""
    if path.is_symlink():
        raise ConfigError(
            f"{printable_path(path)} is a symbolic link to {printable_path(path.resolve())}; give "
            "a plain file's name"
        )


def _refuse_strangers_file(path: Path) -> None:
    """What replaces it could not be given to its owner."""
    found = path.stat()
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        return
    if found.st_uid != os.geteuid() or found.st_gid not in (os.getegid(), *os.getgroups()):
        raise ConfigError(
            f"{printable_path(path)} belongs to another user or group, which a new file could not "
            "be given to: use -o"
        )


class _Backup:
    """The old file under a second name before it loses its first: at no moment is there none."""

    def __init__(self, output: OutputFile) -> None:
        self.path, self.backup = output.path, output.backup
        self.is_made = False

    def make(self) -> None:
        if self.backup is None or self.is_made:
            return
        self.is_made = True
        try:
            os.link(self.path, self.backup)
        except OSError:  # a file system without hard links
            _copy(self.path, self.backup)

    def __enter__(self) -> _Backup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.backup is not None and self.is_made:
            self.backup.unlink(missing_ok=True)


def _copy(path: Path, backup: Path) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < 2 * path.stat().st_size:
        raise NextnError(f"{printable_path(path.parent)} has no room for a backup of {path.name}")
    try:
        shutil.copy2(path, backup)
    except BaseException:
        backup.unlink(missing_ok=True)
        raise


def shard_prefix(prefix: str) -> Path:
    """`PREFIX` or `PREFIX.gguf`: what stands in front of `-00001-of-00003.gguf`."""
    name = prefix.removesuffix(".gguf")
    if not Path(name).name:
        raise ConfigError(f"{prefix!r} is not a name that shards could have")
    return Path(name + ".gguf")
