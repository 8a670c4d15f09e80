"""`Sampler`: logits to tokens for one sequence, with the state that sampling carries.

The token at a position is a pure function of logits, parameters, history, carried state, seed,
sequence and position. `pick` computes it and changes nothing; `accept` records that a token has
become part of the text. So picking for a draft's rows one after the other, accepting each pick,
and stopping at the first that differs from the draft is plain decoding, bit for bit; and a draft
is made on a `copy`, which is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..backend.interface import HostOutput
from ..backend.picking import UNSURE
from ..errors import ConfigError, FileFormatError
from .adaptive import AdaptiveP, Mirostat
from .candidates import Candidates, by_id
from .distribution import Distribution, as_candidates, distribution_of
from .draw import Place, draw
from .dry import NO_BREAKERS, Breakers
from .finite import best_token, check_finite, check_row
from .logprobs import logprobs, top_logprobs
from .native_picks import make_pick_request
from .noise import coin
from .params import SamplingParams
from .penalties import Window
from .sampler_chain import Moment, SamplerChain, build_sampler_chain
from .sampler_state import SamplerState, dump_state, parse_state

if TYPE_CHECKING:
    from .grammar import Grammar

__all__ = ["Sampler", "check_finite", "logprobs", "pick", "top_logprobs"]

_NOTHING = np.empty(0, np.int64)


class Sampler:
    """Per sequence: `begin(prompt)`, then `pick` and `accept` in turn.

    `history` is the prompt and every accepted token; only DRY reads it, so give an array where
    the text is long. `breakers` come from `dry.find_breakers`.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        sequence: int = 0,
        grammar: Grammar | None = None,
        breakers: Breakers = NO_BREAKERS,
    ) -> None:
        if params.logit_bias and params.logit_bias[-1][0] >= n_vocab:
            raise ConfigError(
                f"logit-bias names token {params.logit_bias[-1][0]}, "
                f"but the vocabulary ends at {n_vocab - 1}"
            )
        self.params = params
        self.sequence = sequence
        self.grammar = grammar
        self._n_vocab = n_vocab
        self._breakers = breakers
        self._chain = build_sampler_chain(params)
        self._has_window = "penalties" in self._chain.names
        self._reads_history = "dry" in self._chain.names
        self._window = Window(params.repeat_last_n if self._has_window else 0)
        self._steering = _start_steering(params)
        self._request = None
        if grammar is None and self._steering is None:
            self._request = make_pick_request(params, sequence, n_vocab)
        self._n_seen = 0
        # Token and probability of the latest pick: for `accept`, and nothing else, to read.
        self._picked: tuple[int, float] | None = None

    @property
    def request(self) -> int:
        """Address of what a backend needs to pick by itself, as long as this lives; 0: nothing."""
        return 0 if self._request is None else self._request.address

    @property
    def is_greedy(self) -> bool:
        """The pick is the argmax of the logits, whatever seed, history and state."""
        return self.grammar is None and self._chain.is_greedy

    @property
    def is_certain(self) -> bool:
        """One token only can come next: the temperature is 0."""
        return "greedy" in self._chain.names

    @property
    def has_distribution(self) -> bool:
        """See `distribution`."""
        return self._steering is None

    @property
    def is_stateless(self) -> bool:
        """Nothing accepted changes a later pick: `accept` may be skipped."""
        return not (
            self.grammar or self._has_window or self._reads_history or self._steering is not None
        )

    @property
    def reads_history(self) -> bool:
        """Whether `pick` needs the tokens so far."""
        return self._reads_history

    def begin(self, prompt: Sequence[int] | NDArray[np.int64]) -> None:
        """Once, before the first pick; the penalties see the prompt, the grammar does not."""
        self._n_seen += len(prompt)
        if self._has_window:
            size = self._window.size
            seen = prompt if size < 0 else prompt[max(0, len(prompt) - size) :]
            self._window.extend(np.asarray(seen, np.int64).tolist())

    def pick_row(
        self,
        output: HostOutput,
        row: int,
        history: Sequence[int] | NDArray[np.int64] = (),
        position: int = 0,
    ) -> int:
        """The same as `pick` of a row of what a backend computed, by the backend if it can."""
        request, pick = self._request, output.pick
        if request is not None and pick is not None:
            token = pick(row, request.address, position)
            if token != UNSURE:
                return token
        maxima = None if output.maxima is None else output.maxima[row]
        return self.pick(output.logits[row], history, position, maxima)

    def pick(
        self,
        logits: NDArray[np.float32],
        history: Sequence[int] | NDArray[np.int64] = (),
        position: int = 0,
        maxima: NDArray[np.float32] | None = None,
    ) -> int:
        """The token at `position`, its absolute index in the sequence, from logits (V,).

        `maxima`, if the backend has computed them, are the best of each `MAXIMA_BLOCK` tokens. They
        save passes over a long row, and change nothing.
        """
        if logits.shape != (self._n_vocab,):
            raise ValueError(f"expected {self._n_vocab} logits, got shape {logits.shape}")
        if self._chain.is_greedy:
            best = best_token(logits, maxima)
            if self.grammar is None or self.grammar.allowed(best):
                return best
        candidates = self._run(self._chain, logits, history, position, maxima)
        return self._choose(candidates, self._place(position))

    def distribution(
        self,
        logits: NDArray[np.float32],
        history: Sequence[int] | NDArray[np.int64] = (),
        position: int = 0,
        maxima: NDArray[np.float32] | None = None,
    ) -> Distribution:
        """What `pick` draws from, grammar, penalties, filters and temperature included."""
        if not self.has_distribution:
            raise ConfigError(
                "mirostat and adaptive-p move with every pick, so that their tokens have no "
                "distribution of their own: --spec-accept ratio cannot be used with them"
            )
        return distribution_of(self._run(self._chain, logits, history, position, maxima))

    def distribution_now(
        self,
        logits: NDArray[np.float32],
        history: Sequence[int] | NDArray[np.int64] = (),
        position: int = 0,
        maxima: NDArray[np.float32] | None = None,
    ) -> Distribution:
        """The same, of mirostat and adaptive-p as well: theirs is another after the next token."""
        candidates = self._run(self._chain, logits, history, position, maxima)
        return distribution_of(
            candidates if self._steering is None else self._steered(candidates)[1]
        )

    def allowed(
        self,
        logits: NDArray[np.float32],
        history: Sequence[int] | NDArray[np.int64] = (),
        position: int = 0,
    ) -> Candidates:
        """What grammar, bans, biases and penalties leave, before any filter and temperature."""
        unfiltered = self._chain._replace(best=0, steps=())
        return self._run(unfiltered, logits, history, position, None)

    def draw(self, distribution: Distribution, position: int, purpose: int) -> int:
        """A token drawn from the distribution, with the noise of a purpose of `noise`."""
        return int(
            distribution.ids[draw(as_candidates(distribution), self._place(position), purpose)]
        )

    def coin(self, position: int, purpose: int) -> float:
        """A number between 0 and 1, neither of them included."""
        return coin(*self._place(position), purpose)

    def accept(self, token: int) -> None:
        """Mirostat and adaptive-p move by the probability that the latest pick gave the token;
        a token that was not picked (for example a forced one) leaves them where they are."""
        picked, self._picked = self._picked, None
        if self.grammar is not None:
            self.grammar.accept(token)
        if self._steering is not None and picked is not None and picked[0] == token:
            self._steering = self._steering.after(picked[1])
        if self._has_window:
            self._window.add(token)
        self._n_seen += 1

    def drop(self, n: int) -> None:
        """So many tokens of the history are no longer there; penalties still know them."""
        self._n_seen -= n

    def copy(self) -> Sampler:
        """Independent of this one from now on."""
        twin = Sampler.__new__(Sampler)
        twin.__dict__.update(self.__dict__)
        twin._window = self._window.copy()
        twin.grammar = None if self.grammar is None else self.grammar.copy()
        return twin

    def save(self) -> bytes:
        """The carried state, for `load` of a sampler made with the same arguments."""
        accepted = [] if self.grammar is None else self.grammar.accepted
        steering = [] if self._steering is None else self._steering.save()
        return dump_state(SamplerState(self._n_seen, steering, self._window.save(), accepted))

    def load(self, data: bytes) -> None:
        """Replaces the state by a saved one; on an error nothing has changed."""
        state = parse_state(data, self._n_vocab)
        is_other = (self._steering is None) != (not state.steering)
        if is_other or (self.grammar is None and state.grammar):
            raise FileFormatError("the saved sampler state is of a different kind of sampler")
        try:
            window = Window.load(self._window.size, state.window)
            steering = None if self._steering is None else self._steering.load(state.steering)
        except ValueError:
            raise FileFormatError("the saved sampler state does not fit this sampler") from None
        if self.grammar is not None:
            self.grammar = self.grammar.restart(state.grammar)
        self._window, self._steering = window, steering
        self._n_seen, self._picked = state.n_seen, None

    def _place(self, position: int) -> Place:
        return Place(self.params.seed, self.sequence, position)

    def _run(
        self,
        chain: SamplerChain,
        logits: NDArray[np.float32],
        history: Sequence[int] | NDArray[np.int64],
        position: int,
        maxima: NDArray[np.float32] | None,
    ) -> Candidates:
        check_row(logits, maxima)
        if self.grammar is not None:
            masked = self.grammar.mask(logits)
            logits, maxima = masked, maxima if masked is logits else None
        recent = self._recent(history)
        moment = Moment(self._place(position), recent, self._window, self._breakers)
        return chain.run(logits, moment, maxima)

    def _recent(self, history: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """What DRY may look at; nothing where it is off."""
        if not self._reads_history:
            return _NOTHING
        if len(history) != self._n_seen:
            raise ValueError(
                f"the history has {len(history)} tokens, but the sampler has seen {self._n_seen}"
            )
        size = self.params.dry_penalty_last_n
        return np.asarray(history if size < 0 else history[-size:], np.int64)

    def _choose(self, candidates: Candidates, place: Place) -> int:
        steering = self._steering
        if steering is None:
            return int(candidates.ids[draw(candidates, place)])
        judged, drawn = self._steered(candidates)
        row = draw(drawn, place)
        token = int(drawn.ids[row])
        self._picked = token, steering.probability(judged, row)
        return token

    def _steered(self, candidates: Candidates) -> tuple[Candidates, Candidates]:
        """Candidates that move the steering, and those to draw from: the same tokens."""
        candidates, steering = by_id(candidates), self._steering
        if isinstance(steering, Mirostat):
            candidates = steering.narrow(candidates)
        if isinstance(steering, AdaptiveP):
            return candidates, steering.reshape(candidates)
        return candidates, candidates


def _start_steering(params: SamplingParams) -> Mirostat | AdaptiveP | None:
    if build_sampler_chain(params).is_greedy:
        return None
    if params.mirostat:
        return Mirostat(params.mirostat_tau, params.mirostat_eta, 2 * params.mirostat_tau)
    if "adaptive_p" in params.samplers and params.adaptive_target >= 0:
        return AdaptiveP.start(params.adaptive_target, params.adaptive_decay)
    return None


def pick(
    logits: NDArray[np.float32], params: SamplingParams, *, sequence: int, position: int
) -> int:
    """The token at `position`, for parameters that remember nothing; others need a `Sampler`."""
    sampler = Sampler(params, n_vocab=logits.size, sequence=sequence)
    if not sampler.is_stateless:
        raise ValueError("these sampling parameters depend on the text: use a Sampler")
    return sampler.pick(logits, (), position)
