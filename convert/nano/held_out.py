"""Files that the bundled model was not trained on, and functions in them that it continues."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from .corpus import SourceFile, read_library

LIST = Path(__file__).with_name("held_out.json")
PROMPT_LINES = 30  # in front of a function, as context


@dataclass(frozen=True, slots=True)
class Site:
    """A function of a held-out file."""

    label: str
    before: str  # lines in front of it
    header: str  # its first line, without the newline


def load(library: Path, names: list[str] | None = None) -> list[SourceFile]:
    """The listed files, of exactly the listed version."""
    wanted = set(names if names is not None else json.loads(LIST.read_text("utf-8")))
    found = [file for file in read_library(library) if file.label in wanted]
    if len(found) != len(wanted):
        version = min(wanted).partition("/")[0]
        raise ConfigError(
            f"{library} has {len(found)} of the {len(wanted)} held-out files; "
            f"give the library of Python {version}"
        )
    return found


def sites(files: list[SourceFile], n: int, *, methods: bool) -> list[Site]:
    """`n` functions, scattered over the files by a hash."""
    found = [site for file in files for site in _sites_of(file, methods)]
    return sorted(found, key=lambda s: hashlib.sha256(s.label.encode()).digest())[:n]


def _sites_of(file: SourceFile, methods: bool) -> Iterator[Site]:
    lines = file.text.splitlines()
    for node in ast.walk(ast.parse(file.text)):
        if not isinstance(node, ast.FunctionDef) or (node.col_offset and not methods):
            continue
        header = lines[node.lineno - 1]
        body = (node.end_lineno or 0) - node.lineno
        if re.fullmatch(r"\s*def .*\):", header) and body >= 2:
            first = max(0, node.lineno - 1 - PROMPT_LINES)
            before = "".join(f"{line}\n" for line in lines[first : node.lineno - 1])
            yield Site(f"{file.label}:{node.name}:{node.lineno}", before, header)
