"""Configurations as on the command line: `none`, `auto`, `mtp:n=3,fixed`, `ngram-mod,mtp:n=4`.

Imports nothing heavy, on purpose: the command line reads them before a model is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError
from ..speculation.acceptance import MATCH, parse_accept
from ..speculation.options import DRAFT, NONE, OF_OWN_FILES, SpecOptions, parse_types

FIXED: Final = "fixed"
_INT, _FLOAT, _TEXT = int, float, str
_KEYS: Final[dict[str, tuple[str, type]]] = {
    "n": ("draft_n_max", _INT),
    "min": ("draft_n_min", _INT),
    "p": ("draft_p_min", _FLOAT),
    "vocab": ("draft_vocab", _TEXT),
    "prefill": ("mtp_prefill", _INT),
    "costs": ("costs", _TEXT),
    "accept": ("accept", _TEXT),
    "synth": ("synth_len", _FLOAT),
}
HELP: Final = "n=, min=, p=, vocab=, prefill=, costs=, accept=, synth= and fixed"


class SpecVariant(Struct, frozen=True):
    """One configuration of this process's engine."""

    name: str
    options: SpecOptions

    @property
    def is_plain(self) -> bool:
        return self.options.types == (NONE,)

    @property
    def repeats(self) -> bool:
        """Whether its drafts do not depend on a clock."""
        options = self.options
        has_costs = options.costs is not None and Path(options.costs).exists()
        return self.is_plain or options.fixed or has_costs

    @property
    def is_lossless(self) -> bool:
        options = self.options
        return self.is_plain or (
            not options.is_synthetic and parse_accept(options.accept).mode == MATCH
        )

    @property
    def needs_draft_file(self) -> bool:
        return not {DRAFT, *OF_OWN_FILES}.isdisjoint(self.options.types)


def parse_variant(text: str, *, fixed: bool = False, costs: str | None = None) -> SpecVariant:
    """`types[:key=value,…]`. `fixed` and `costs` are defaults."""
    names, colon, rest = text.strip().partition(":")
    values: dict[str, Any] = {}
    for key, value in _settings(text, rest) if colon else ():
        if key in values:
            raise ConfigError(f"{text!r} has {key} twice")
        values[key] = value
    given: dict[str, Any] = {"types": parse_types(tuple(names.split(",")))}
    given[FIXED] = values.pop(FIXED, fixed)
    given |= {_KEYS[key][0]: value for key, value in values.items()}
    if not given[FIXED]:
        given.setdefault("costs", costs)
    try:
        options = SpecOptions(**given)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: {error}") from None
    if options.types == (NONE,) and values:
        raise ConfigError(f"{text!r}: nothing drafts, so there is nothing to set")
    if options.draft_n_max == 0:
        raise ConfigError(
            f"{text!r}: n=0 drafts nothing; for plain decoding give {NONE}, as in --vs {NONE}"
        )
    if options.fixed and options.costs is not None:
        raise ConfigError(f"{text!r}: {FIXED} decides nothing, so that costs have no use")
    return SpecVariant(text.strip(), options)


def distinct(variants: Sequence[SpecVariant]) -> list[SpecVariant]:
    """The same configuration twice is a test of the benchmark itself: the second is `name#2`."""
    seen: dict[str, int] = {}
    found = []
    for variant in variants:
        n = seen[variant.name] = seen.get(variant.name, 0) + 1
        found.append(variant if n == 1 else replace(variant, name=f"{variant.name}#{n}"))
    return found


def common_options(variants: Sequence[SpecVariant]) -> SpecOptions:
    """Options to load a runtime with, so that all of them can run on its weights."""
    types = {name for variant in variants for name in variant.options.types}
    wanted = tuple(types - {NONE}) or (NONE,)
    if "auto" in wanted:
        wanted = ("auto",)
    longest = max((variant.options.n_max for variant in variants), default=0)
    return SpecOptions(types=wanted, draft_n_max=longest)


def _settings(text: str, rest: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, str]] = []
    for piece in rest.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if key == FIXED and not equals:
            found.append((FIXED, ""))
        elif equals:
            found.append((_known(text, key), value))
        elif found and found[-1][0] == "accept" and ":" in found[-1][1]:
            # Commas also part the numbers of accept=relaxed:10,0.6,always.
            found[-1] = ("accept", f"{found[-1][1]},{key}")
        else:
            raise ConfigError(
                f"{text!r}: {piece.strip()!r} is not a setting; it is {HELP}, with commas between"
            )
    return [(key, _value(text, key, value)) for key, value in found]


def _known(text: str, key: str) -> str:
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, 1)
        hint = f"; did you mean {near[0]}=?" if near else f" (known: {HELP})"
        raise ConfigError(f"{text!r}: {key}= is unknown{hint}")
    return key


def _value(text: str, key: str, value: str) -> Any:
    if key == FIXED:
        return True
    kind = _KEYS[key][1]
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{text!r}: {key}= needs {what}, got {value!r}") from None
