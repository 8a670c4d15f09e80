"""How a drafting model picks: as the target's sampler would, with the same noise.

So a drafter that knows what the target knows says what the target says, at any temperature.
"""

from __future__ import annotations

from ..backend.interface import HostOutput
from ..sampling.sampler import Sampler
from .interface import Ask


class SamplerChooser:
    """For one text; `begin` with every draft."""


    __slots__ = ("_sampler", "_text", "request")

    def __init__(self) -> None:
        self.request = 0
        self._sampler: Sampler | None = None
        self._text: list[int] = []

    def begin(self, ask: Ask) -> None:
        sampler = ask.sampler
        self.request = sampler.request_address
        if sampler.is_stateless:
            self._sampler = sampler
        else:
            self._sampler = sampler.copy()
            self._text = list(ask.tokens)

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        assert self._sampler is not None, "begin comes first"
        return self._sampler.pick_row(output, row, self._text, position)

    def accept(self, token: int) -> None:
        sampler = self._sampler
        assert sampler is not None, "begin comes first"
        if not sampler.is_stateless:
            sampler.accept(token)
            self._text.append(token)
