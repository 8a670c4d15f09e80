"""What the commands that write a GGUF share: where to, how far, and what to try next."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, ClassVar, NoReturn

import typer

from ...core.gguf.shown import shown_path
from ..output import Output

if TYPE_CHECKING:
    from ...convert.files.output import Progress

_EVERY_S = 0.1
_TERMINATED = 143

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object about what was written.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the output if it is there.")]


@dataclass(frozen=True, slots=True)
class OutOptions:
    SECTION: ClassVar = "Output"

    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")
    ]
    force: ForceOption = False
    json: JsonOption = False


@contextmanager
def writing(output: Output, path: Path) -> Iterator[Progress]:
    """How far it is, with speed and time left. Being told to end leaves nothing behind."""
    name = shown_path(path.name)
    began, shown_at, stage = time.perf_counter(), 0.0, f"writing {name}"

    def progress(done: int, total: int) -> None:
        nonlocal shown_at
        now = time.perf_counter()
        if done >= total:
            output.progress(f"waiting for the disk to have {name}", 0.0)
        elif now - shown_at > _EVERY_S:
            shown_at = now
            per_s = done / max(now - began, 1e-9)
            detail = f", {per_s / 1e6:.0f} MB/s, {duration((total - done) / per_s)} left"
            output.progress(stage + (detail if sys.stderr.isatty() else ""), done / total)

    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield progress
    finally:
        signal.signal(signal.SIGTERM, before)
        output.clear_progress()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_TERMINATED)


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(n_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.2f} {unit}"
    return f"{n_bytes} bytes"


def quoted(path: Path) -> str:
    """As it can be pasted into a shell."""
    return shlex.quote(str(path))
