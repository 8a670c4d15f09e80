"""DRY ("don't repeat yourself"): the longer the repetition a token would continue, the less
likely it becomes. Where the last tokens occurred before, what followed there is penalised.

Semantics of llama.cpp, which has them from koboldcpp (p-e-w's proposal, oobabooga #5677).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .adjust import Adjustment

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

_MAX_TAIL: Final = 20
_LOG_FLOAT32_MAX: Final = 88.7228391
_SCAN: Final = 256

# First token of each breaker, and the token sequences that may complete it; () is complete.
Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
NO_BREAKERS: Final[Breakers] = MappingProxyType({})


class DryParams(NamedTuple):
    multiplier: float
    base: float
    allowed_length: int
    last_n: int


def find_breakers(texts: Sequence[str], tokenizer: Tokenizer) -> Breakers:
    """Every way in which tokens spell a breaker: inside one token, or begun by its end.

    Looks at each token of the vocabulary: 0.1 s for 152k. Keep the result.
    """
    found: dict[int, dict[tuple[int, ...], None]] = {}
    wanted = [(text, text.encode()) for text in texts]
    for token in range(tokenizer.n_vocab):
        piece = tokenizer.piece(token, show_special=True)
        for text, spelled in wanted:
            if spelled in piece:
                found.setdefault(token, {})[()] = None
            elif len(spelled) > 1:
                for tail in _tails(piece, text, tokenizer):
                    found.setdefault(token, {})[tail] = None
    return MappingProxyType({token: tuple(tails) for token, tails in found.items()})


def _tails(piece: bytes, text: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Tokens of what is missing, for each beginning of the text that the piece ends in."""
    return [
        tuple(tokenizer.encode(text[n:], add_special=False, parse_special=False)[:_MAX_TAIL])
        for n in range(1, len(text))
        if piece.endswith(text[:n].encode())
    ]


def penalized_repeats(
    history: NDArray[np.int64], breakers: Breakers, dry: DryParams
) -> Adjustment | None:
    """`history` is the prompt and what was accepted, all of it; None if nothing repeats."""
    window = history if dry.last_n < 0 else history[max(0, history.size - dry.last_n) :]
    limit = _length_since_breaker(window, breakers)
    if window.size <= dry.allowed_length or limit < dry.allowed_length:
        return None
    repeats = repeat_lengths(window, dry.allowed_length, min(limit, _longest(dry)))
    tokens = [token for token in repeats if () not in breakers.get(token, ())]
    if not tokens:
        return None
    penalties = np.array([_penalty(repeats[token], dry) for token in tokens])
    return Adjustment(np.array(tokens), lambda logits, found: logits - penalties[found])


def _longest(dry: DryParams) -> int:
    """Longer repetitions have the same penalty: it is held inside float32."""
    if dry.base <= 1.000001:
        return dry.allowed_length
    return dry.allowed_length + int(_LOG_FLOAT32_MAX / math.log(dry.base))


def _penalty(length: int, dry: DryParams) -> float:
    return min(dry.multiplier * dry.base ** (length - dry.allowed_length), 1e100)


def _length_since_breaker(window: NDArray[np.int64], breakers: Breakers) -> int:
    """How many tokens follow the last complete breaker."""
    n = window.size
    if not breakers:
        return n
    for stop in range(n, 0, -_SCAN):
        tokens = window[max(0, stop - _SCAN) : stop].tolist()
        for place, token in enumerate(reversed(tokens)):
            tails = breakers.get(token)
            if tails is None:
                continue
            at = stop - 1 - place
            behind = tuple(window[at + 1 : at + 1 + _MAX_TAIL].tolist())
            fits = [len(tail) for tail in tails if tail == behind[: len(tail)]]
            if fits:
                return n - 1 - at - max(fits)
    return n


def repeat_lengths(window: NDArray[np.int64], shortest: int, longest: int) -> dict[int, int]:
    """For each token that followed an earlier copy of the window's end: the longest such copy.

    Lengths count from `shortest` and stop at `longest`. One pass over the window, and then one
    over the copies still alive per token of length.
    """
    n = window.size
    # Copies end before the last token, so that something follows them.
    ends = np.flatnonzero(window[:-1] == window[-1])
    found: dict[int, int] = {}
    for length in range(1, longest + 1):  # all of `ends` are copies of at least this length
        if not ends.size:
            break
        n_cut = int(ends.searchsorted(length))  # the window begins before those can grow
        grows = window[ends - length] == window[n - 1 - length]
        grows[:n_cut] = False
        done = ends if length == longest else ends[~grows]
        if length >= shortest:
            found.update(dict.fromkeys(window[done + 1].tolist(), length))
        ends = ends[grows]
    return found
