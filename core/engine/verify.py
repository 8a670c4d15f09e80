"""Verification of a draft: sample and match.

The target picks its own token at every row, as it would have without a draft, so the text cannot
depend on what was drafted. A draft only decides how many of the rows are worth looking at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..backend.layers import Floats

Pick = Callable[[Floats], int]  # logits (V,) of the next place to its token


def verify(rows: Floats, draft: Sequence[int], pick: Pick) -> Iterator[int]:
    """The target's tokens, 1 to len(draft) + 1 of them, from logits (len(draft) + 1, V).

    Lazy: a token is to be appended to the history before the next one is asked for, and whoever
    stops asking (at the end of a text) has not looked at the rows behind.
    """
    last = len(draft)
    for i, row in enumerate(rows):
        token = pick(row)
        yield token
        if i < last and token != draft[i]:
            return
