"""All printing. The text goes to stdout and nothing else does; the rest goes to stderr.

Lines that redraw themselves and colours need a terminal; NO_COLOR and TERM=dumb turn them off.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

# C0 but newline and tab, DEL, and C1: escape sequences retitle or rewrite a terminal.
_CONTROL: Final = [c for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"]
_STRIPPED: Final = dict.fromkeys(_CONTROL)
_ESCAPED: Final = {c: f"\\x{c:02x}" for c in _CONTROL} | {ord("\n"): "\\n", ord("\t"): "\\t"}
_ERASE_LINE: Final = "\r\x1b[K"
_COLUMNS: Final = 80
_WIDEST: Final = 100  # of prose
_IN_MESSAGE: Final = ("method", "path", "status")  # of a request
READING: Final = "reading the prompt"
DIM, _RED = "2", "1;31"
_LOGS: Final[list[TextIO]] = []  # the file of --log-file, if it is given
_JSON_LINES: Final[list[bool]] = []  # not empty: lines on stderr are JSON objects


class StdoutClosedError(Exception):
    """The reader of stdout has closed it (`| head -1`), which is not a failure."""


class Console:
    """One command's standard streams."""

    def __init__(
        self, *, quiet: bool = False, verbose: bool = False, log_level: str | None = None
    ) -> None:
        """`log_level`: of a server, whose records have times; None: warnings, as bare lines."""
        self.quiet = quiet
        self.log_level = log_level
        self.verbose = verbose
        self._cleans = sys.stdout.isatty()
        self._line_open = False
        self._progress_open = False
        self._stage = ""
        self._report: Callable[[str, float], object] = lambda _stage, _done: None
        is_plain = quiet or _JSON_LINES or os.environ.get("TERM") == "dumb"
        self._redraws = not is_plain and sys.stderr.isatty()
        self.has_colours = _has_colours(sys.stdout)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A pipe gets the same bytes on every system; a terminal what it can show.
            if self._cleans:
                sys.stdout.reconfigure(errors="replace")
            else:
                sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")

    def reporting_to(self, report: Callable[[str, float], object]) -> Console:
        """The same, and `report` is called with all progress."""
        found = copy(self)
        found._report = report
        return found

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is one."""
        return self._cleans

    @property
    def width(self) -> int | None:
        """Columns for lines of prose; None where stdout is not a terminal."""
        return min(shutil.get_terminal_size().columns, _WIDEST) if self._cleans else None

    def text(self, piece: str, style: str = "") -> None:
        """Print a piece of the model's text at once; `style` is for terminals with colours."""
        self.clear_progress()
        if self._cleans:
            piece = piece.translate(_STRIPPED)
        if piece:
            self._line_open = not piece.endswith("\n")
            _write_stdout(_sgr(piece, style) if style and self.has_colours else piece)

    def line(self, text: str) -> None:
        """Print a result that is a line of its own, such as JSON."""
        self.text(text + "\n")

    def end_text(self, *, always: bool = False) -> None:
        """Leave the cursor at the start of a line; a pipe gets no newline of ours, unless other
        texts follow."""
        if (self._cleans or always) and self._line_open:
            self._line_open = False
            _write_stdout("\n")

    def progress(self, stage: str, done: float) -> None:
        """`done` goes from 0 to 1. A line that redraws itself, where stderr is a terminal.

        Elsewhere compiling is reported once, because it takes long, the rest with --verbose.
        """
        if stage.startswith("compiling"):
            stage += ", once for this file"
        self._report(stage, done)
        is_new, self._stage = stage != self._stage, stage
        if done >= 1:
            self.clear_progress()
        elif self._cleans and self._line_open:
            pass  # a text stands on the line that would be drawn
        elif self._redraws:
            self._progress_open = True
            line = f"{one_line(stage)} {done:4.0%}" if done else one_line(stage)
            write_stderr(_ERASE_LINE + line[: columns() - 1])
        elif is_new and not self.quiet and (self.verbose or stage.startswith("compiling")):
            _write_line(stage, "")

    def legend(self, colours: dict[str, str]) -> None:
        """Print which colour stands for which drafter."""
        if not self.quiet:
            names = [_styled(one_line(name), colour) for name, colour in colours.items()]
            write_stderr(_styled("drafted by", DIM) + f" {', '.join(names)}\n")

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """No progress stays in front of an error."""
        try:
            yield
        finally:
            self.clear_progress()

    def clear_progress(self) -> None:
        if self._progress_open:
            self._progress_open = False
            write_stderr(_ERASE_LINE)

    def note(self, line: str) -> None:
        """Print a line on stderr with --verbose only."""
        if self.verbose:
            self.remark(line)

    def remark(self, line: str) -> None:
        """Print a line on stderr, unless --quiet."""
        if not self.quiet:
            self.clear_progress()
            _write_line(line, DIM)


