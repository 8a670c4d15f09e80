"""Prompts that are made by counting rather than written: records, edits, long texts.

Nothing here draws random numbers, so that a set is the same everywhere and for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..record import Prompt

Texts = Mapping[str, Sequence[str | tuple[str, ...]]]  # by category; a tuple is a chat

COLOURS: Final = ("red", "green", "blue", "grey", "white")
THINGS: Final = ("lamp", "chair", "kettle", "ladder", "basket", "mirror", "drill")
TOWNS: Final = ("Aalen", "Bergen", "Cardiff", "Delft", "Evora", "Fulda", "Ghent")
VERBS: Final = ("load", "check", "merge", "split", "count", "close", "rename")
NOUNS: Final = ("record", "queue", "table", "header", "block", "field", "index")


def records(n: int, start: int = 0) -> list[dict[str, object]]:
    """Orders of a shop."""
    return [
        {
            "id": 1000 + 7 * i,
            "item": THINGS[i % len(THINGS)],
            "colour": COLOURS[(i * i + i) % len(COLOURS)],
            "town": TOWNS[(3 * i) % len(TOWNS)],
            "price": round(9.5 + 3.25 * (i % 11), 2),
            "stock": (17 * i) % 41,
        }
        for i in range(start, start + n)
    ]


def order_lines(n: int, start: int = 0) -> str:
    """The same as sentences, for extraction."""
    return "\n".join(
        f"Order {r['id']}: a {r['colour']} {r['item']} for {r['price']} euros goes to {r['town']}; "
        f"{r['stock']} are left."
        for r in records(n, start)
    )


def json_lines(n: int, start: int = 0) -> list[str]:
    return [
        f'    {{"id": {r["id"]}, "item": "{r["item"]}", "colour": "{r["colour"]}", '
        f'"price": {r["price"]}, "stock": {r["stock"]}}}'
        for r in records(n, start)
    ]


def functions(n: int, start: int = 0) -> Iterator[str]:
    """Small functions of one pattern, as a module has them."""
    for i in range(start, start + n):
        verb, noun = VERBS[i % len(VERBS)], NOUNS[(i // 2) % len(NOUNS)]
        yield (
            f"def {verb}_{noun}_{i}(self, name, value=None):\n"
            f'    """{verb.capitalize()} the {noun} with this name."""\n'
            f"    if name not in self.{noun}s:\n"
            f'        raise KeyError("no {noun} is called %r" % name)\n'
            f"    entry = self.{noun}s[name]\n"
            f"    if value is not None:\n"
            f"        entry.{verb}_value = value + {i % 5}\n"
            f"    return entry\n"
        )


def module(n: int, start: int = 0) -> str:
    """A class with `n` methods."""
    name = NOUNS[start % len(NOUNS)].capitalize()
    body = "\n".join(functions(n, start))
    indented = "".join(f"    {line}" if line.strip() else line for line in body.splitlines(True))
    fields = "\n".join(f"        self.{noun}s = {{}}" for noun in NOUNS)
    return f"class {name}Store:\n    def __init__(self):\n{fields}\n\n{indented}"


def report(n: int, start: int = 0) -> str:
    """A long account in prose, with figures that a question can ask for."""
    parts = []
    for i, r in enumerate(records(n, start), 1):
        parts.append(
            f"In week {i} the branch in {r['town']} sold {r['stock']} pieces of the {r['colour']} "
            f"{r['item']}, at {r['price']} euros each. The manager wrote that "
            + (
                "the shelf stood empty for two days and asked for another delivery.",
                "customers liked the new colour but found the box hard to open.",
                "a competitor across the street had opened with lower prices.",
            )[i % 3]
        )
    return "\n\n".join(parts)


def numbered(texts: Texts, n: int, *, continues: bool) -> Iterator[Prompt]:
    """Prompts of `n` tokens. `continues`: texts are continued as they stand, not answered."""
    for category, found in texts.items():
        for i, text in enumerate(found, 1):
            id = f"{category}-{i}"
            if isinstance(text, tuple):
                yield Prompt(id, category, turns=text, max_tokens=n // 2)
            elif continues:
                yield Prompt(id, category, text=text, max_tokens=n)
            else:
                yield Prompt(id, category, turns=(text,), max_tokens=n)
