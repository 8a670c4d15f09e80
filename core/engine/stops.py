"""Stop strings in a text that arrives in pieces.

The string that is complete first ends the text; of those complete at the same character, the
longest. So the cut does not depend on where tokens end. Text is held back only as long as it may
still become a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = tuple(stops)
        self._longest_part = max(map(len, stops), default=1) - 1
        self._held = ""

    def push(self, text: str) -> str:
        """What can be shown now. After `found` is set, nothing more comes."""
        if not self._stops:
            return text
        text = self._held + text
        if (match := self._find(text)) is not None:
            start, self.found = match
            self._held = ""
            return text[:start]
        n_held = self._length_of_possible_stop(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def finish(self) -> str:
        """What was held back and will not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        found = [(start + len(s), start, s) for s in self._stops if (start := text.find(s)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _length_of_possible_stop(self, text: str) -> int:
        for n in range(min(self._longest_part, len(text)), 0, -1):
            end = text[-n:]
            if any(stop.startswith(end) for stop in self._stops):
                return n
        return 0
