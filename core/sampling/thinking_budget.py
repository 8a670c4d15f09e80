"""`ThinkingBudget`: thoughts end behind a number of tokens, whatever the model would write.

Like a grammar, it says which tokens may come next: any while the budget lasts, then those of a
message and of the mark that ends a thought, one by one. So drafts are cut and verified as under a
grammar, and change nothing.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import FileFormatError
from .grammar import Grammar
from .thought_limit import ThoughtLimit

_LONGEST_CHARACTER: Final = 4  # bytes


class ThinkingBudget(Grammar):
    """A rule that samplers and drafters ask as they ask a grammar."""

    def __init__(
        self,
        limit: ThoughtLimit,
        ending: Sequence[int],
        piece: Callable[[int], bytes],
        inner: Grammar | None = None,
    ) -> None:
        """`ending`: tokens of message and mark. `piece`: the bytes of a token. `inner`: a rule that
        holds as well; where it refuses the ending, thoughts go on."""
        self._limit, self._tokens, self._piece, self._inner = limit, tuple(ending), piece, inner
        self._opening, self._closing = limit.opening.encode(), limit.closing.encode()
        self._is_open, self._n_left = limit.is_open, limit.n_max
        self._n_forced = 0  # tokens of the ending that were accepted
        self._tail = b""  # of the text, where a mark may begin
        self.notes = () if inner is None else inner.notes
        self.accepted: list[int] = []

    @property
    def is_complete(self) -> bool:
        return self._inner is None or self._inner.is_complete

    @property
    def is_ended(self) -> bool:
        return self._inner is not None and self._inner.is_ended

    def allowed(self, token: int) -> bool:
        forced = self._forced()
        if forced is not None:
            return token == forced
        return self._inner is None or self._inner.allowed(token)

    def validate(self, tokens: Sequence[int]) -> int:
        n = len(tokens) if self._inner is None else self._inner.validate(tokens)
        if self._n_left >= n:  # a thought cannot become too long within these
            return n
        twin = self.copy()
        for i, token in enumerate(tokens[:n]):
            if not twin.allowed(token):
                return i
            twin.accept(token)
        return n

    def mask(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        forced = self._forced()
        if forced is None:
            return logits if self._inner is None else self._inner.mask(logits)
        masked = np.full_like(logits, -np.inf)
        masked[forced] = logits[forced]
        return masked

    def accept(self, token: int) -> None:
        if not self.allowed(token):
            raise ValueError(f"token {token} would go on with a thought that has to end")
        forced = self._forced()
        if self._inner is not None:
            self._inner.accept(token)
        self.accepted.append(token)
        if forced is None:
            self._read(token)
        else:
            self._n_forced += 1
            if self._n_forced == len(self._tokens):
                self._is_open, self._n_forced, self._tail = False, 0, b""

    def copy(self) -> ThinkingBudget:
        twin = ThinkingBudget.__new__(ThinkingBudget)
        twin.__dict__.update(self.__dict__)
        twin._inner = None if self._inner is None else self._inner.copy()
        twin.accepted = self.accepted.copy()
        return twin

    def restart(self, tokens: Sequence[int]) -> ThinkingBudget:
        inner = None if self._inner is None else self._inner.restart(())
        twin = ThinkingBudget(self._limit, self._tokens, self._piece, inner)
        for token in tokens:
            if not twin.allowed(token):
                raise FileFormatError("the saved sampler state does not fit its budget of thoughts")
            twin.accept(token)
        return twin

    def _forced(self) -> int | None:
        """The one token that may come next, if there is but one."""
        if not self._is_open or self._n_left > 0:
            return None
        # A character is finished first, in up to three more tokens.
        may_wait = self._n_forced == 0 and self._n_left > 1 - _LONGEST_CHARACTER
        if may_wait and _is_amid_character(self._tail):
            return None
        token = self._tokens[self._n_forced]
        return token if self._inner is None or self._inner.allowed(token) else None

    def _read(self, token: int) -> None:
        """Count a token, and look for the mark that comes next."""
        self._tail += self._piece(token)
        if self._is_open:
            self._n_left -= 1
        mark = self._closing if self._is_open else self._opening
        if (at := self._tail.find(mark)) >= 0:
            self._is_open = not self._is_open
            self._tail = self._tail[at + len(mark) :]
        longest = max(len(self._opening), len(self._closing), _LONGEST_CHARACTER)
        self._tail = self._tail[-longest:]


def _is_amid_character(data: bytes) -> bool:
    """Whether the last bytes are the beginning of one in UTF-8."""
    return utf_8_decode(data, "replace", False)[1] < len(data)
