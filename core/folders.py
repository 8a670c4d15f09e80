"""Where files are kept between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_root() -> Path:
    """SPEC_CACHE_DIR, or the user's cache folder."""
    root = os.environ.get("SPEC_CACHE_DIR")
    if root:
        return Path(root)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "nextn"
