"""`SpecOptions`: what a user may say about speculation. Names and defaults are llama.cpp's.

Imports nothing heavy, on purpose: the command line reads it before anything else is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from ..errors import ConfigError
from .acceptance import MATCH, SYNTHETIC, Acceptance, parse_accept
from .synthetic import chances_of, check_length, check_rates, rates_for_length

NONE: Final = "none"
AUTO: Final = "auto"  # every drafter that the file offers, and n-grams
MTP, DRAFT, EAGLE3, DFLASH = "mtp", "draft", "eagle3", "dflash"
ASSISTANT: Final = "gemma4-assistant"
OF_OWN_FILES: Final = (EAGLE3, DFLASH, ASSISTANT)  # networks in files of their own alone
FROM_FILES: Final = (DRAFT, MTP, *OF_OWN_FILES)  # those that a draft file may be for
NGRAM_SIMPLE, NGRAM_MAP_K, NGRAM_MAP_K4V = "ngram-simple", "ngram-map-k", "ngram-map-k4v"
NGRAM_MOD, NGRAM_CACHE, SUFFIX = "ngram-mod", "ngram-cache", "suffix"
# Every drafter in the order of precedence, and its module with a function `make(setting)`, or
# `module:function`. A ConfigError there says why the drafter cannot work with these files.
DRAFTERS: Final = {
    NGRAM_SIMPLE: ".drafters.ngram_match:make_simple",
    NGRAM_MAP_K: ".drafters.ngram_match:make_map_k",
    NGRAM_MAP_K4V: ".drafters.ngram_match:make_map_k4v",
    NGRAM_MOD: ".drafters.ngram_match:make_mod",
    NGRAM_CACHE: ".drafters.ngram_cache",
    SUFFIX: ".drafters.suffix",
    DRAFT: ".drafters.draft_model",
    DFLASH: ".drafters.networks:make_dflash",
    EAGLE3: ".drafters.networks:make_eagle3",
    ASSISTANT: ".drafters.networks:make_assistant",
    MTP: ".drafters.networks:make_mtp",
}
ALIASES: Final = {
    "draft-mtp": MTP,
    "nextn": MTP,
    "draft-simple": DRAFT,
    "draft-model": DRAFT,
    "draft-eagle3": EAGLE3,
    "draft-dflash": DFLASH,
    "draft-dspark": DFLASH,
    "dspark": DFLASH,
}

MAX_DRAFT: Final = 64  # tokens; with the one before them, the window of a recurrent state
DRAFT_N_MAX: Final = 3  # of models, unless said otherwise and unless the controller decides
CONTROLLED_N_MAX: Final = 16  # how far it may go
NGRAM_CACHE_MAX: Final = 8  # of ngram-cache
SUFFIX_DEPTH: Final = 32  # tokens of a match that suffix compares
CORPUS_BUDGET: Final = 1024  # MiB
MAX_CORPUS_BUDGET: Final = 40 << 10  # MiB: places in a corpus have 32 bits


class NgramSizes(Struct, frozen=True):
    """Of ngram-simple and the two maps."""

    size_n: int = 12  # tokens that have to match
    size_m: int = 48  # tokens that are drafted
    min_hits: int = 1  # times that a match has been seen before it is used


class NgramModSizes(Struct, frozen=True):
    n_match: int = 24
    n_min: int = 48  # shorter drafts are not offered
    n_max: int = 64


class SuffixSizes(Struct, frozen=True):
    n_match: int = 1  # tokens that have to match
    n_max: int = 64  # tokens of a draft


# What `auto` takes instead: shorter matches are found more often, and how far each is used is
# for the controller to say.
AUTO_MOD: Final = NgramModSizes(n_match=6, n_min=1, n_max=64)


class SpecOptions(Struct, frozen=True):
    """Validated once, here; every later reader may trust the ranges."""

    types: tuple[str, ...] = (AUTO,)  # none, auto, or names of `DRAFTERS`
    draft_n_max: int | None = None  # None: the controller's choice, or 3 without one
    draft_n_min: int = 0  # shorter drafts of models are dropped
    draft_p_min: float = 0.0  # models stop drafting below this probability of their own
    draft_first: bool = False  # where memory is short, the context is shortened for drafters
    fixed: bool = False  # always the longest draft: no controller
    costs: str | None = None  # a file of frozen costs
    trace: str | None = None  # a file for the controller's decisions, JSONL
    draft_vocab: str = "auto"  # auto, full, a number of tokens, or a file of token ids
    mtp_prefill: int = -1  # MTP reads so many tokens of a prompt, the last ones; -1: all
    ngram_simple: NgramSizes = field(default_factory=NgramSizes)
    ngram_map_k: NgramSizes = field(default_factory=NgramSizes)
    ngram_map_k4v: NgramSizes = field(default_factory=NgramSizes)
    ngram_mod: NgramModSizes = field(default_factory=NgramModSizes)
    suffix: SuffixSizes = field(default_factory=SuffixSizes)
    corpus: str | None = None  # a file that suffix drafts from and adds texts to
    corpus_budget: int = CORPUS_BUDGET  # MiB that it may take on disk
    lookup_cache_static: str | None = None
    lookup_cache_dynamic: str | None = None
    accept: str = MATCH  # match, ratio or relaxed[:top_n[,delta]]
    synth_len: float | None = None  # acceptance for benchmarks, see `synthetic.py`
    synth_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "types", parse_types(self.types))
        _check_range("spec-draft-n-max", self.draft_n_max or 0, 0, MAX_DRAFT)
        _check_range("spec-draft-n-min", self.draft_n_min, 0, MAX_DRAFT)
        _check_range("spec-mtp-prefill", self.mtp_prefill, -1, None)
        if self.draft_n_min > self.n_max:
            default = ", by default" if self.draft_n_max is None else ""
            raise ConfigError(
                f"spec-draft-n-min is {self.draft_n_min}, more than spec-draft-n-max, "
                f"{self.n_max}{default}: no draft could ever be long enough"
            )
        if not (math.isfinite(self.draft_p_min) and 0 <= self.draft_p_min <= 1):
            raise ConfigError(
                f"spec-draft-p-min must be a probability, 0 to 1, got {self.draft_p_min}"
            )
        for name, sizes in (
            (NGRAM_SIMPLE, self.ngram_simple),
            (NGRAM_MAP_K, self.ngram_map_k),
            (NGRAM_MAP_K4V, self.ngram_map_k4v),
        ):
            _check_range(f"spec-{name}-size-n", sizes.size_n, 1, 1024)
            _check_range(f"spec-{name}-size-m", sizes.size_m, 1, 1024)
            _check_range(f"spec-{name}-min-hits", sizes.min_hits, 1, 65535)
        mod = self.ngram_mod
        _check_range("spec-ngram-mod-n-match", mod.n_match, 1, 1024)
        _check_range("spec-ngram-mod-n-max", mod.n_max, 0, 1024)
        _check_range("spec-ngram-mod-n-min", mod.n_min, 0, 1024)
        if mod.n_min > mod.n_max:
            raise ConfigError(
                f"spec-ngram-mod-n-min is {mod.n_min}, more than spec-ngram-mod-n-max, {mod.n_max}"
            )
        _check_range("spec-suffix-n-match", self.suffix.n_match, 1, SUFFIX_DEPTH)
        _check_range("spec-suffix-n-max", self.suffix.n_max, 1, MAX_DRAFT)
        _check_range("spec-corpus-budget", self.corpus_budget, 1, MAX_CORPUS_BUDGET)
        self._check_acceptance()

    @property
    def is_synthetic(self) -> bool:
        return self.synth_len is not None or bool(self.synth_rates)

    def longest_draft(self, types: Sequence[str]) -> int:
        """Tokens, of these types: what `resolve_types` makes of `types`."""
        of_each = {
            NGRAM_SIMPLE: self.ngram_simple.size_m,
            NGRAM_MAP_K: self.ngram_map_k.size_m,
            NGRAM_MAP_K4V: self.ngram_map_k4v.size_m,
            NGRAM_MOD: self.ngram_mod.n_max,
            NGRAM_CACHE: NGRAM_CACHE_MAX,
            SUFFIX: self.suffix.n_max,
        }
        return min(MAX_DRAFT, max((of_each.get(name, self.n_max) for name in types), default=0))

    def acceptance(self, types: Sequence[str]) -> Acceptance:
        """Which draft tokens are kept where these types draft."""
        if not self.is_synthetic:
            return parse_accept(self.accept)
        n_places = self.longest_draft(types)
        if not n_places:
            raise ConfigError("synthetic acceptance needs drafts, but no speculation is on")
        rates = self.synth_rates
        if self.synth_len is not None:
            rates = rates_for_length(self.synth_len, n_places)
        check_rates(rates, n_places)
        return Acceptance(SYNTHETIC, chances=chances_of(rates))

    def _check_acceptance(self) -> None:
        """What can be said before the types are known."""
        accept = parse_accept(self.accept)
        if self.synth_len is not None and self.synth_rates:
            raise ConfigError("spec-synth-len and spec-synth-rates exclude each other")
        if self.is_synthetic and accept.mode != MATCH:
            raise ConfigError(
                f"spec-accept {self.accept} and synthetic acceptance exclude each other"
            )
        if self.synth_len is not None:
            check_length(self.synth_len)
        check_rates(self.synth_rates)

    @property
    def n_max(self) -> int:
        """The longest draft of a model."""
        if self.draft_n_max is not None:
            return self.draft_n_max
        return DRAFT_N_MAX if self.fixed else CONTROLLED_N_MAX


def parse_types(names: Sequence[str]) -> tuple[str, ...]:
    """Canonical names in the order of precedence. `none` and `auto` stand alone."""
    found = set()
    for given in names:
        name = given.strip().lower()
        name = ALIASES.get(name, name)
        if name not in (*DRAFTERS, NONE, AUTO):
            raise ConfigError(_unknown(given.strip()))
        found.add(name)
    if not found:
        raise ConfigError(f"spec-type names no type; known: {', '.join((*DRAFTERS, AUTO, NONE))}")
    for name in (NONE, AUTO):
        if name in found and len(found) > 1:
            raise ConfigError(f"spec-type: {name} cannot be combined with other types")
    return tuple(name for name in (NONE, AUTO, *DRAFTERS) if name in found)


def named_by_file(types: Sequence[str], loaded: Collection[str]) -> tuple[str, ...]:
    """llama.cpp has one name for an MTP head and Gemma 4's assistant: what is loaded decides."""
    if MTP not in types or MTP in loaded or ASSISTANT not in loaded:
        return tuple(types)
    found = {ASSISTANT, *types} - {MTP}
    return tuple(name for name in DRAFTERS if name in found)


def _unknown(name: str) -> str:
    known = (*DRAFTERS, AUTO, NONE)
    near = get_close_matches(name, (*known, *ALIASES), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"spec-type {name!r} is unknown{hint} (known: {', '.join(known)})"


def _check_range(name: str, value: int, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name} must be {bound}, got {value}")


NO_SPECULATION: Final = SpecOptions(types=(NONE,))
BY_DEFAULT: Final = SpecOptions()
