"""Files, short files and definitions whose first lines a target continues."""

from __future__ import annotations

import ast
import random
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Self

from msgspec import Struct

DEFINITION_CHARS = (60, 2500)
SHORT_CHARS = (200, 2500)  # of a file that is an example of its own
WITH_DOCSTRING = 3.0  # times as likely to be taken as a definition without one
METHOD = 0.4  # times as likely as a function; what is typed first has no class around it

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class OpeningLines(Struct, frozen=True):
    files: Sequence[str]
    short: Sequence[str]  # of the files
    definitions: Sequence[str]  # functions, methods and classes, at the left margin
    weights: Sequence[float]  # how often each is taken, summed up

    @classmethod
    def of(cls, files: Sequence[str]) -> Self:
        found = {source: weight for text in files for source, weight in definitions_of(text)}
        short = [text for text in files if SHORT_CHARS[0] <= len(text) <= SHORT_CHARS[1]]
        return cls(files, short, list(found), list(accumulate(found.values())))

    def definition(self, rng: random.Random) -> str:
        return rng.choices(self.definitions, cum_weights=self.weights)[0]


def definitions_of(text: str) -> Iterator[tuple[str, float]]:
    """Source and weight of each; none of a file that does not parse."""
    lines = text.splitlines(keepends=True)
    for node in _nodes(text):
        if isinstance(node, Documented):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            source = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip() + "\n"
            if DEFINITION_CHARS[0] <= len(source) <= DEFINITION_CHARS[1]:
                documented = WITH_DOCSTRING if ast.get_docstring(node) else 1.0
                yield source, documented * (METHOD if _is_method(node) else 1.0)


def _nodes(text: str) -> Iterator[ast.AST]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from ast.walk(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


def _is_method(node: Documented) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    return [argument.arg for argument in node.args.args[:1]] in (["self"], ["cls"])
