"""A message typed on the terminal, edited with readline; pasted lines stay together."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

from .console import print_prompt

PROMPT, MORE = "> ", "  "
PASTE_GAP_S: Final = 0.03  # faster input is pasted, not typed


class LineDroppedError(Exception):
    """Ctrl-C on a line with text, which drops the line."""


def read_message() -> str:
    """Return a message; EOFError at the end, KeyboardInterrupt for Ctrl-C on an empty line."""
    editor = load_editor()
    lines = [read_line(PROMPT, editor)]
    while True:
        # Without bracketed paste, further pasted lines wait; their backslashes are text.
        if not input_waits():
            if not lines[-1].endswith("\\"):
                return "\n".join(lines)
            lines[-1] = lines[-1][:-1]
        try:
            lines.append(read_line(MORE, editor))
        except EOFError:
            return "\n".join(lines)
        except KeyboardInterrupt:
            raise LineDroppedError from None


def load_editor() -> ModuleType | None:
    """Return readline, with which `input` edits and remembers lines; None where it is missing."""
    try:
        import readline
    except ImportError:
        return None
    if "libedit" not in (readline.__doc__ or ""):
        # Python switches bracketed paste off for its own prompt.
        readline.parse_and_bind("set enable-bracketed-paste on")
    return readline


def read_line(prompt: str, editor: ModuleType | None) -> str:
    """Return a line. The prompt goes to stdout by `input` only where that is a terminal too."""
    edits = sys.stdout.isatty()
    try:
        line = input(prompt) if edits else plain_line(prompt)
    except EOFError:
        print_prompt("\n")
        raise
    except KeyboardInterrupt:
        print_prompt("\n")
        if edits and editor is not None and editor.get_line_buffer():
            raise LineDroppedError from None
        raise
    # Bytes that are no UTF-8 arrive as lone surrogates.
    return line.rstrip("\n").encode("utf-8", "replace").decode()


def plain_line(prompt: str) -> str:
    print_prompt(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


if sys.platform == "win32":
    import msvcrt
    import time

    def input_waits() -> bool:
        time.sleep(PASTE_GAP_S)
        return msvcrt.kbhit()

else:
    import select

    def input_waits() -> bool:
        return bool(select.select([sys.stdin], [], [], PASTE_GAP_S)[0])
