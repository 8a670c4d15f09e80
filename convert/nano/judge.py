"""How good short completions of everyday prompts are: what is counted, not how they are made."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

_ALLOW_INCOMPLETE = 0x4000  # PyCF_ALLOW_INCOMPLETE_INPUT: an error at the end names itself so
REPEATS = 3  # equal lines in a row


@dataclass(frozen=True, slots=True)
class Completion:
    prompt: str
    text: str
    ended: bool  # by the model, not by the limit
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the completions."""

    parsing: float
    short: float  # ended before 8 tokens
    repeating: float


def shares(made: Sequence[Completion], *, few: int = 8) -> Shares:
    n = len(made)
    return Shares(
        sum(map(is_python, made)) / n,
        sum(one.ended and one.n_tokens < few for one in made) / n,
        sum(repeats(one.text) for one in made) / n,
    )


def is_python(made: Completion) -> bool:
    """Whether it is not empty, and parses up to the last complete statement.

    A text that the limit cut off may end within a statement; one that the model ended may not.
    """
    source = made.prompt + made.text
    if made.ended:
        return _tree(source) is not None and _adds_a_statement(made.prompt, source)
    whole_lines = source[: source.rfind("\n") + 1]
    return _has_no_error(whole_lines) and _adds_a_statement(made.prompt, source)


def _has_no_error(source: str) -> bool:
    """But for what its end leaves open."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "text", "exec", ast.PyCF_ONLY_AST | _ALLOW_INCOMPLETE)
    except SyntaxError as error:
        return error.msg == "incomplete input"
    except (ValueError, RecursionError, MemoryError):
        return False
    return True


def _adds_a_statement(prompt: str, source: str) -> bool:
    """Whether some whole lines parse, and mean more than the prompt alone."""
    before = _tree(prompt)
    lines = source.splitlines(keepends=True)
    for n in range(len(lines), prompt.count("\n"), -1):
        found = _tree("".join(lines[:n]))
        if found is not None:
            return before is None or ast.dump(found) != ast.dump(before)
    return False


def _tree(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def repeats(text: str) -> bool:
    """Whether a line comes three times in a row."""
    lines = [line.strip() for line in text.splitlines()]
    filled = [line for line in lines if line]
    return any(len(set(filled[i : i + REPEATS])) == 1 for i in range(len(filled) - REPEATS + 1))
