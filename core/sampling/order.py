"""The order of the samplers, in the two spellings of llama.cpp: names and letters.

    --samplers "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    --sampling-seq edskypmxt

A sampler that is not listed is off, whatever its parameters say; one may come twice. llama.cpp
skips what it does not know with a warning; here that is an error.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from ..errors import ConfigError

LETTERS: Final = MappingProxyType(
    {
        "e": "penalties",
        "d": "dry",
        "s": "top_n_sigma",
        "k": "top_k",
        "y": "typ_p",
        "p": "top_p",
        "m": "min_p",
        "x": "xtc",
        "t": "temperature",
        "a": "adaptive_p",  # wherever it stands, it comes last: it is what draws the token
    }
)
NAMES: Final = frozenset(LETTERS.values())
DEFAULT_ORDER: Final = tuple(LETTERS.values())[:-1]
MAX_LENGTH: Final = 64

# What llama.cpp takes besides; `-` for `_` is understood everywhere.
_OTHER_NAMES: Final = MappingProxyType(
    {
        "nucleus": "top_p",
        "typical_p": "typ_p",
        "typical": "typ_p",
        "typ": "typ_p",
        "temp": "temperature",
    }
)


def parse_samplers(text: str) -> tuple[str, ...]:
    """Names separated by semicolons; an empty text is an empty chain: the plain softmax."""
    names = [part.strip() for part in text.split(";")]
    return check_order(tuple(_canonical(name) for name in names if name))


def parse_sampling_seq(text: str) -> tuple[str, ...]:
    """One letter per sampler."""
    unknown = [letter for letter in text if letter not in LETTERS]
    if unknown:
        raise ConfigError(
            f"sampling-seq has no sampler {unknown[0]!r}; the letters are {''.join(LETTERS)}"
        )
    return check_order(tuple(LETTERS[letter] for letter in text))


def check_order(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > MAX_LENGTH:
        raise ConfigError(f"samplers may list at most {MAX_LENGTH} samplers, got {len(names)}")
    for name in names:
        if name not in NAMES:
            raise ConfigError(
                f"samplers has no sampler {str(name)[:40]!r}; "
                f"there are {', '.join(LETTERS.values())}"
            )
    return names


def _canonical(name: str) -> str:
    name = name.replace("-", "_")
    return _OTHER_NAMES.get(name, name)
