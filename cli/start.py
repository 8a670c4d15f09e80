"""Where `spec` starts: Ctrl-C is caught before anything that takes long is imported."""

from __future__ import annotations

import sys
from typing import NoReturn

from . import interrupts


def main() -> NoReturn:
    interrupts.arm()
    try:
        from .app import run
        from .output import replace_closed_streams
    except KeyboardInterrupt:
        sys.exit(130)
    replace_closed_streams()
    sys.exit(run(sys.argv[1:]))
