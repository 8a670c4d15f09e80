"""The standard library of Python as texts: what drafters may be trained on, what is held out.

The bundled model was not trained on some families of files, found by a hash of their name; figures
are measured there, so its drafters are not trained on them either, nor on copies of their lines.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ...core.errors import ConfigError

FIRST_PROMPTS = Path(__file__).with_name("first_prompts.json")
HELD_OUT_PARTS = 40  # one family of files in so many is held out
MAX_OVERLAP = 0.4  # of a file's long lines with held-out ones, or it is not trained on
LONG_LINE = 25  # characters, stripped
MAX_TABLE = 0.33  # digits and escapes in a file; beyond that it is data
MIN_BYTES, MAX_BYTES = 200, 500_000

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "lib-dynload", "encodings", "__pycache__"}
_SKIPPED_FILES = re.compile(r"_sysconfigdata.*|topics\.py|bad_.*|badsyntax_.*|.*_data\.py")
# Parts of the library that came with a licence of their own; the rest is the PSF's.
_OTHER_LICENCE = re.compile(
    r"permission\s+(is\s+hereby\s+granted|to\s+use,\s+copy)|redistribution\s+and\s+use"
    r"|apache\s+license|mit\s+license|bsd\s+license|gnu\s+(lesser\s+)?general\s+public"
    r"|without\s+(any\s+)?(express\s+or\s+implied\s+)?warranty|all\s+rights\s+reserved",
    re.IGNORECASE,
)
_TABLE = re.compile(r"\\[xu]?[0-9a-fA-F]+|[0-9]")


class SourceFile(Struct, frozen=True):
    name: str  # path below the library's root, with slashes
    text: str


def default_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def training_texts(library: Path) -> list[str]:
    """Files of a root as `lib/python3.13` that are not held out and do not copy what is."""
    files = list(read_library(library))
    if not files:
        raise ConfigError(f"{library}: no sources in it; give a folder as lib/pythonX.Y")
    held_out = [file for file in files if is_held_out(file.name)]
    lines = {line for file in held_out for line in long_lines(file.text)}
    texts = [file.text for file in files if not is_held_out(file.name)]
    return [text for text in texts if overlap(text, lines) <= MAX_OVERLAP and not is_judged(text)]


def read_library(library: Path) -> Iterator[SourceFile]:
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if _SKIPPED_FOLDERS & set(name.split("/")) or _SKIPPED_FILES.fullmatch(path.name):
            continue
        try:
            text = path.read_text("utf-8").replace("\r\n", "\n")
        except (UnicodeDecodeError, OSError):
            continue
        if _is_wanted(text):
            yield SourceFile(name, text)


def _is_wanted(text: str) -> bool:
    if not MIN_BYTES <= len(text) <= MAX_BYTES or _OTHER_LICENCE.search(text):
        return False
    table = sum(len(found) for found in _TABLE.findall(text))
    return table <= MAX_TABLE * len(text)


def is_held_out(name: str) -> bool:
    digest = hashlib.sha256(f"held out {family(name)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_PARTS == 0


def family(name: str) -> str:
    """The name of a module wherever it lies: `json/__init__.py` and `json.py` are the same."""
    *folders, last = name.removesuffix(".py").split("/")
    if last in ("__init__", "__main__") and folders:
        return folders[-1]
    return last.removeprefix("_")


def long_lines(text: str) -> set[str]:
    stripped = (line.strip() for line in text.splitlines())
    return {line for line in stripped if len(line) >= LONG_LINE}


def overlap(text: str, lines: set[str]) -> float:
    """The share of its long lines that are among `lines`."""
    own = long_lines(text)
    return len(own & lines) / len(own) if own else 0.0


def first_prompts() -> list[str]:
    """What people type first: for judging only."""
    prompts: list[str] = json.loads(FIRST_PROMPTS.read_text("utf-8"))
    return prompts


def is_judged(text: str) -> bool:
    """Whether it defines what a prompt of the judging begins with."""
    return not judged_headers().isdisjoint(map(str.strip, text.splitlines()))


@functools.cache
def judged_headers() -> frozenset[str]:
    lines = {line.strip() for prompt in first_prompts() for line in prompt.splitlines()}
    # Files have these for themselves, too often to do without all of them.
    common = {"def main():", "def __init__(self, value):", "def __init__(self, name, age):"}
    return frozenset(x for x in lines - common if x.startswith(("def ", "async def ", "class ")))
