"""What a user of the recipe's commands can cause, as one line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...core.errors import NextnError

FAILED, INTERRUPTED = 1, 130


def in_one_line(program: str, work: Callable[[], None]) -> None:
    try:
        work()
    except KeyboardInterrupt:
        _end(f"{program}: interrupted; the same command goes on from its last checkpoint")
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _end(f"{program}: error: torch is not installed; run: pip install 'nextn[train]'")
        sys.exit(FAILED)
    except (NextnError, OSError) as error:
        _end(f"{program}: error: {error}")
        sys.exit(FAILED)


def _end(line: str) -> None:
    sys.stderr.write(line + "\n")
