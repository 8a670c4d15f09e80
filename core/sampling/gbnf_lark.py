"""GBNF rules to the grammar notation of llguidance (Lark's), with the same language.

llguidance cuts text into lexemes, always the longest that matches, and parses those; GBNF knows
characters only. `("a" | "ab") "bc"` means "abc" too, but its lexeme is "ab", which leaves a "c"
that fits nothing. One lexeme per character would always be right, and too slow for long texts. So
a regular part of the grammar becomes a lexeme only if no text can be cut wrongly because of it:
what may follow a lexeme must not also continue it, or another one that begins the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, TypeAlias

from ..errors import ConfigError
from .charsets import Alphabet, Automaton, may_be_cut_short, members
from .gbnf import Chars, Choice, Concatenation, Name, Node, Ranges, Repeat, Rules

_MAX_STATES: Final = 300  # of a lexeme
_MAX_LEXEME_DEPTH: Final = 40

Symbol: TypeAlias = int  # index of a part
# What a part may consist of, besides being a lexeme: lists of symbols.
Bodies: TypeAlias = list[list[Symbol]]


class Deadline:
    """The fixed points below are quick on handwritten grammars, not on every possible one. Seconds
    are those that this thread runs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.thread_time() + seconds

    def check(self) -> None:
        if time.thread_time() > self._end:
            raise ConfigError(
                f"the grammar is too complex: preparing it takes more than {self._seconds:g} s"
            )


def to_lark(rules: Rules, deadline: Deadline) -> str:
    refuse_left_recursion(rules, deadline)
    return _Compiler(rules, deadline).compile()


