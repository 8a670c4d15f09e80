"""All printing. The text goes to stdout and nothing else does; the rest goes to stderr.

Lines that redraw themselves and colours need a terminal there; NO_COLOR and TERM=dumb are heard.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..core.generation import Stats
    from ..core.runtime import Runtime

# C0 but newline and tab, DEL, and C1: escape sequences retitle or rewrite a terminal.
_CONTROL: Final = [c for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"]
_STRIPPED: Final = dict.fromkeys(_CONTROL)
_ESCAPED: Final = {c: f"\\x{c:02x}" for c in _CONTROL} | {ord("\n"): "\\n", ord("\t"): "\\t"}
_ERASE_LINE: Final = "\r\x1b[K"
_DIM, _RED = "2", "1;31"


class StdoutClosedError(Exception):
    """Whoever read our text has gone (`| head -1`), which is no failure of ours."""


class Output:
    """One command's standard streams."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._cleans = sys.stdout.isatty()
        self._line_open = False
        self._progress_open = False
        self._redraws = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A pipe gets the same bytes on every system; a terminal what it can show.
            if self._cleans:
                sys.stdout.reconfigure(errors="replace")
            else:
                sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")

    def text(self, piece: str) -> None:
        """A piece of the model's text, at once."""
        self.clear_progress()
        if self._cleans:
            piece = piece.translate(_STRIPPED)
        if piece:
            self._line_open = not piece.endswith("\n")
            _write_stdout(piece)

    def end_text(self) -> None:
        """Leave the cursor at the start of a line; a pipe gets no newline of ours."""
        if self._cleans and self._line_open:
            _write_stdout("\n")
        self._line_open = False

    def progress(self, stage: str, done: float) -> None:
        """`done` goes from 0 to 1. Nothing shows unless stderr is a terminal."""
        if self._redraws:
            self._progress_open = True
            _write_stderr(f"{_ERASE_LINE}{one_line(stage)} {done:4.0%}")

    def clear_progress(self) -> None:
        if self._progress_open:
            self._progress_open = False
            _write_stderr(_ERASE_LINE)

    def note(self, line: str) -> None:
        """Something that only --verbose wants to know."""
        if self.verbose and not self.quiet:
            self.clear_progress()
            _write_stderr(one_line(line) + "\n")

    def describe_model(self, runtime: Runtime) -> None:
        self.note(f"model      {runtime.name} ({runtime.architecture}) on {runtime.device}")
        self.note(f"context    {runtime.n_ctx} tokens, vocabulary {runtime.n_vocab}")

    def summary(self, stats: Stats, stop_reason: str, seed: int | None) -> None:
        """`seed` is None where no random number was drawn."""
        self.clear_progress()
        if self.quiet:
            return
        ending = f"stopped    {stop_reason}" + ("" if seed is None else f", seed {seed}")
        lines = [
            f"loaded     {stats.load_ms:.0f} ms",
            f"prompt     {_speed(stats.prompt_n, stats.prompt_ms)}",
            f"generated  {_speed(stats.predicted_n, stats.predicted_ms)}",
            ending,
        ]
        for line in lines:
            _write_stderr(_styled(line, _DIM) + "\n")


def _speed(n_tokens: int, milliseconds: float) -> str:
    rate = f", {1000 * n_tokens / milliseconds:.1f} tokens/s" if milliseconds > 0 else ""
    return f"{n_tokens} tokens in {milliseconds:.0f} ms{rate}"


def print_error(message: str) -> None:
    """The one line of a failed command; control characters in it are shown, not obeyed."""
    _write_stderr(f"spec: {_styled('error:', _RED)} {one_line(message)}\n")


def print_help(text: str) -> None:
    """Help that nobody asked for: the command line was incomplete."""
    _write_stderr(text + "\n")


def print_page(text: str) -> None:
    _write_stdout(text)


def print_version(version: str) -> None:
    _write_stdout(f"spec {version}\n")


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


def _styled(text: str, code: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stderr.isatty() else f"\x1b[{code}m{text}\x1b[0m"


def _write_stderr(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody is left to tell
        sys.stderr.write(text)
        sys.stderr.flush()


def _write_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The failed flush dropped what it held, so Python's last one has nothing to complain of.
        raise StdoutClosedError from None
    except OSError as error:
        error.filename = "standard output"
        raise
