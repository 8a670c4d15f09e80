"""Slots of recurrent state: one for each running sequence, the others for checkpoints.

A checkpoint is the state of a text at one position, kept for the next text that begins alike.
Only models with recurrent layers need any: KV pages can be cut at every token, a state cannot.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from msgspec import Struct, field


class Checkpoint(Struct, eq=False):
    position: int  # tokens that it has seen
    slot: int
    n_pending_accepted: int  # pending factors of the slot that belong to those tokens
    home: Any = None  # where the prefix cache has put it; None while its sequence still runs
    is_alive: bool = True
    carry: dict[str, bytes] = field(default_factory=dict)  # what drafters need to go on from it


class SlotPool:
    def __init__(self, n_live: int, n_checkpoints: int) -> None:
        self.n_slots = n_live + n_checkpoints
        self.n_checkpoints = n_checkpoints
        self.n_evicted = 0  # checkpoints that were given up for newer ones, so far
        self._free = list(range(self.n_slots - 1, -1, -1))
        self._checkpoints: OrderedDict[int, Checkpoint] = OrderedDict()  # by slot, oldest first

    @property
    def n_live(self) -> int:
        return self.n_slots - len(self._free) - len(self._checkpoints)

    @property
    def n_kept(self) -> int:
        """Checkpoints that there are now."""
        return len(self._checkpoints)

    def take(self) -> int | None:
        """A slot for a sequence; None while all are taken."""
        if self.n_live + self.n_checkpoints >= self.n_slots:
            return None
        return self._free.pop()

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def take_for_checkpoint(self, position: int, replay: int) -> Checkpoint | None:
        """An empty checkpoint in the place of the oldest; None if there are to be none."""
        if not self._make_room():
            return None
        return self._register(Checkpoint(position, self._free.pop(), replay))

    def turn_into_checkpoint(self, slot: int, position: int, replay: int) -> Checkpoint | None:
        """What `take_for_checkpoint` and a copy would give, for a sequence that has ended."""
        if not self._make_room():
            return None
        return self._register(Checkpoint(position, slot, replay))

    def touch(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.move_to_end(checkpoint.slot)

    def drop(self, checkpoint: Checkpoint) -> None:
        del self._checkpoints[checkpoint.slot]
        checkpoint.is_alive = False
        self._free.append(checkpoint.slot)

    def _make_room(self) -> bool:
        if not self.n_checkpoints:
            return False
        if len(self._checkpoints) == self.n_checkpoints:
            oldest = next(iter(self._checkpoints.values()))
            if oldest.home is not None:
                oldest.home.forget(oldest)
            self.drop(oldest)
            self.n_evicted += 1
        return True

    def _register(self, checkpoint: Checkpoint) -> Checkpoint:
        self._checkpoints[checkpoint.slot] = checkpoint
        return checkpoint