class _Compiler:
    """Parts are the nodes below root, a rule's name standing for its node."""

    def __init__(self, rules: Rules, deadline: Deadline) -> None:
        self.rules = rules
        self.deadline = deadline
        self.parts: list[Node] = []
        self.index: dict[int, Symbol] = {}
        self.root = self._enter(rules["root"])
        self.below = [
            [self.index[id(self._resolve(part))] for part in _children(node)] for node in self.parts
        ]
        self.alphabet = Alphabet(node.ranges for node in self.parts if isinstance(node, Chars))
        self.automata: dict[Symbol, Automaton | None] = {}
        self.depth: dict[Symbol, int] = {}
        for symbol in leaves_first(self.below):
            self.depth[symbol] = 1 + max(
                (self.depth[part] for part in self.below[symbol]), default=0
            )
            self.automata[symbol] = self._automaton(symbol)
        self.is_split = [self.automata.get(symbol) is None for symbol in range(len(self.parts))]
        self.names: dict[str, str] = {}  # of lexemes, by regular expression

    def compile(self) -> str:
        """No forcing: the mask is what the text may go on with, however the model cuts it into
        tokens, without calling a tokenizer."""
        while self._split_unsafe():
            pass
        lines = ['%llguidance {"no_forcing": true}', f"start: {self._shown(self.root)}"]
        lines += [self._rule(symbol) for symbol in self._reached() if self.is_split[symbol]]
        lines += [f"{name}: /{regex}/" for regex, name in self.names.items()]
        return "\n".join(lines) + "\n"

    def _resolve(self, node: Node) -> Node:
        hops = 0
        while isinstance(node, Name):
            node = self.rules[node.name]
            hops += 1
            if hops > len(self.rules):
                raise ConfigError("the grammar has rules that only name each other")
        return node

    def _enter(self, node: Node) -> Symbol:
        """Number a node and everything below it."""
        stack = [self._resolve(node)]
        while stack:
            node = stack.pop()
            if id(node) not in self.index:
                self.index[id(node)] = len(self.parts)
                self.parts.append(node)
                stack += map(self._resolve, _children(node))
        return 0

    def _automaton(self, symbol: Symbol) -> Automaton | None:
        """None if it would be too large to be one lexeme."""
        node = self.parts[symbol]
        if isinstance(node, Chars):
            return Automaton([self.alphabet.bits(node.ranges)], [0], 1, 1, False)
        parts = [self.automata[part] for part in self.below[symbol]]
        known = [part for part in parts if part is not None]
        n_states = sum(len(part.chars) for part in known)
        if len(known) < len(parts) or n_states > _MAX_STATES:
            return None
        return None if self.depth[symbol] > _MAX_LEXEME_DEPTH else _combine(node, known)

    def _reached(self) -> list[Symbol]:
        """What is used, given which parts are lexemes."""
        seen, stack = {self.root}, [self.root]
        while stack:
            symbol = stack.pop()
            below = self.below[symbol] if self.is_split[symbol] else []
            stack += [part for part in dict.fromkeys(below) if part not in seen]
            seen.update(below)
        return sorted(seen)

    def _split_unsafe(self) -> bool:
        """Take apart the lexemes that could cut a text wrongly. False when none is left."""
        reached = self._reached()
        lexemes = self._lexemes(reached)
        after = _follow_sets(self._bodies(reached), lexemes, self.deadline)
        longer = [(symbol, each) for symbol, each in lexemes.items() if any(each.follow)]
        unsafe = set()
        for symbol, short in lexemes.items():
            self.deadline.check()
            first, end = short.first_chars, after[symbol]
            unsafe |= {
                other
                for other, long in longer
                if first & long.first_chars and may_be_cut_short(short, end, long)
            }
        for symbol in unsafe:
            self.is_split[symbol] = True
        return bool(unsafe)

    def _lexemes(self, reached: list[Symbol]) -> dict[Symbol, Automaton]:
        found = {}
        for symbol in reached:
            automaton = self.automata.get(symbol)
            if not self.is_split[symbol] and automaton is not None:
                found[symbol] = automaton
        return found

    def _bodies(self, reached: list[Symbol]) -> dict[Symbol, Bodies]:
        bodies: dict[Symbol, Bodies] = {}
        for symbol in reached:
            if not self.is_split[symbol]:
                continue
            node, below = self.parts[symbol], self.below[symbol]
            if isinstance(node, Choice):
                bodies[symbol] = [[part] for part in below]
            elif isinstance(node, Repeat):
                again = [[symbol, *below]] if node.high != 1 else []
                bodies[symbol] = [below, *again, *([[]] if node.low == 0 else [])]
            else:
                bodies[symbol] = [below]
        return bodies

    def _shown(self, symbol: Symbol) -> str:
        if self.is_split[symbol]:
            return f"r{symbol}"
        return self.names.setdefault(self._regex(symbol), f"L{symbol}")

    def _rule(self, symbol: Symbol) -> str:
        node, names = self.parts[symbol], [self._shown(part) for part in self.below[symbol]]
        if isinstance(node, Choice):
            return f"r{symbol}: {' | '.join(names)}"
        if isinstance(node, Repeat):
            names = [] if node.high == 0 else [names[0] + _count(node)]
        return f"r{symbol}: {' '.join(names) or _EMPTY}"

    def _regex(self, symbol: Symbol) -> str:
        node = self.parts[symbol]
        if isinstance(node, Chars):
            return _set(node.ranges)
        below = [self._regex(part) for part in self.below[symbol]]
        if isinstance(node, Repeat):
            return f"(?:{below[0]}){_count(node)}"
        return f"(?:{('|' if isinstance(node, Choice) else '').join(below)})"


_EMPTY: Final = '""'


def _children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Concatenation | Choice):
        return node.parts
    return (node.part,) if isinstance(node, Repeat) else ()


def _count(node: Repeat) -> str:
    return f"{{{node.low},{'' if node.high is None else node.high}}}"


def _set(ranges: Ranges) -> str:
    return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"


