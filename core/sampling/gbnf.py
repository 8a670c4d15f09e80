"""GBNF, the grammar notation of llama.cpp, to a tree of character sets. No semantics here.

Read more freely than llama.cpp does: a rule ends where the next one begins, so an alternative
may start a line. Refused: references to tokens (`<think>`), which are no text.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from msgspec import Struct

from ..errors import ConfigError

MAX_CHARS: Final = 1 << 18
MAX_NODES: Final = 50_000
MAX_DEPTH: Final = 64
MAX_REPEATS: Final = 10_000

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # code points, both ends included

_EVERY: Final[Ranges] = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\s|\#[^\r\n]*)+)
    |(?P<define>(?P<defined>[\w-]+)(?:\s|\#[^\r\n]*)*::=)
    |(?P<name>[\w-]+)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<set>\[(?:[^\]\\]|\\.)*\])
    |(?P<count>\{\s*(?P<low>\d{1,12})\s*(?P<more>,\s*(?P<high>\d{1,12})?\s*)?\})
    |(?P<mark>[()|*+?.])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_CHAR: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", **{char: char for char in '\\"[]-^'}}
_REPEATS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Chars(Struct, frozen=True, eq=False):
    ranges: Ranges


class Name(Struct, frozen=True, eq=False):
    name: str


class Concatenation(Struct, frozen=True, eq=False):
    parts: tuple[Node, ...]


class Choice(Struct, frozen=True, eq=False):
    parts: tuple[Node, ...]


class Repeat(Struct, frozen=True, eq=False):
    part: Node
    low: int
    high: int | None


Node: TypeAlias = Chars | Name | Concatenation | Choice | Repeat
Rules: TypeAlias = dict[str, Node]


def parse_gbnf(text: str) -> Rules:
    """Every rule that is named exists; there is a `root`."""
    if len(text) > MAX_CHARS:
        raise ConfigError(f"the grammar has {len(text)} characters, at most {MAX_CHARS} may be")
    parser = _Parser(text)
    rules = parser.rules()
    for name in ("root", *parser.named):
        if name not in rules:
            raise ConfigError(f"the grammar has no rule {name[:60]!r}")
    return rules


class _Parser:
    """One token of lookahead; `kind` is the name of its group, "" at the end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.n_nodes = 0
        self.named: dict[str, None] = {}
        self.advance(0)

    def advance(self, to: int) -> None:
        while True:
            self.at = to
            if to == len(self.text):
                self.kind = ""
                return
            match = _TOKEN.match(self.text, to)
            if match is None:
                raise self.error("cannot be read")
            to = match.end()
            if match.lastgroup != "space":
                self.match = match
                self.kind = next(k for k in _KINDS if match[k] is not None)
                return

    def take(self) -> re.Match[str]:
        match = self.match
        self.advance(match.end())
        return match

    def is_mark(self, marks: str) -> bool:
        return self.kind == "mark" and self.match[0] in marks

    def error(self, what: str) -> ConfigError:
        line = self.text.count("\n", 0, self.at) + 1
        shown = self.text[self.at : self.at + 20]
        return ConfigError(f"the grammar, line {line}: {shown!r} {what}")

    def grown(self, node: Node) -> Node:
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            raise self.error(f"is where the grammar has more than {MAX_NODES} parts")
        return node

    def rules(self) -> Rules:
        rules: Rules = {}
        while self.kind:
            if self.kind != "define":
                raise self.error("is where a rule should begin: name ::= ...")
            if self.match["defined"] in rules:
                raise self.error("is a rule that exists already")
            name = self.take()["defined"]
            rules[name] = self.choice(0)
        return rules

    def choice(self, depth: int) -> Node:
        parts = [self.sequence(depth)]
        while self.is_mark("|"):
            self.take()
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else self.grown(Choice(tuple(parts)))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.kind in ("name", "text", "set") or self.is_mark("(."):
            part = self.single(depth)
            n_suffixes = 0
            while self.kind == "count" or self.is_mark("*+?"):
                n_suffixes += 1
                if n_suffixes > 2:
                    raise self.error("repeats a repeated repetition")
                part = self.grown(Repeat(part, *self.bounds()))
            parts.append(part)
        return parts[0] if len(parts) == 1 else self.grown(Concatenation(tuple(parts)))

    def single(self, depth: int) -> Node:
        if self.kind == "name":
            name = self.take()["name"]
            self.named[name] = None
            return self.grown(Name(name))
        if self.kind == "text":
            inside = self.characters(1)
            self.take()
            return self.literal(inside)
        if self.kind == "set":
            return self.grown(Chars(self.char_set()))
        if self.is_mark("."):
            self.take()
            return self.grown(Chars(_EVERY))
        return self.group(depth + 1)

    def group(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(f"nests deeper than {MAX_DEPTH} parentheses")
        self.take()
        inside = self.choice(depth)
        if not self.is_mark(")"):
            raise self.error("is where a parenthesis should be closed")
        self.take()
        return inside

    def literal(self, codes: list[tuple[int, bool]]) -> Node:
        parts = tuple(self.grown(Chars(((code, code),))) for code, _ in codes)
        return parts[0] if len(parts) == 1 else self.grown(Concatenation(parts))

    def bounds(self) -> tuple[int, int | None]:
        if self.kind == "mark":
            return _REPEATS[self.take()[0]]
        low = int(self.match["low"])
        high = int(self.match["high"]) if self.match["high"] else None
        if self.match["more"] is None:
            high = low
        if max(low, high or 0) > MAX_REPEATS:
            raise self.error(f"repeats more than {MAX_REPEATS} times")
        if high is not None and high < low:
            raise self.error("is a range that ends before it begins")
        self.take()
        return low, high

    def characters(self, start: int) -> list[tuple[int, bool]]:
        """Code points between the delimiters, and whether each was escaped."""
        found: list[tuple[int, bool]] = []
        for match in _CHAR.finditer(self.match[0], start, len(self.match[0]) - 1):
            number = match[1] or match[2] or match[3]
            char = _ESCAPES.get(match[4], "") if match[4] else match[5]
            if not number and not char:
                raise self.error(f"has an escape {match[0]!r} that GBNF has not")
            code = int(number, 16) if number else ord(char)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self.error(f"has {match[0]!r}, which is no character")
            found.append((code, match[5] is None))
        return found

    def char_set(self) -> Ranges:
        """A `-` between two characters makes a range."""
        is_negated = self.match[0].startswith("[^")
        chars = self.characters(2 if is_negated else 1)
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(chars):
            low = high = chars[at][0]
            if at + 2 < len(chars) and chars[at + 1] == (ord("-"), False):
                high = chars[at + 2][0]
                at += 2
            if high < low:
                raise self.error("has a range that ends before it begins")
            ranges.append((low, high))
            at += 1
        merged = _intersect(_complement(ranges), _EVERY) if is_negated else tuple(ranges)
        if not merged:
            raise self.error("is a set without a character")
        self.take()
        return merged


_KINDS: Final = ("define", "name", "text", "set", "count", "mark")


def _complement(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= 0x10FFFF:
        found.append((start, 0x10FFFF))
    return tuple(found)


def _intersect(left: Ranges, right: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple((low, high) for low, high in pairs if low <= high)
