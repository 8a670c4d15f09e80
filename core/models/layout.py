"""Where a model's blocks keep their state: numbers are given out while the model is built."""

from __future__ import annotations

from msgspec import Struct, field

from ..backend.layers import DeltaShape, KvShape, StateShape


class Layout(Struct):
    block: int = 0  # the block that is being built
    kv: list[KvShape] = field(default_factory=list)
    delta: list[DeltaShape] = field(default_factory=list)

    def add_kv(self, shape: KvShape) -> int:
        self.kv.append(shape)
        return len(self.kv) - 1

    def add_delta(self, shape: DeltaShape) -> int:
        self.delta.append(shape)
        return len(self.delta) - 1

    def copy(self) -> Layout:
        return Layout(kv=list(self.kv), delta=list(self.delta))

    def shape(self) -> StateShape:
        return StateShape(tuple(self.kv), tuple(self.delta))

    def behind(self, first: Layout) -> StateShape:
        """What was added since it was like `first`."""
        return StateShape(tuple(self.kv[len(first.kv) :]), tuple(self.delta[len(first.delta) :]))
