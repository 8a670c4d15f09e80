"""Whether two models share token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

MAX_SIZE_DIFFERENCE: Final = 128  # paddings and a few tokens that were added later
_FIRST_COMPARED: Final = 5  # ids before it are special, and named differently at times


def find_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """The first reason why ids of one do not mean the same in the other; None without one.

    The rules are llama.cpp's. One vocabulary may have some more ids at its end.
    """
    if target.model != draft.model:
        return f"its vocabulary is of type {draft.model}, the target's of type {target.model}"
    for name in ("bos", "eos"):
        adds = getattr(target, f"add_{name}"), getattr(draft, f"add_{name}")
        ids = getattr(target, f"{name}_id"), getattr(draft, f"{name}_id")
        if adds[0] != adds[1] or (adds[0] and ids[0] != ids[1]):
            return f"its {name.upper()} token is another, or added by another rule"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"its vocabulary has {draft.n_vocab} tokens, the target's {target.n_vocab}"
    n_both = min(target.n_vocab, draft.n_vocab)
    ours, theirs = target.tokens, draft.tokens
    if ours[_FIRST_COMPARED:n_both] == theirs[_FIRST_COMPARED:n_both]:
        return None
    at = next(i for i in range(_FIRST_COMPARED, n_both) if ours[i] != theirs[i])
    return f"its token {at} is {_shown(theirs[at])}, the target's {_shown(ours[at])}"


def _shown(text: str) -> str:
    return ascii(text[:40])
