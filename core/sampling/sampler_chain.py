"""From `SamplingParams` to the steps that a row of logits goes through, in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import NothingLeftError
from . import transforms
from .adjust import Adjustment, shortlist
from .candidates import Candidates, best_from_logits, from_logits
from .draw import Place
from .dry import Breakers, DryParams, penalized_repeats
from .noise import XTC_COIN, coin
from .params import Biases, SamplingParams
from .penalties import Window, penalties


class Moment(NamedTuple):
    """What a step may look at besides the candidates."""

    place: Place
    history: NDArray[np.int64]  # empty unless DRY is on
    window: Window  # counts of the recent tokens
    breakers: Breakers


Filter = Callable[[Candidates, Moment], Candidates]
Adjuster = Callable[[Moment], Adjustment | None]


class SamplerStep(NamedTuple):
    """One of the two is set."""

    name: str
    filter: Filter | None = None
    adjuster: Adjuster | None = None


class SamplerChain(NamedTuple):
    adjusters: tuple[Adjuster, ...]  # those before any filter
    best: int  # if it is above 0, these many best of the adjusted logits are all that is needed
    steps: tuple[SamplerStep, ...]  # the rest
    names: tuple[str, ...]  # of everything that does something

    @property
    def is_greedy(self) -> bool:
        """Nothing but the temperature 0, and before it only filters that keep the best token."""
        before = self.names[: self.names.index("greedy")] if "greedy" in self.names else ("?",)
        return _KEEP_THE_BEST.issuperset(before)

    def run(
        self,
        logits: NDArray[np.float32],
        moment: Moment,
        maxima: NDArray[np.float32] | None = None,
    ) -> Candidates:
        found = (adjuster(moment) for adjuster in self.adjusters)
        adjustments = [adjustment for adjustment in found if adjustment is not None]
        candidates = _not_empty(self._begin(logits, adjustments, maxima), "the grammar")
        for adjustment in adjustments:
            candidates = _not_empty(adjustment.apply(candidates), "logit-bias")
        for step in self.steps:
            if step.filter is not None:
                candidates = step.filter(candidates, moment)
            elif step.adjuster is not None:
                late = step.adjuster(moment)
                candidates = candidates if late is None else late.apply(candidates)
        return candidates

    def _begin(
        self,
        logits: NDArray[np.float32],
        adjustments: list[Adjustment],
        maxima: NDArray[np.float32] | None,
    ) -> Candidates:
        """Of a long row as few candidates as will do."""
        if not 0 < self.best < logits.size:
            return from_logits(logits)
        if not adjustments:
            return best_from_logits(logits, self.best, maxima)
        n_touched = sum(adjustment.tokens.size for adjustment in adjustments)
        if logits.size < _LONG or self.best + n_touched > _MAX_SHORTLIST:
            return from_logits(logits)
        return shortlist(logits, self.best, adjustments, maxima)


def _not_empty(candidates: Candidates, what: str) -> Candidates:
    if not candidates.ids.size:
        raise NothingLeftError(f"{what} leaves no token that could come next")
    return candidates


@lru_cache(maxsize=64)
def build_sampler_chain(params: SamplingParams) -> SamplerChain:
    made = [_bias(params.logit_bias)] if params.logit_bias else []
    # As in llama.cpp, mirostat takes the place of all samplers but the temperature.
    order = ("temperature",) if params.mirostat else params.samplers
    made += [step for name in order if (step := _BUILDERS[name](params)) is not None]
    n_first = next((n for n, step in enumerate(made) if step.filter is not None), len(made))
    adjusters = tuple(step.adjuster for step in made[:n_first] if step.adjuster is not None)
    rest = tuple(made[n_first:])
    best = {"top_k": params.top_k, "greedy": 1}.get(rest[0].name, 0) if rest else 0
    return SamplerChain(adjusters, best, rest, tuple(step.name for step in made))


_LONG: Final = 16_384
_MAX_SHORTLIST: Final = 1024
_KEEP_THE_BEST: Final = frozenset({"top_k", "top_p", "min_p", "top_n_sigma"})


def _bias(pairs: Biases) -> SamplerStep:
    tokens = np.array([token for token, _ in pairs], np.int64)
    biases = np.array([bias for _, bias in pairs])
    fixed = Adjustment(tokens, lambda logits, found: logits + biases[found])
    return SamplerStep("logit_bias", adjuster=lambda moment: fixed)


def _penalties(params: SamplingParams) -> SamplerStep | None:
    given = (params.repeat_penalty, params.presence_penalty, params.frequency_penalty)
    if params.repeat_last_n == 0 or given == (1, 0, 0):
        return None
    return SamplerStep("penalties", adjuster=lambda moment: penalties(moment.window, *given))


def _dry(params: SamplingParams) -> SamplerStep | None:
    dry = DryParams(
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_penalty_last_n,
    )
    if not dry.multiplier or not dry.last_n:
        return None

    def adjuster(moment: Moment) -> Adjustment | None:
        return penalized_repeats(moment.history, moment.breakers, dry)

    return SamplerStep("dry", adjuster=adjuster)


def _top_n_sigma(params: SamplingParams) -> SamplerStep | None:
    n = params.top_n_sigma
    return _filter("top_n_sigma", n > 0, lambda each: transforms.top_n_sigma(each, n))


def _top_k(params: SamplingParams) -> SamplerStep | None:
    k = params.top_k
    return _filter("top_k", k > 0, lambda each: transforms.top_k(each, k))


def _typical(params: SamplingParams) -> SamplerStep | None:
    p, least = params.typical_p, params.min_keep
    return _filter("typ_p", p < 1, lambda each: transforms.typical(each, p, least))


def _top_p(params: SamplingParams) -> SamplerStep | None:
    p, least = params.top_p, params.min_keep
    return _filter("top_p", p < 1, lambda each: transforms.top_p(each, p, least))


def _min_p(params: SamplingParams) -> SamplerStep | None:
    p, least = params.min_p, params.min_keep
    return _filter("min_p", p > 0, lambda each: transforms.min_p(each, p, least))


def _xtc(params: SamplingParams) -> SamplerStep | None:
    probability, threshold, least = params.xtc_probability, params.xtc_threshold, params.min_keep
    if not probability or threshold > 0.5:
        return None

    def step(candidates: Candidates, moment: Moment) -> Candidates:
        if coin(*moment.place, XTC_COIN) >= probability:
            return candidates
        return transforms.xtc(candidates, threshold, least)

    return SamplerStep("xtc", step)


def _temperature(params: SamplingParams) -> SamplerStep | None:
    value, exponent = params.temperature, params.dynatemp_exponent
    spread = 0.0 if params.mirostat else params.dynatemp_range
    if spread > 0:
        return _filter(
            "temperature",
            True,
            lambda each: transforms.dynamic_temperature(each, value, spread, exponent),
        )
    name = "temperature" if value else "greedy"
    return _filter(name, value != 1, lambda each: transforms.temperature(each, value))


def _filter(name: str, is_on: bool, work: Callable[[Candidates], Candidates]) -> SamplerStep | None:
    return SamplerStep(name, lambda candidates, moment: work(candidates)) if is_on else None


_BUILDERS: Final = MappingProxyType[str, Callable[[SamplingParams], SamplerStep | None]](
    {
        "penalties": _penalties,
        "dry": _dry,
        "top_n_sigma": _top_n_sigma,
        "top_k": _top_k,
        "typ_p": _typical,
        "top_p": _top_p,
        "min_p": _min_p,
        "xtc": _xtc,
        "temperature": _temperature,
        "adaptive_p": lambda params: None,  # comes last, and has a state: `Sampler` applies it
    }
)
