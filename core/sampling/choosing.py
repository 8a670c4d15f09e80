"""Samplers that pick the tokens of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backend.chain import Chooser

if TYPE_CHECKING:
    from ..backend.interface import HostOutput
    from .sampler import Sampler


class DraftSampler(Chooser):
    """What the text's sampler would pick from the logits of a draft. It is itself not changed.

    Of a sampler that remembers nothing one of these serves all drafts of a text. For others
    `restart` with the text so far, before each draft.
    """

    __slots__ = ("_history", "_original", "_sampler", "request")

    def __init__(self, sampler: Sampler) -> None:
        self._original = self._sampler = sampler
        self._history: list[int] = []
        self.request = sampler.request

    def restart(self, tokens: Sequence[int]) -> None:
        """`tokens`: prompt and text."""
        if not self._original.is_stateless:
            self._sampler = self._original.copy()
            self._history = list(tokens) if self._sampler.reads_history else []

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        return self._sampler.pick_row(output, row, self._history, position)

    def accept(self, token: int) -> None:
        if self._sampler is not self._original:
            self._sampler.accept(token)
            self._history.append(token)
