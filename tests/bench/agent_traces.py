"""What agents have a model write: a file again with changes, a second attempt, quoted lines.

The texts are sources of Python's standard library, changed by a random generator with a fixed
seed; what is written is given, as if the model had chosen it.
"""

from __future__ import annotations

import keyword
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(sysconfig.get_path("stdlib"))
# Plain modules, of every version of Python that the project runs on.
MODULES = (
    "textwrap", "shlex", "heapq", "fnmatch", "getopt", "sched", "cmd", "netrc", "calendar",
    "graphlib", "linecache", "quopri", "csv", "contextlib", "zipapp", "bisect", "colorsys", "dis",
)  # fmt: skip
N_TRACES = 8  # of each kind
N_LINES = 120  # of a file
_IDENTIFIER = re.compile(r"\b[a-z_][a-z_0-9]{3,}\b")


class Exchange(NamedTuple):
    prompt: str
    reply: str


Trace = list[Exchange]  # one request after the other, of one owner


def edit_trace(i: int) -> Trace:
    """A file is written again, with a name changed everywhere and a change every 15 lines."""
    rng = random.Random(f"edit {i}")
    file, others = excerpt(i, rng), source(MODULES[i + 7])
    prompt = f"# {MODULES[i]}.py\n{joined(file)}\nWrite the file again with these changes: ...\n"
    return [Exchange(prompt, joined(edited(file, rng, others)))]


def retry_trace(i: int) -> Trace:
    """A module is written, written again for the same prompt, and a third time after an error
    whose report quotes the second attempt."""
    rng = random.Random(f"retry {i}")
    others = source(MODULES[i + 5])
    tests = excerpt(i, rng, N_LINES // 4)
    first = edited(excerpt(i, rng, N_LINES // 2), rng, others)
    second = edited(first, rng, others, every=20)
    third = edited(second, rng, others, every=20, renames=0)
    task = f"# tests of {MODULES[i]}.py\n{joined(tests)}\nWrite the module.\n"
    error = f"\nTraceback (most recent call last):\n{joined(rng.sample(others, 3))}Try again.\n"
    return [
        Exchange(task, joined(first)),
        Exchange(task, joined(second)),
        Exchange(task + joined(second) + error, joined(third)),
    ]


def quote_trace(i: int) -> Trace:
    """Six edits as search and replace, of a file that is listed with line numbers."""
    rng = random.Random(f"quote {i}")
    file, others = excerpt(i, rng), source(MODULES[i + 3])
    listing = joined([f"{n:6}\t{line}" for n, line in enumerate(file, 1)])
    remarks = [line.strip() for line in others if len(line.split()) > 5]
    reply = []
    for _ in range(6):
        n = rng.randint(3, 10)
        start = rng.randrange(len(file) - n)
        old = file[start : start + n]
        new = edited(old, rng, others, every=8, renames=0)
        reply += [rng.choice(remarks), f"<<<<<<< {MODULES[i]}.py", *old, "=======", *new, ">>>>>>>"]
    return [Exchange(f"$ cat -n {MODULES[i]}.py\n{listing}\nFix the errors.\n", joined(reply))]


TRACES = {"edit": edit_trace, "retry": retry_trace, "quote": quote_trace}


def source(name: str) -> list[str]:
    """Its lines."""
    return (LIBRARY / f"{name}.py").read_text(encoding="utf-8").splitlines()


def excerpt(i: int, rng: random.Random, n: int = N_LINES) -> list[str]:
    lines = source(MODULES[i])
    start = rng.randrange(max(1, len(lines) - n))
    return lines[start : start + n]


def edited(
    lines: list[str], rng: random.Random, others: list[str], every: int = 15, renames: int = 1
) -> list[str]:
    """Lines are inserted, deleted, or have one word changed, one place in `every` lines; before
    that, names are changed everywhere. New words and lines come from another file."""
    lines = lines.copy()
    for _ in range(renames):
        lines = renamed(lines, rng, others)
    for _ in range(max(1, len(lines) // every)):
        at, kind = rng.randrange(len(lines)), rng.randrange(4)
        if kind == 0:
            n = rng.randint(1, 4)
            start = rng.randrange(len(others) - n)
            lines[at:at] = others[start : start + n]
        elif kind == 1:
            del lines[at : at + rng.randint(1, 3)]
        else:
            lines[at] = with_another_word(lines[at], rng, others)
    return lines


def renamed(lines: list[str], rng: random.Random, others: list[str]) -> list[str]:
    counts = Counter(identifiers(lines))
    frequent = sorted(name for name, count in counts.items() if count >= 3)
    if not frequent:
        return lines
    old, new = rng.choice(frequent), rng.choice(sorted(set(identifiers(others)) - set(counts)))
    return [re.sub(rf"\b{old}\b", new, line) for line in lines]


def identifiers(lines: list[str]) -> list[str]:
    found = [name for line in lines for name in _IDENTIFIER.findall(line)]
    return [name for name in found if not keyword.iskeyword(name)]


def with_another_word(line: str, rng: random.Random, others: list[str]) -> str:
    words = list(re.finditer(r"\w+", line))
    if not words:
        return line
    word = rng.choice(words)
    new: str = rng.choice([name for other in others for name in re.findall(r"\w+", other)])
    return line[: word.start()] + new + line[word.end() :]


def joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
