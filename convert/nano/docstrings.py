"""Docstrings cut down to their first sentence.

Whole ones are longer than many a text that is asked for, and the body is what matters.
"""

from __future__ import annotations

import ast
import re
import warnings

MAX_SENTENCE = 72  # characters; a docstring whose first sentence is longer goes

_SENTENCE = re.compile(r"(.+?[.!?])(\s|$)")
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_HOLDERS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def with_short_docstrings(text: str) -> str:
    """The same file; as it was if it does not parse or would not afterwards."""
    tree = parsed(text)
    if tree is None:
        return text
    lines = text.splitlines(keepends=True)
    changes = [found for node in ast.walk(tree) if (found := _change(node, lines))]
    for begin, end, new in sorted(changes, reverse=True):
        lines[begin:end] = new
    shorter = "".join(lines)
    return shorter if parsed(shorter) else text


def parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def first_sentence(docstring: str) -> str:
    """Of its first paragraph, in one line; nothing if it is long, or hard to write in quotes."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    found = _SENTENCE.match(paragraph)
    sentence = found.group(1) if found else paragraph
    if not sentence[:1].isalpha() or not sentence.isascii() or {'"', "\\", "`"} & set(sentence):
        return ""
    return sentence if len(sentence) <= MAX_SENTENCE else ""


def _change(node: ast.AST, lines: list[str]) -> tuple[int, int, list[str]] | None:
    """First line, end, and what comes there instead."""
    docstring = ast.get_docstring(node) if isinstance(node, _HOLDERS) else None
    if docstring is None:
        return None
    assert isinstance(node, _HOLDERS)
    first = node.body[0]
    begin, end = first.lineno - 1, first.end_lineno or first.lineno
    margin = lines[begin][: first.col_offset]
    behind = lines[end - 1].encode()[first.end_col_offset :].strip()
    if margin.strip() or behind or end - begin == 1:  # it shares a line, or is one
        return None
    sentence = first_sentence(docstring)
    if sentence:
        return begin, end, [f'{margin}"""{sentence}"""\n']
    if len(node.body) == 1:
        return None
    while end < len(lines) and not lines[end].strip():
        end += 1
    return begin, end, []
