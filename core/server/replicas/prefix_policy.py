"""`PrefixPolicy`: the order in which replicas are preferred for a request. It has no clock and no
sockets: the same calls give the same order.

A replica that has read the beginning of a request does not read it again. The preferred replica
has the least `open sequences - slots * cached share of the request`, so that no replica gets more
than its slots beyond the least busy one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Final

from .forwarding import ForwardedRequest

MAX_REMEMBERED: Final = 32768  # keys of a replica: 8 MiB of text


class ReplicaLoad:
    """The open sequences of a replica, and the beginnings that it has read."""

    def __init__(self, index: int, slots: int) -> None:
        self.index, self.slots = index, max(slots, 1)
        self.n_sequences = 0
        self.chosen_at = 0
        self.keys: OrderedDict[int, None] = OrderedDict()

    def n_cached(self, keys: tuple[int, ...]) -> int:
        """Returns how many keys are cached. A key stands for all keys before it, so the first
        unknown key ends the match."""
        for n, key in enumerate(keys):
            if key not in self.keys:
                return n
        return len(keys)

    def end(self, request: ForwardedRequest) -> None:
        self.n_sequences -= request.hint.n_sequences


class PrefixPolicy:
    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._n_chosen = 0
        self.loads: dict[Hashable, ReplicaLoad] = {}

    def update(self, replicas: Mapping[Hashable, tuple[int, int]]) -> None:
        """`replicas`: number and slots of all that run. A new replica has an empty cache."""
        known = self.loads
        self.loads = {
            name: known.get(name) or ReplicaLoad(index, slots)
            for name, (index, slots) in replicas.items()
        }

    def order(self, request: ForwardedRequest) -> list[Hashable]:
        """Returns the preferred replica first, and replicas that have refused the request last."""
        keys = request.hint.keys

        def cost(name: Hashable) -> tuple[float, ...]:
            load = self.loads[name]
            share = load.n_cached(keys) / len(keys) if keys else 0.0
            return (
                load.index in request.excluded,
                load.index != request.replica,
                load.n_sequences - load.slots * share,
                load.n_sequences,
                load.chosen_at,
            )

        return sorted(self.loads, key=cost)

    def begin(self, name: Hashable, request: ForwardedRequest) -> ReplicaLoad | None:
        """Returns the load whose `end` has to be called, or None if the replica is gone."""
        load = self.loads.get(name)
        if load is None:
            return None
        self._n_chosen += 1
        load.chosen_at = self._n_chosen
        load.n_sequences += request.hint.n_sequences
        for key in reversed(request.hint.keys):  # the beginning is forgotten last
            load.keys[key] = None
            load.keys.move_to_end(key)
        while len(load.keys) > self._max_remembered:
            load.keys.popitem(last=False)
        request.routed_to = load.index
        return load
