"""`Acceptance`: which draft tokens are kept, as a choice. `engine/verify.py` carries it out.

Imports nothing heavy, on purpose: the command line reads it before anything else is loaded.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from ..errors import ConfigError

MATCH: Final = "match"  # what the target would have written: the text is that of plain decoding
RATIO: Final = "ratio"  # by p/q: the distribution of the text is that of plain decoding
RELAXED: Final = "relaxed"  # what the target finds nearly as good: lossy
SYNTHETIC: Final = "synthetic"  # at random, for benchmarks: the text is worthless

# TensorRT-LLM's examples for relaxed acceptance.
TOP_N: Final = 10
DELTA: Final = 0.6
_ALWAYS: Final = "always"


class Acceptance(Struct, frozen=True):
    mode: str = MATCH
    top_n: int = TOP_N  # relaxed: of the best so many
    delta: float = DELTA  # relaxed: no less probable than the best by more than this
    always: bool = False  # relaxed: everywhere, not only in thoughts
    chances: tuple[float, ...] = ()  # synthetic: of each place in a draft, if those before held

    @property
    def warning(self) -> str:
        """What a user has to know, in one line; "" if the text is sound."""
        if self.mode == RELAXED:
            where = "everywhere" if self.always else "in the thinking phase"
            return (
                f"--spec-accept relaxed is lossy: {where}, draft tokens stay that the model "
                "itself would not have written"
            )
        if self.mode == SYNTHETIC:
            return "synthetic acceptance: figures only, the text is not what the model would write"
        return ""


def parse_accept(text: str) -> Acceptance:
    """`match`, `ratio` or `relaxed[:top_n[,delta]][,always]`."""
    name, colon, rest = text.strip().lower().partition(":")
    if name in (MATCH, RATIO) and not colon:
        return Acceptance(name)
    if name != RELAXED:
        raise ConfigError(
            f"spec-accept {text!r} is unknown; known: match, ratio, relaxed[:top_n[,delta]]"
        )
    numbers = [part.strip() for part in rest.split(",")] if colon else []
    always = bool(numbers) and numbers[-1] == _ALWAYS
    if always:
        numbers.pop()
    if len(numbers) > 2:
        raise ConfigError(f"spec-accept {text!r} has too many numbers: relaxed:top_n,delta")
    try:
        top_n = int(numbers[0]) if numbers else TOP_N
        delta = float(numbers[1]) if len(numbers) > 1 else DELTA
    except ValueError:
        raise ConfigError(
            f"spec-accept {text!r} is no relaxed:top_n,delta, such as relaxed:{TOP_N},{DELTA}"
        ) from None
    if top_n < 1:
        raise ConfigError(f"spec-accept {text!r}: top_n must be at least 1, got {top_n}")
    if not (math.isfinite(delta) and 0 <= delta <= 1):
        raise ConfigError(f"spec-accept {text!r}: delta must be between 0 and 1, got {delta}")
    return Acceptance(RELAXED, top_n, delta, always)
