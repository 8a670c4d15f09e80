"""What a caller says about images: the mmproj file, and how much of the context they may take."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from ..errors import ConfigError

MOST_ROWS: Final = 1 << 16  # of an image


class MmprojOptions(Struct, frozen=True):
    path: str | Path
    least: int | None = None  # rows of an image; None: what is usual
    most: int | None = None


def check_mmproj(
    path: str | Path | None, least: int | None = None, most: int | None = None
) -> MmprojOptions | None:
    """The options of flags, checked; None without a file."""
    for flag, rows in (("--image-min-tokens", least), ("--image-max-tokens", most)):
        if rows is not None and path is None:
            raise ConfigError(f"{flag} is for --mmproj FILE, which is not given")
        if rows is not None and not 1 <= rows <= MOST_ROWS:
            raise ConfigError(f"{flag} must be 1 to {MOST_ROWS}, got {rows}")
    if least is not None and most is not None and least > most:
        raise ConfigError(f"--image-min-tokens {least} is more than --image-max-tokens {most}")
    return None if path is None else MmprojOptions(path, least, most)
