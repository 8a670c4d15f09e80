"""`--models-preset`: an INI file with a section of flags for each model, and [*] for all."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ..core.errors import ConfigError
from ..core.gguf.printable import printable_path
from ..core.gguf.read_bounded import read_bounded

EVERY: Final = "*"  # the section for all models
_MAX_BYTES: Final = 1 << 20
_COMMENTS: Final = ("#", ";")
_VERSION: Final = "1"


class PresetLine(NamedTuple):
    number: int
    key: str
    value: str


Sections = dict[str, list[PresetLine]]


def read_presets(path: Path) -> Sections:
    """Returns the lines of each section. A ConfigError names the line that is wrong."""
    if not path.is_file():
        raise ConfigError(f"--models-preset: there is no file {printable_path(path)}")
    try:
        text = read_bounded(path, _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{printable_path(path)}: is no text in UTF-8") from None
    found: Sections = {}
    top: list[PresetLine] = []
    lines = top
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith(_COMMENTS):
            continue
        key, equals, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            name = line[1:-1].strip()
            if not name or name in found:
                what = "a section needs a name" if not name else f"[{name}] comes twice"
                raise _wrong(path, number, what)
            lines = found[name] = []
        elif not equals or not key.strip():
            raise _wrong(path, number, f"expected [NAME] or KEY = VALUE, got {line!r:.60}")
        else:
            lines.append(PresetLine(number, key.strip(), value.strip()))
    for each in top:
        if (each.key, each.value) != ("version", _VERSION):
            raise _wrong(path, each.number, f"{each.key} stands before the first [NAME]")
    return found


def shown(name: str, lines: list[PresetLine]) -> str:
    """The section as text."""
    return "".join([f"[{name}]\n", *(f"{each.key} = {each.value}\n" for each in lines)])


def _wrong(path: Path, number: int, what: str) -> ConfigError:
    return ConfigError(f"{printable_path(path)}, line {number}: {what}")
