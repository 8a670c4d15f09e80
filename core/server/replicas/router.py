"""`Router`: which replica answers a request. No clock, no sockets: the same calls, the same choice.

Where a request begins like one that a replica has read, that replica need not read it again. But a
cache is worth only so much: the choice is the least of `texts under way - slack * share of the
request that is cached`, so nobody gets more than `slack` texts beyond the least busy one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

from .prefixes import Wish

MAX_KEYS: Final = 32768  # that are remembered of a replica: 8 MiB of text
SLACK: Final = 4  # texts; replicas say how many slots they have


class Choice(NamedTuple):
    replica: int
    n_cached: int  # pieces at the beginning of the request


class _Member:
    def __init__(self, slack: int) -> None:
        self.slack = slack
        self.n_texts = 0
        self.chosen_at = 0
        self.keys: OrderedDict[int, None] = OrderedDict()


class Router:
    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._members: dict[int, _Member] = {}
        self._n_chosen = 0

    def add(self, replica: int, slack: int = SLACK) -> None:
        """It is there, and its cache is empty."""
        self._members[replica] = _Member(max(slack, 1))

    def remove(self, replica: int) -> None:
        self._members.pop(replica, None)

    @property
    def members(self) -> Collection[int]:
        return self._members.keys()

    def n_texts(self, replica: int) -> int:
        member = self._members.get(replica)
        return member.n_texts if member is not None else 0

    def choose(self, wish: Wish, without: Collection[int] = ()) -> Choice | None:
        """None if there is nobody. `without`: those that were tried in vain."""
        best: tuple[float, int, int] | None = None
        choice = None
        for replica, member in self._members.items():
            if replica in without:
                continue
            n_cached = self._n_cached(member, wish.keys)
            share = n_cached / len(wish.keys) if wish.keys else 0.0
            cost = (member.n_texts - member.slack * share, member.n_texts, member.chosen_at)
            if best is None or cost < best:
                best, choice = cost, Choice(replica, n_cached)
        return choice

    def begin(self, replica: int, wish: Wish) -> object:
        """A request goes there; `end` wants what this returns."""
        member = self._members[replica]
        self._n_chosen += 1
        member.chosen_at = self._n_chosen
        member.n_texts += wish.n_texts
        for key in reversed(wish.keys):  # the beginning is forgotten last
            member.keys[key] = None
            member.keys.move_to_end(key)
        while len(member.keys) > self._max_keys:
            member.keys.popitem(last=False)
        return member

    def end(self, begun: object, wish: Wish) -> None:
        """A replica that has come back meanwhile does not mind."""
        assert isinstance(begun, _Member), "from `begin`"
        begun.n_texts -= wish.n_texts

    def n_keys(self, replica: int) -> int:
        return len(self._members[replica].keys)

    @staticmethod
    def _n_cached(member: _Member, keys: tuple[int, ...]) -> int:
        """Keys hold what is before them, so that the first one missing ends it."""
        for n, key in enumerate(keys):
            if key not in member.keys:
                return n
        return len(keys)
