"""The check of --slot-save-path, before anything slow is imported."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError


def check_folder(path: Path) -> None:
    """Raises a `ConfigError` if slots cannot be saved there."""
    if not path.is_dir():
        raise ConfigError(f"--slot-save-path {path}: there is no such folder")
    if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
        raise ConfigError("--slot-save-path is not supported on this system")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"--slot-save-path {path}: this folder cannot be read and written")