def columns() -> int:
    """Return the columns of stderr's terminal; a line that wraps could not be erased."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def print_error(message: str) -> None:
    """The one line of a failed command; control characters in it are escaped."""
    before = f"spec: {_styled('error:', _RED)} "
    _write_line(message, "", before, "spec: error: ", level="error")


def print_failure(line: str) -> None:
    """Print a failed result in a form that scripts look for, also with --quiet."""
    _write_line(line, _RED, level="error")


def log_record(level: str, message: str, fields: Mapping[str, Any]) -> str:
    """A record of a server's log: time, level, message and `fields`. It goes into the file of
    --log-file; what stderr gets is returned."""
    if _JSON_LINES:
        line = _object_line(level, message, fields)
        _write_logs(line)
        return line
    pairs = [
        f"{name}={_plain(value)}"
        for name, value in fields.items()
        if value is not None and name not in _IN_MESSAGE
    ]
    line = one_line(" ".join([_time(), f"{level:<7}", message, *pairs]))
    _write_logs(f"{line}\n")
    return (_styled(line, DIM) if level in ("debug", "info") else line) + "\n"


def open_log(path: Path | None, *, as_json: bool = False) -> None:
    """Lines of stderr go into this file as well from now on; what it held is gone. `as_json`: they
    are JSON objects, with time and level."""
    _JSON_LINES[:] = [True] * as_json
    while _LOGS:
        _LOGS.pop().close()
    if path is not None:
        file = path.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
        _LOGS.append(file)


def print_prompt(text: str) -> None:
    """Print an input prompt on stderr, where stdout is not for it."""
    write_stderr(text)


def print_help(text: str) -> None:
    """Print help on stderr after an incomplete command line."""
    write_stderr(text + "\n")


def print_page(text: str) -> None:
    _write_stdout(text)


def print_version() -> None:
    from importlib.metadata import version  # takes as long as the rest of `spec --version`

    _write_stdout(f"spec {version('nextn')}\n")


def one_line(text: str) -> str:
    """File names and model metadata may hold anything."""
    return text.translate(_ESCAPED)


def replace_closed_streams() -> None:
    """`spec … >&-` starts without a stdout; the model file must not become it."""
    # In this order: a new file takes the lowest free number.
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - lives to the end
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _has_colours(stream: TextIO) -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


def _styled(text: str, code: str) -> str:
    return _sgr(text, code) if _has_colours(sys.stderr) else text


def _sgr(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _write_line(
    text: str, style: str, before: str = "", logged_before: str = "", *, level: str = "info"
) -> None:
    """On stderr, and in the file of --log-file."""
    if _JSON_LINES:
        line = _object_line(level, text, {})
        write_stderr(line)
        _write_logs(line)
        return
    line = one_line(text)
    write_stderr(before + (_styled(line, style) if style else line) + "\n")
    _write_logs(f"{logged_before}{line}\n")


def _object_line(level: str, message: str, fields: Mapping[str, Any]) -> str:
    return json.dumps({"time": _time(), "level": level, "message": message, **fields}) + "\n"


def _write_logs(line: str) -> None:
    for file in _LOGS:
        with suppress(OSError, ValueError):  # a full disk does not stop the work
            file.write(line)


def _time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    """A value of a record in a line of text: quoted where it would not be one word."""
    if isinstance(value, str) and value.isprintable() and not set(value) & set(' "='):
        return value or '""'
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)


def write_stderr(text: str) -> None:
    with suppress(OSError, ValueError):  # a closed stderr is not reported
        sys.stderr.write(text)
        sys.stderr.flush()


def _write_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The failed flush dropped what it held, so Python's flush at exit does not fail.
        raise StdoutClosedError from None
    except OSError as error:
        error.filename = "standard output"
        raise
