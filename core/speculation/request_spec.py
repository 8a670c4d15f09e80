"""`RequestSpec`: what a request sets of the speculation of its engine.

Imports nothing heavy, on purpose: a request is checked with it before anything is computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from ..errors import ConfigError
from .acceptance import RATIO, parse_accept
from .options import ASSISTANT, AUTO, MAX_DRAFT, MTP, NONE, SpecOptions, parse_types

if TYPE_CHECKING:
    from .draft import Draft

PREDICTION: Final = "prediction"  # drafts from the text that a request expects


class RequestSpec(Struct, frozen=True):
    """The defaults leave everything as the engine is set up."""

    types: tuple[str, ...] = ()  # only these draft; (): all that are loaded
    n_max: int | None = None  # tokens of a draft, at most; 0: none
    n_min: int = 0  # shorter drafts are dropped
    p_min: float = 0.0  # a draft ends before a token that its source finds less probable
    accept: str = ""  # match, ratio, relaxed[:...]; "": as the engine does
    prediction: tuple[int, ...] = ()  # the tokens that the client expects
    fixed: bool = False  # always the longest draft, whether it saves time or not

    def __post_init__(self) -> None:
        if self.types:
            types = parse_types(self.types)
            force_setattr(self, "types", () if types == (AUTO,) else types)
        for name, value in (("n_max", self.n_max or 0), ("n_min", self.n_min)):
            if not 0 <= value <= MAX_DRAFT:
                raise ConfigError(f"{name} must be between 0 and {MAX_DRAFT}, got {value}")
        if self.n_max is not None and 0 < self.n_max < self.n_min:
            raise ConfigError(
                f"n_min is {self.n_min}, more than n_max, {self.n_max}: no draft could ever be "
                "long enough"
            )
        if not (math.isfinite(self.p_min) and 0 <= self.p_min <= 1):
            raise ConfigError(f"p_min must be a probability, 0 to 1, got {self.p_min}")
        if self.accept:
            parse_accept(self.accept)

    @property
    def is_off(self) -> bool:
        return self.types == (NONE,) or self.n_max == 0

    @property
    def sources(self) -> frozenset[str]:
        """The drafters that may draft; empty: all."""
        if MTP in self.types:  # the name of both for clients of llama.cpp
            return frozenset((*self.types, ASSISTANT, PREDICTION))
        return frozenset((*self.types, PREDICTION)) if self.types else frozenset()

    def is_by_ratio(self, options: SpecOptions) -> bool:
        """Whether drafts are accepted by p/q, for which a drafter should give distributions."""
        if self.accept:
            return parse_accept(self.accept).mode == RATIO
        return parse_accept(options.accept).mode == RATIO and not options.is_synthetic

    def n_used(self, draft: Draft) -> int:
        """So many tokens of the draft are to be verified."""
        n = len(draft.tokens)
        if self.p_min:
            for i, chance in enumerate(draft.chances):
                if 0 <= chance < self.p_min:  # below 0: its source gives none
                    n = i
                    break
        # The length of a drawn draft depends on what was drawn, so it must not decide anything.
        return n if n >= self.n_min or draft.distributions else 0


BY_DEFAULT: Final = RequestSpec()
