"""Which tokens come out of a step: how much of a draft holds, and what the target adds to it.

Each mode of `Acceptance` is a verifier. They differ in how they answer one question: does the
token drafted for this row stay, and if not, which one comes instead?
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, NamedTuple

from ..backend.interface import HostOutput
from ..errors import ConfigError, NonFiniteError, NothingLeftError
from ..generation import ERROR, TARGET
from ..sampling.distribution import chance, residual
from ..sampling.noise import ACCEPT_COIN, RESIDUAL
from ..sampling.relaxed import Phase, is_nearly_best
from ..sampling.sampler import Sampler
from ..speculation import acceptance as modes
from ..speculation.acceptance import Acceptance, parse_accept
from ..speculation.draft import Draft
from ..tokenizer import Tokenizer
from ..tokenizer.thinking import find_thinking_marks
from .sequence import Sequence, SequenceRows, Verifier

_MAX_RULES: Final = 64  # that are remembered


def make_verifier(acceptance: Acceptance, tokenizer: Tokenizer) -> Verifier:
    match acceptance.mode:
        case modes.RATIO:
            return RatioVerifier()
        case modes.RELAXED:
            return RelaxedVerifier(acceptance, tokenizer)
        case modes.SYNTHETIC:
            return SyntheticVerifier(acceptance, tokenizer)
    return MatchVerifier()


class Verifiers:
    """One for each acceptance rule of the requests, see `parse_accept`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_rule: dict[str, Verifier] = {}

    def of(self, rule: str) -> Verifier:
        found = self._by_rule.get(rule)
        if found is None:
            found = make_verifier(parse_accept(rule), self._tokenizer)
            if len(self._by_rule) < _MAX_RULES:
                self._by_rule[rule] = found
        return found


class MatchVerifier(Verifier):
    """Sample and match: the target picks its own token at every row, as it would have without a
    draft, so the text cannot depend on what was drafted."""

    mode = modes.MATCH
    round_chances = ()

    def accept(self, part: SequenceRows, output: HostOutput, first: int) -> int:
        # The loop of `_OneByOne`, written out: plain decoding passes here for every token.
        sequence, draft, n_made = part.sequence, part.draft, 0
        drafted, is_hit = draft.tokens, True
        try:
            while is_hit and sequence.stop_reason is None:
                row = first + n_made
                token = sequence.pick(output, row)
                is_hit = n_made < len(drafted) and drafted[n_made] == token
                source = draft.sources[n_made] if is_hit else TARGET
                sequence.emit(token, output, row, source)
                n_made += 1
        except (NonFiniteError, NothingLeftError) as error:
            sequence.end(ERROR, error)
        if drafted:
            part.n_accepted = n_made if is_hit else n_made - 1
            if sequence.params.with_rejected:
                sequence.add_rejected(drafted[part.n_accepted :])
        return n_made


class _Choice(NamedTuple):
    token: int
    is_drafted: bool  # it stays because it was drafted, and so does what follows


class _OneByOne(Verifier):
    """A verifier that picks one row after the other."""

    def accept(self, part: SequenceRows, output: HostOutput, first: int) -> int:
        sequence, draft, n_made = part.sequence, part.draft, 0
        choice = _Choice(-1, is_drafted=True)
        try:
            while choice.is_drafted and sequence.stop_reason is None:
                row = first + n_made
                choice = self._choose(sequence, output, row, draft, n_made)
                source = draft.sources[n_made] if choice.is_drafted else TARGET
                sequence.emit(choice.token, output, row, source)
                n_made += 1
        except (NonFiniteError, NothingLeftError) as error:
            sequence.end(ERROR, error)
        part.n_accepted = n_made if choice.is_drafted else n_made - 1
        if sequence.params.with_rejected:
            sequence.add_rejected(draft.tokens[part.n_accepted :])
        return n_made

    @abstractmethod
    def _choose(
        self, sequence: Sequence, output: HostOutput, row: int, draft: Draft, place: int
    ) -> _Choice:
        """The token after the last one; `place` in the draft, or behind it."""


