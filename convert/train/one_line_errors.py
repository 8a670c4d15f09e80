"""Errors that a user of these commands can cause, as one line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...core.errors import NextnError

FAILED, INTERRUPTED = 1, 130


def in_one_line(program: str, work: Callable[[], None]) -> None:
    code = FAILED
    try:
        return work()
    except KeyboardInterrupt:
        code, line = INTERRUPTED, "interrupted"
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        line = "error: torch is not installed; run: pip install 'nextn[train]'"
    except (NextnError, OSError) as error:
        line = f"error: {error}"
    sys.stderr.write(f"{program}: {line}\n")
    sys.exit(code)