def _combine(node: Node, parts: list[Automaton]) -> Automaton:
    chars: list[int] = []
    follow: list[int] = []
    shifted = []  # (first, last, is_nullable), states renumbered
    for part in parts:
        shift = len(chars)
        chars += part.chars
        follow += [states << shift for states in part.follow]
        shifted.append((part.first << shift, part.last << shift, part.is_nullable))
    first = last = 0
    if isinstance(node, Concatenation):
        is_nullable = True
        for part_first, part_last, part_nullable in shifted:
            _link(follow, last, part_first)
            first |= part_first if is_nullable else 0
            last = part_last | (last if part_nullable else 0)
            is_nullable &= part_nullable
        return Automaton(chars, follow, first, last, is_nullable)
    for part_first, part_last, _ in shifted:
        first |= part_first
        last |= part_last
    is_nullable = any(part.is_nullable for part in parts)
    if isinstance(node, Repeat):
        if node.high != 1:
            _link(follow, last, first)
        is_nullable |= node.low == 0
    return Automaton(chars, follow, first, last, is_nullable)


def _link(follow: list[int], states: int, to: int) -> None:
    for state in members(states):
        follow[state] |= to


def _follow_sets(
    bodies: dict[Symbol, Bodies], lexemes: dict[Symbol, Automaton], deadline: Deadline
) -> dict[Symbol, int]:
    """The characters that may come after each symbol: the textbook's fixed point."""
    first = dict.fromkeys(bodies, 0)
    first |= {symbol: lexeme.first_chars for symbol, lexeme in lexemes.items()}
    empty = {symbol for symbol, lexeme in lexemes.items() if lexeme.is_nullable}
    after = dict.fromkeys(first, 0)
    changed = True
    while changed:
        changed = False
        deadline.check()
        for symbol, alternatives in bodies.items():
            for body in alternatives:
                trail, begin, is_empty = after[symbol], 0, True
                for part in reversed(body):
                    changed |= after[part] | trail != after[part]
                    after[part] |= trail
                    can_skip = part in empty
                    trail = first[part] | (trail if can_skip else 0)
                    begin = first[part] | (begin if can_skip else 0)
                    is_empty &= can_skip
                changed |= begin | first[symbol] != first[symbol]
                first[symbol] |= begin
                if is_empty and symbol not in empty:
                    empty.add(symbol)
                    changed = True
    return after


def leaves_first(below: Sequence[Sequence[int]]) -> list[int]:
    """Those members of a graph from which no way leads into a circle, each after all below it."""
    users: list[list[int]] = [[] for _ in below]
    missing = [len(parts) for parts in below]
    for member, parts in enumerate(below):
        for part in parts:
            users[part].append(member)
    order = [member for member, count in enumerate(missing) if count == 0]
    for member in order:  # grows while it is walked
        for user in users[member]:
            missing[user] -= 1
            if missing[user] == 0:
                order.append(user)
    return order


def refuse_left_recursion(rules: Rules, deadline: Deadline) -> None:
    """As llama.cpp does: such a rule does not restrict what comes first."""
    empty: set[str] = set()
    size = -1
    while size != len(empty):
        deadline.check()
        size = len(empty)
        for name, node in reversed(rules.items()):
            if name not in empty and _is_empty(node, empty):
                empty.add(name)
    names = list(rules)
    place = {name: number for number, name in enumerate(names)}
    begins = [[place[each] for each in _beginnings(node, empty)] for node in rules.values()]
    circular = set(range(len(names))) - set(leaves_first(begins))
    if circular:
        raise ConfigError(
            f"the grammar is left-recursive: see the rule {names[min(circular)][:60]!r}"
        )


def _is_empty(node: Node, empty: set[str]) -> bool:
    if isinstance(node, Name):
        return node.name in empty
    if isinstance(node, Choice):
        return any(_is_empty(part, empty) for part in node.parts)
    if isinstance(node, Concatenation):
        return all(_is_empty(part, empty) for part in node.parts)
    return isinstance(node, Repeat) and (node.low == 0 or _is_empty(node.part, empty))


def _beginnings(node: Node, empty: set[str]) -> set[str]:
    """Names of the rules that a text of this node may begin with."""
    if isinstance(node, Name):
        return {node.name}
    found: set[str] = set()
    for part in _children(node):
        found |= _beginnings(part, empty)
        if isinstance(node, Concatenation) and not _is_empty(part, empty):
            break
    return found
