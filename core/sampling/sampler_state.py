"""The state of a sampler as bytes, and back. JSON: readable, and nothing in it can run."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

from ..errors import FileFormatError

_FORMAT: Final = 1


class SamplerState(NamedTuple):
    n_seen: int  # tokens of prompt and text
    steering: list[float]  # of mirostat or adaptive-p
    window: list[list[int]]  # see `Window.save`
    grammar: list[int]  # tokens accepted since the grammar began


def dump_state(state: SamplerState) -> bytes:
    return json.dumps({"format": _FORMAT, **state._asdict()}, separators=(",", ":")).encode()


def parse_state(data: bytes, n_vocab: int) -> SamplerState:
    """Every number is checked: the bytes may come from a file."""
    try:
        found = json.loads(data)
        if found.pop("format") != _FORMAT:
            raise FileFormatError("the sampler state was saved by another version")
        state = SamplerState(**found)
        limit = state.n_seen + 1
        fits = (
            _are_integers([state.n_seen], 2**32)
            and all(math.isfinite(value + 0.0) for value in state.steering)
            and _are_integers(state.grammar, n_vocab)
            and len(state.window) in (1, 2)
            and _are_integers(state.window[0], n_vocab)
            and all(_are_integers(counts, limit) for counts in state.window[1:])
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise FileFormatError("the sampler state is damaged")
    return state


def _are_integers(values: list[Any], stop: int) -> bool:
    return all(type(value) is int and 0 <= value < stop for value in values)
