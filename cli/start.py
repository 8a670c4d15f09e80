"""Where `spec` starts: Ctrl-C is caught before anything that takes long is imported."""

from __future__ import annotations

import sys
from typing import NoReturn

from . import interrupts


def main() -> NoReturn:
    interrupts.arm()
    try:
        from .console import print_version, replace_closed_streams

        replace_closed_streams()
        if sys.argv[1:] == ["--version"]:  # the rest of the program is not needed
            print_version()
            sys.exit(0)
        from .app import run
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))