class RatioVerifier(_OneByOne):
    """Acceptance by p/q: the text has the distribution of plain decoding, but is another text.

    What the target draws here has noise of its own: a drafter may use any other, that of plain
    picks included, without changing the distribution.
    """

    mode = modes.RATIO

    def __init__(self) -> None:
        self._match = MatchVerifier()

    def check(self, sampler: Sampler) -> None:
        if not (sampler.has_distribution or sampler.is_certain):
            raise ConfigError(
                "spec-accept ratio needs to know how likely each token is, which mirostat and "
                "adaptive-p do not say; use --spec-accept match"
            )

    def picks_every_row(self, sampler: Sampler) -> bool:
        return sampler.is_certain

    def accept(self, part: SequenceRows, output: HostOutput, first: int) -> int:
        if part.sequence.sampler.is_certain:  # the same outcome for less work
            return self._match.accept(part, output, first)
        return super().accept(part, output, first)

    def _choose(
        self, sequence: Sequence, output: HostOutput, row: int, draft: Draft, place: int
    ) -> _Choice:
        sampler, position = sequence.sampler, sequence.position
        history = sequence.real_tokens
        maxima = None if output.maxima is None else output.maxima[row]
        distribution = sampler.distribution(output.logits[row], history, position, maxima)
        if place < len(draft.tokens):
            token = draft.tokens[place]
            drafter = draft.distributions[place] if place < len(draft.distributions) else None
            if sampler.coin(position, ACCEPT_COIN) < chance(distribution, drafter, token):
                return _Choice(token, is_drafted=True)
            distribution = residual(distribution, drafter, token)
        return _Choice(sampler.draw(distribution, position, RESIDUAL), is_drafted=False)


class RelaxedVerifier(_OneByOne):
    """Sample and match, and within a thought also what is nearly as good. Lossy."""

    mode = modes.RELAXED

    def __init__(self, acceptance: Acceptance, tokenizer: Tokenizer) -> None:
        self._top_n, self._delta = acceptance.top_n, acceptance.delta
        self._marks = None if acceptance.always else find_thinking_marks(tokenizer)
        if self._marks is None and not acceptance.always:
            raise ConfigError(
                "spec-accept relaxed is for the thinking phase, but this model has no tokens that "
                "open and close it; relaxed:top_n,delta,always would be lossy everywhere"
            )
        # What ends the text or the thought has to be the target's own choice.
        self._never = tokenizer.eog_ids | frozenset(self._marks or ())

    def _choose(
        self, sequence: Sequence, output: HostOutput, row: int, draft: Draft, place: int
    ) -> _Choice:
        picked = sequence.pick(output, row)
        if place >= len(draft.tokens):
            return _Choice(picked, is_drafted=False)
        token = draft.tokens[place]
        if picked == token:
            return _Choice(picked, is_drafted=True)
        if token in self._never or picked in self._never or not self._is_thought(sequence):
            return _Choice(picked, is_drafted=False)
        position = sequence.position
        allowed = sequence.sampler.allowed(output.logits[row], sequence.real_tokens, position)
        if not is_nearly_best(allowed, token, self._top_n, self._delta):
            return _Choice(picked, is_drafted=False)
        sequence.stats.relaxed_n += 1
        return _Choice(token, is_drafted=True)

    def _is_thought(self, sequence: Sequence) -> bool:
        if self._marks is None:
            return True
        if sequence.phase is None:
            sequence.phase = Phase(*self._marks)
        return sequence.phase.is_open(sequence.tokens)


class SyntheticVerifier(_OneByOne):
    """Coins decide which draft tokens hold: for benchmarks. The rows of those that do are not
    sampled, so that the figures do not pay for what a real acceptance does not do twice."""

    mode = modes.SYNTHETIC

    def __init__(self, acceptance: Acceptance, tokenizer: Tokenizer) -> None:
        self._chances = self.round_chances = acceptance.chances
        self._never = tokenizer.eog_ids

    def check(self, sampler: Sampler) -> None:
        if sampler.grammar is not None:
            raise ConfigError(
                "synthetic acceptance keeps draft tokens that no grammar has seen; "
                "leave out the grammar or JSON schema, or --spec-synth-len and --spec-synth-rates"
            )

    def picks_every_row(self, sampler: Sampler) -> bool:
        return False

    def _choose(
        self, sequence: Sequence, output: HostOutput, row: int, draft: Draft, place: int
    ) -> _Choice:
        if place < min(len(draft.tokens), len(self._chances)):
            token, sampler = draft.tokens[place], sequence.sampler
            coin = sampler.coin(sequence.position, ACCEPT_COIN)
            if coin < self._chances[place] and token not in self._never:
                return _Choice(token, is_drafted=True)
        return _Choice(sequence.pick(output, row), is_drafted=False)
