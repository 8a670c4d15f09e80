"""Flags of texts that are longer than their context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .flags import flag, flag_group

if TYPE_CHECKING:
    from ..core.generation import ContextShift


@flag_group("Text")
class ContextOptions:
    context_shift: bool = flag(
        "--context-shift/--no-context-shift",
        "A text whose context is full goes on: half of it is dropped, and the rest read again.",
    )
    keep: int = flag(
        "--keep N",
        "Tokens at the beginning that --context-shift does not drop; -1: those of the prompt.",
        0,
        min=-1,
    )

    @property
    def shift(self) -> ContextShift | None:
        if not self.context_shift:
            return None
        from ..core.generation import ContextShift

        return ContextShift(self.keep)
