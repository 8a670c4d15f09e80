"""The corpus: the standard libraries of Python installations, split by file.

Files of the same name are one family, whatever folder or Python version they come from: a module
that moved between versions must not be in both halves of the split. Of the older versions only
files that bring enough new lines are kept.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .packages import read_packages

FIRST_PROMPTS = Path(__file__).with_name("first_prompts.json")
HELD_OUT_PARTS = 40  # one family of files in so many is held out
NEW_LINES = 0.25  # of an older version of a file, or it is left out
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


@dataclass(frozen=True, slots=True)
class SourceFile:
    version: str  # of the Python that carries it
    name: str  # path below the library's root, with slashes
    text: str

    @property
    def label(self) -> str:
        return f"{self.version}/{self.name}"


@dataclass(frozen=True, slots=True)
class Corpus:
    train: list[SourceFile]
    held_out: list[SourceFile]


def default_libraries() -> list[Path]:
    return [Path(sysconfig.get_path("stdlib"))]


def gather(
    libraries: Sequence[Path],
    packages: Sequence[Path] = (),
    is_held_out: Callable[[str], bool] | None = None,
) -> Corpus:
    """`libraries` are roots as `lib/python3.13`; the newest is read whole, and alone held out.

    `packages` are folders of archives, from which nothing is held out.
    """
    chosen = is_held_out or in_held_out_part
    newest_first = sorted(libraries, key=_version_of, reverse=True)
    train, held_out, tests = _divide(newest_first, chosen)
    lines = {line for file in tests for line in long_lines(file.text)}
    train = [file for file in train if overlap(file.text, lines) <= MAX_OVERLAP]
    lines.update(line for file in train for line in long_lines(file.text))
    train += _new_of_packages(packages, lines)
    return Corpus([file for file in train if not has_judged_header(file.text)], held_out)


def first_prompts() -> list[str]:
    """What people type first: for judging only."""
    prompts: list[str] = json.loads(FIRST_PROMPTS.read_text("utf-8"))
    return prompts


def has_judged_header(text: str) -> bool:
    """Whether it defines what a prompt of the judging begins with."""
    return not judged_headers().isdisjoint(map(str.strip, text.splitlines()))


@functools.cache
def judged_headers() -> frozenset[str]:
    lines = {line.strip() for prompt in first_prompts() for line in prompt.splitlines()}
    # Files have these for themselves, too often to do without all of them.
    common = {"def main():", "def __init__(self, value):", "def __init__(self, name, age):"}
    return frozenset(x for x in lines - common if x.startswith(("def ", "async def ", "class ")))


def _new_of_packages(packages: Sequence[Path], lines: set[str]) -> Iterator[SourceFile]:
    """Files whose lines are mostly new; `lines` are those seen so far."""
    for folder in packages:
        for version, name, text in read_packages(folder):
            if overlap(text, lines) <= MAX_OVERLAP:
                lines.update(long_lines(text))
                yield SourceFile(version, name, text)


def newest(libraries: Sequence[Path]) -> Path:
    return max(libraries, key=_version_of)


def _divide(
    libraries: Sequence[Path], is_held_out: Callable[[str], bool]
) -> tuple[list[SourceFile], list[SourceFile], list[SourceFile]]:
    """Files to train on, files to measure with, and all files that must not be trained on."""
    train: list[SourceFile] = []
    barred: list[SourceFile] = []
    seen: dict[str, set[str]] = {}  # lines that were taken, by family
    texts: set[str] = set()
    for library in libraries:
        for file in read_library(library):
            if file.text in texts:
                continue
            texts.add(file.text)
            if is_held_out(family(file.name)):
                barred.append(file)
                continue
            lines = seen.setdefault(family(file.name), set())
            if 1 - overlap(file.text, lines) >= NEW_LINES:
                train.append(file)
            lines.update(long_lines(file.text))
    newest = _version_text(libraries[0])
    return train, [file for file in barred if file.version == newest], barred


def family(name: str) -> str:
    """The name of a module wherever it lies: `json/__init__.py` and `json.py` are the same."""
    *folders, last = name.removesuffix(".py").split("/")
    if last in ("__init__", "__main__") and folders:
        return folders[-1]
    return last.removeprefix("_")


def in_held_out_part(name: str) -> bool:
    digest = hashlib.sha256(f"held out {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_PARTS == 0


def long_lines(text: str) -> set[str]:
    stripped = (line.strip() for line in text.splitlines())
    return {line for line in stripped if len(line) >= LONG_LINE}


def overlap(text: str, lines: set[str]) -> float:
    own = long_lines(text)
    return len(own & lines) / len(own) if own else 0.0


def read_library(library: Path) -> Iterator[SourceFile]:
    version = _version_text(library)
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if _SKIPPED_FOLDERS & set(name.split("/")) or _SKIPPED_FILES.fullmatch(path.name):
            continue
        text = _read(path)
        if text is not None and _is_wanted(text):
            yield SourceFile(version, name, text)


def help_topics(library: Path) -> list[str]:
    """The language reference as `help()` shows it, one text per topic."""
    path = library / "pydoc_data" / "topics.py"
    if not path.exists():
        return []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Dict):
            topics = ast.literal_eval(node)
            return [topics[name].strip() + "\n" for name in sorted(topics)]
    return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").replace("\r\n", "\n")
    except (UnicodeDecodeError, OSError):
        return None


def _is_wanted(text: str) -> bool:
    if not MIN_BYTES <= len(text) <= MAX_BYTES or _OTHER_LICENCE.search(text):
        return False
    table = sum(len(found) for found in _TABLE.findall(text))
    return table <= MAX_TABLE * len(text)


def _version_of(library: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", _version_text(library)))


def _version_text(library: Path) -> str:
    """The full version, if the installation's folder has it (`3.13.0/lib/python3.13`)."""
    found = re.fullmatch(r"\d+\.\d+\.\d+", library.parent.parent.name)
    if found:
        return found.group()
    if library == Path(sysconfig.get_path("stdlib")):
        return ".".join(map(str, sys.version_info[:3]))
    return library.name.removeprefix("python")
