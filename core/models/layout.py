"""Where a model's blocks keep their state: numbers are given out while the model is built."""

from __future__ import annotations

from msgspec import Struct, field

from ..backend.layers import KvShape, RecurrentShape, StateShape


class Layout(Struct):
    block: int = 0  # the block that is being built
    kv: list[KvShape] = field(default_factory=list)
    recurrent: list[RecurrentShape] = field(default_factory=list)

    def add_kv(self, shape: KvShape) -> int:
        self.kv.append(shape)
        return len(self.kv) - 1

    def add_recurrent(self, shape: RecurrentShape) -> int:
        self.recurrent.append(shape)
        return len(self.recurrent) - 1

    def copy(self) -> Layout:
        return Layout(kv=list(self.kv), recurrent=list(self.recurrent))

    def shape(self) -> StateShape:
        return StateShape(tuple(self.kv), tuple(self.recurrent))

    def behind(self, first: Layout) -> StateShape:
        """What was added since it was like `first`."""
        kv, recurrent = self.kv[len(first.kv) :], self.recurrent[len(first.recurrent) :]
        return StateShape(tuple(kv), tuple(recurrent))
