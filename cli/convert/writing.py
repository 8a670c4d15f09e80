"""Shared by the commands that write a GGUF: flags, progress, and the lines at the end."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ...core.gguf.printable import printable_path
from ..console import Console
from ..flags import flag
from ..usage import flag_errors

if TYPE_CHECKING:
    from ...convert.files.output_file import Progress

_EVERY_S = 0.1
_TERMINATED = 143

JSON: Final = flag("--json", "One JSON object about what was written.")
FORCE: Final = flag("--force", "Replace an existing output.")
SPLIT: Final = flag(
    "--split-max-size SIZE", "Maximum size of a shard OUT-00001-of-0000N.gguf: 500M, 4G, 4GiB."
)
REVISION: Final = flag("--revision NAME", "Branch, tag or commit of a repository.")
THREADS: Final = flag("--threads -t N", "Threads; all cores by default.", min=1)


def read_size(text: str | None) -> int | None:
    """Bytes of --split-max-size."""
    from ...convert.files.recombine import parse_size

    with flag_errors(lambda message: f"--split-max-size: {message}"):
        return None if text is None else parse_size(text)


@contextmanager
def writing(output: Console, path: Path) -> Iterator[Progress]:
    """Progress with speed and time left. SIGTERM leaves nothing behind."""
    from ...core.gguf.atomic_write import remove_leftovers

    for left in remove_leftovers(path):
        output.remark(f"removed {printable_path(left)}: a run that was killed had left it")
    name = printable_path(path.name)
    began, shown_at, stage = time.perf_counter(), 0.0, f"writing {name}"

    def progress(done: int, total: int) -> None:
        nonlocal shown_at
        now = time.perf_counter()
        if done >= total:
            output.progress(f"waiting for the disk to have {name}", 0.0)
        elif now - shown_at > _EVERY_S:
            shown_at = now
            per_s = done / max(now - began, 1e-9)
            detail = f", {size(per_s)}/s, {duration((total - done) / per_s)} left"
            output.progress(stage + (detail if sys.stderr.isatty() else ""), done / total)

    with ended_in_order(), output.cleared():
        yield progress


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM as an exception, on whose way out temporary files are removed."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_TERMINATED)


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(n_bytes: float) -> str:
    """Text of a size in powers of ten, as --split-max-size and file managers have it."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.2f} {unit}"
    return f"{n_bytes:.0f} bytes"


def quoted(path: str | Path) -> str:
    """The path as it can be pasted into a shell."""
    return shlex.quote(str(path))


def finish(
    output: Console, paths: Sequence[Path], what: str, command: str, *, as_json: bool, **more: Any
) -> None:
    """The end of every command: what was written, the next command on a line of its own, and with
    --json one object, which also has the fields `more`."""
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    output.remark(f"wrote {paths[0]}{others}: {what}")
    output.remark(f"next: {command}")
    if as_json:
        n_bytes = sum(path.stat().st_size for path in paths)
        found = {"output": [str(path) for path in paths], "bytes": n_bytes, **more}
        output.line(json.dumps(found))


def drafting_command(model: Path, head: Path | None = None) -> str:
    """The next command for a model with an MTP head: ours where it drafts here, llama.cpp's where
    only that runs it, else inspect, which says why not. `head`: the head in a file of its own."""
    from ...convert.heads.family_table import find_mtp_family
    from ...convert.verify import OpenedGguf, examine
    from ...core.gguf.reader import open_gguf

    files = f"-m {quoted(model)}" + (f" -md {quoted(head)}" if head else "")
    with open_gguf(model) as file:
        report = examine(OpenedGguf(file, has_numbers=False, n_bytes=0))
    if any(drafter.name == "mtp" and drafter.works for drafter in report.drafters):
        return f"spec generate {files} --spec-type mtp 'Once upon a time'"
    family = find_mtp_family(report.architecture)
    if family.architecture and family.in_llama_cpp and report.loads_in_llama_cpp:
        return f"llama-server {files} --spec-type draft-mtp"
    return f"spec convert inspect {quoted(head or model)}"
