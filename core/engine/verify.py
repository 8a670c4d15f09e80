"""Verification of a draft: sample and match.

The target picks its own token at every row, as it would have without a draft, so the text cannot
depend on what was drafted. A draft only decides how many of the rows are worth looking at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Pick = Callable[[int], int]  # row of the step to the token that follows it


def verify(n_rows: int, draft: Sequence[int], pick: Pick) -> Iterator[int]:
    """The target's tokens, 1 to len(draft) + 1 = n_rows of them.

    Lazy: a token is to be appended to the history before the next one is asked for, and whoever
    stops asking (at the end of a text) has not looked at the rows behind.
    """
    last = len(draft)
    for i in range(n_rows):
        token = pick(i)
        yield token
        if i < last and token != draft[i]:
            return
