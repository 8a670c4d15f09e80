"""One sequence: its parameters, its tokens so far, and its state; its rows of a step, and the
contract of what accepts them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import Final

from msgspec import Struct, field

from ..backend.interface import HostOutput
from ..backend.picking import UNSURE
from ..errors import NextnError
from ..generation import (
    CANCELLED,
    CONTEXT,
    EOS,
    LIMIT,
    NO_TOKEN,
    PAUSED,
    STOP,
    TARGET,
    Event,
    GenerateParams,
    SourceStats,
    Stats,
)
from ..sampling.logprobs import distribution_logprobs, token_logprob, top_logprobs
from ..sampling.relaxed import Phase
from ..sampling.sampler import Sampler
from ..speculation.draft import Draft
from ..speculation.options import MAX_DRAFT
from ..state.embedded_rows import ModelPrompt
from ..state.snapshot import SequenceSnapshot
from ..state.store import SequenceState
from ..tokenizer import StreamDecoder
from .stops import StopFinder

_NEVER: Final = 1 << 60
_LEAST_LEFT: Final = 4  # tokens that leave or stay when a context is shifted
_NO_DRAFT: Final = Draft()  # shared by all that have none: not to be changed

# Called for each token with its source and the row of logits that it was picked from.
RowObserver = Callable[[int, str, HostOutput, int], None]


class Sequence:
    """The handle that `Engine.add` gives out. To read, not to write."""

    def __init__(
        self,
        id: int,
        prompt: ModelPrompt,
        params: GenerateParams,
        *,
        n_ctx: int,
        eog_ids: frozenset[int],
        stream: StreamDecoder,
        sampler: Sampler,
        verifier: Verifier,
    ) -> None:
        self.id, self.params, self.sampler, self.verifier = id, params, sampler, verifier
        self.scales: tuple[float, ...] = ()  # of LoRA adapters; empty: it follows none
        self.tokens = list(prompt.tokens)  # prompt and text
        # Those of them that the vocabulary knows; the same object if there are no others.
        self.real_tokens = prompt.real_tokens() if prompt.runs else self.tokens
        self.n_prompt = len(prompt)
        self.prompt, self._n_shared = prompt, prompt.n_shared
        self._n_ctx = n_ctx
        self._end_at = n_ctx if params.max_tokens is None else self.n_prompt + params.max_tokens
        # Rows of images cannot be read again behind others.
        self.context_shift = None if prompt.runs else params.shift
        if self.context_shift is not None and params.max_tokens is None:
            self._end_at = _NEVER
        self.n_dropped = 0  # tokens that left a full context
        keeps_prompt = self.context_shift is not None and self.context_shift.n_keep < 0
        self._n_kept = self.n_prompt if keeps_prompt else 0
        self.max_len, self._limit = self._lengths()
        self._thoughts: Phase | None = None  # if they are drafted for in their own way
        self.has_thoughts = False
        self.spec = params.spec
        self.update_spec()
        self.stop_reason: str | None = None
        self.events: deque[Event] = deque()  # that have not been taken yet
        self.stats = Stats(prompt_n=self.n_prompt)
        self.request = 0  # by which a backend picks its tokens beforehand, see `Step.requests`
        self.phase: Phase | None = None  # of its thinking, if its verifier looks for one
        self.state: SequenceState | None = None  # None while it waits and when it has ended
        self.saved: SequenceSnapshot | None = None  # what to begin with, instead of the prompt
        self.on_row: RowObserver | None = None
        self._is_stateless = sampler.is_stateless
        self._eog_ids = eog_ids
        self._stream, self._stops = stream, StopFinder(params.stop)
        self._lap = 0.0

    def track_thinking(self, thoughts: Phase) -> None:
        self._thoughts, self.has_thoughts = thoughts, True
        self.update_spec()

    def update_spec(self) -> None:
        """Use the speculation settings of the phase, thinking or not, that the sequence is in."""
        params = self.params
        if self._thoughts is not None and params.thinking_spec is not None:
            is_thinking = self._thoughts.is_open(self.tokens)
            self.spec = params.thinking_spec if is_thinking else params.spec
        longest = MAX_DRAFT if self.spec.n_max is None else self.spec.n_max
        self.max_draft = 0 if self.spec.is_off else longest

    @property
    def n_missing(self) -> int:
        """Tokens that may still be made."""
        return self.max_len - len(self.tokens)

    @property
    def n_shared(self) -> int:
        """By how much positions are less than tokens."""
        return self._n_shared - self.n_dropped

    @property
    def position(self) -> int:
        """Of the next token, by which its noise is drawn."""
        return len(self.tokens) - self.n_shared

    @property
    def is_full(self) -> bool:
        """Its context is, and it goes on from a part of it: see `shift`."""
        may_shift = self.context_shift is not None and self.stop_reason is None
        return may_shift and self.n_missing < 1

    def shift(self) -> None:
        """Drop tokens of a full context. What is left is read like a prompt."""
        assert self.context_shift is not None
        n = len(self.tokens)
        keep = min(self._n_kept or self.context_shift.n_keep, n - _LEAST_LEFT)
        drop = min(self.context_shift.n_discard or (n - keep) // 2, n - keep - 1)
        del self.tokens[keep : keep + drop]
        self.n_dropped += drop
        self.n_prompt, self._end_at = len(self.tokens), self._end_at - drop
        self.max_len, self._limit = self._lengths()
        self.sampler.drop(drop)
        for phase in (self._thoughts, self.phase):
            if phase is not None:
                phase.drop(drop)

    def _lengths(self) -> tuple[int, str]:
        """The most tokens, and why there are no more."""
        is_limited = self.params.max_tokens is not None and self._end_at <= self._n_ctx
        return min(self._end_at, self._n_ctx), LIMIT if is_limited else CONTEXT

    def pick(self, output: HostOutput, row: int) -> int:
        """The token after the last one."""
        if output.picked is not None and (token := output.picked[row]) != UNSURE:
            return token
        return self.sampler.pick_row(output, row, self.real_tokens, self.position)

    def emit(self, token: int, output: HostOutput, row: int, source: str = TARGET) -> None:
        """Append a token and its event."""
        own, best = self._weigh(token, output, row)
        self._append(token)
        if not self._is_stateless:
            self.sampler.accept(token)
        if self.on_row is not None:
            self.on_row(token, source, output, row)
        text, reason = self._show(token)
        found = self._stops.found
        self.events.append(Event(token, text, own, source, reason, best, found, self.id))
        self.stop_reason = reason

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        if self.real_tokens is not self.tokens:
            self.real_tokens.append(token)

    def _weigh(
        self, token: int, output: HostOutput, row: int
    ) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        """Log-probabilities of a token and of the best ones, before it is appended."""
        count = self.params.logprobs
        if count is None:
            return None, ()
        logits = output.logits[row]
        if not self.params.after_sampling:
            return token_logprob(logits, token), tuple(top_logprobs(logits, count))
        maxima = None if output.maxima is None else output.maxima[row]
        distribution = self.sampler.distribution_now(
            logits, self.real_tokens, self.position, maxima
        )
        own, best = distribution_logprobs(distribution, token, count)
        return own, tuple(best)

    def add_rejected(self, tokens: Tokens[int]) -> None:
        """Name the draft tokens in whose place the last token came."""
        if tokens and self.events[-1].token != NO_TOKEN:
            self.events[-1] = self.events[-1]._replace(rejected=tuple(tokens))

    def end(self, reason: str, error: NextnError | None = None) -> None:
        """Append the last event of a sequence that does not end with a token. Of a sequence that
        was saved, text that is held back comes when it goes on."""
        self._end("" if reason == PAUSED else self._flush(), reason, error)

    def interrupt(self) -> None:
        """End a sequence whose step was interrupted anywhere, at the last token with an event.

        Text that was held back may follow a token without one, and is dropped.
        """
        if not (self.events and self.events[-1].stop_reason):
            self._end("", CANCELLED)
        self.stop_reason = self.events[-1].stop_reason

    def _end(self, text: str, reason: str, error: NextnError | None = None) -> None:
        self.events.append(Event(NO_TOKEN, text, stop_reason=reason, sequence=self.id, error=error))
        self.stop_reason = reason

    def start(self, state: SequenceState) -> None:
        """The scheduler has admitted it."""
        self.state = state
        if self.prompt.runs:
            state.prompt = self.prompt
        if not self.stats.steps:  # after a shift it is admitted again
            self.stats.cached_n = state.n_reused
            self._lap = time.perf_counter()

    def replay_tokens(self, tokens: Tokens[int]) -> None:
        """Append tokens that were emitted before the sequence was saved.

        The sampler does not accept them again: its own state was saved.
        """
        for token in tokens:
            self._append(token)
            self._look_for_stops(self._stream.push(token))

    def _show(self, token: int) -> tuple[str, str | None]:
        if token in self._eog_ids:
            return self._flush(), EOS
        text = self._look_for_stops(self._stream.push(token))
        if self._stops.found is not None:
            return text, STOP
        if token in self.params.stop_ids:
            return text + self._flush(), EOS
        goes_on = self._limit == CONTEXT and self.context_shift is not None
        if len(self.tokens) >= self.max_len and not goes_on:
            return text + self._flush(), self._limit
        return text, None

    def _look_for_stops(self, text: str) -> str:
        """Returns what can be shown of it."""
        n_written = len(self.tokens) + self.n_dropped - self.stats.prompt_n
        if self.params.stop and n_written >= self.params.min_tokens:
            return self._stops.push(text)
        return text

    def _flush(self) -> str:
        return self._stops.push(self._stream.finish()) + self._stops.finish()

    # statistics

    def count(self, ran_at: float, n_made: int, draft: Draft, n_accepted: int) -> None:
        """A pass of the model ended at `ran_at`, and `n_made` of its tokens were taken: the first
        `n_accepted` because they had been drafted."""
        stats = self.stats
        if not stats.steps:
            stats.prompt_ms = 1000 * (ran_at - self._lap)
            self._lap = ran_at
        stats.steps += 1
        stats.predicted_n += n_made
        stats.predicted_ms = 1000 * (time.perf_counter() - self._lap)
        if draft.tokens:
            self._count_draft(draft, n_accepted)

    def _count_draft(self, draft: Draft, n_accepted: int) -> None:
        stats, n_drafted = self.stats, len(draft.tokens)
        stats.drafts += 1
        stats.draft_n += n_drafted
        stats.draft_n_accepted += n_accepted
        accepted, drafted = stats.accept_per_pos, stats.draft_per_pos
        if (missing := n_drafted - len(drafted)) > 0:
            accepted += [0] * missing
            drafted += [0] * missing
        drafted[:n_drafted] = [count + 1 for count in drafted[:n_drafted]]
        accepted[:n_accepted] = [count + 1 for count in accepted[:n_accepted]]
        for source in dict.fromkeys(draft.sources):
            counts = stats.by_source.setdefault(source, SourceStats())
            counts.drafted += draft.sources.count(source)
            counts.accepted += draft.sources[:n_accepted].count(source)
        for source, ms in draft.ms.items():
            stats.by_source.setdefault(source, SourceStats()).ms += ms


class SequenceRows(Struct, eq=False):
    """One sequence's rows of a step: the last token with a draft, or a piece of its prompt."""

    sequence: Sequence
    state: SequenceState
    tokens: list[int]
    n_out: int  # logits wanted, of the last so many rows
    max_draft: int = 0
    draft: Draft = field(default_factory=lambda: _NO_DRAFT)
    n_accepted: int = 0  # of the draft's tokens, once it was verified

    def add_draft(self, draft: Draft) -> None:
        """Behind the last token; at most `max_draft` tokens."""
        self.draft = draft
        self.tokens += draft.tokens
        self.n_out += len(draft.tokens)


class Verifier(ABC):
    mode: str  # of `Acceptance`
    # What a device loop needs to verify by itself (`DeviceLoopPlan.chances`); empty where only the
    # target's own picks are accepted, None where a device loop cannot verify in this way.
    round_chances: tuple[float, ...] | None = None

    def check(self, sampler: Sampler) -> None:
        """Refuse what cannot be verified in this way, with a ConfigError."""

    def picks_every_row(self, sampler: Sampler) -> bool:
        """Whether `Sequence.pick` is called for every row behind accepted ones, so that the backend
        may pick them all beforehand."""
        return True

    @abstractmethod
    def accept(self, part: SequenceRows, output: HostOutput, first: int) -> int:
        """Emit the tokens of one sequence, whose logits begin at row `first`; how many they are,
        1 to the draft's length + 1. Sets `part.n_accepted`.

        Each token is appended before the next row is read. Rows behind the end of the sequence, or
        behind a rejected token, are not read.
        """
