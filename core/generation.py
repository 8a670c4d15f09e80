"""The parameters of a generation, its events token by token, and its statistics."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from .errors import ConfigError, NextnError
from .sampling.params import SamplingParams
from .sampling.thought_limit import ThoughtLimit
from .speculation.request_spec import BY_DEFAULT, RequestSpec

# Stop reasons.
EOS: Final = "eos"  # the model ended the text
LIMIT: Final = "limit"  # max_tokens were made
CONTEXT: Final = "context"  # the context is full
STOP: Final = "stop"  # a stop string came up
CANCELLED: Final = "cancelled"
PAUSED: Final = "paused"  # it was saved, and goes on elsewhere
ERROR: Final = "error"

TARGET: Final = "target"  # the source of tokens that were not drafted
NO_TOKEN: Final = -1


class ContextShift(Struct, frozen=True):
    """A text whose context is full goes on from a part of it, which is read again."""

    n_keep: int = 0  # tokens of its beginning that stay; -1: those of the prompt
    n_discard: int = 0  # tokens behind these that go; 0: half of the rest


class GenerateParams(Struct, frozen=True):
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the model ends the text or the context is full
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    stop_ids: tuple[int, ...] = ()  # tokens that end the text, besides those of the vocabulary
    min_tokens: int = 0  # nothing ends the text before it has so many
    logprobs: int | None = None  # alternatives per token; 0: only its own; None: none
    after_sampling: bool = False  # log-probabilities after all samplers, not before
    ignore_eos: bool = False  # go on when the model ends the text
    grammar: str | None = None  # GBNF that the text has to follow
    json_schema: str | None = None  # JSON text of a schema that it has to follow
    regex: str | None = None  # that the whole text has to match
    forms: str | None = None  # alternatives, one of which it has to follow: see `sampling.forms`
    shift: ContextShift | None = None  # of a full context; None: it ends the text
    thoughts: ThoughtLimit | None = None  # how long they may be
    with_rejected: bool = False  # events list the draft tokens that were rejected
    owner: str = ""  # n-grams of one owner are not drafted for another
    reuse: bool = True  # start from the prefix cache
    adapters: tuple[float, ...] | None = None  # scales of LoRA adapters; None: those of the model
    spec: RequestSpec = BY_DEFAULT  # the choice among the speculators that are loaded
    thinking_spec: RequestSpec | None = None  # the same during thinking; None: as `spec`

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if isinstance(self.stop, str) or not all(isinstance(text, str) for text in self.stop):
            raise ConfigError(f"stop must be a list of strings, got {self.stop!r}")
        if "" in self.stop:
            raise ConfigError("a stop string is empty, which would end every text at once")
        rules = (self.grammar, self.json_schema, self.regex, self.forms)
        if sum(rule is not None for rule in rules) > 1:
            raise ConfigError("a grammar and a JSON schema cannot both be followed; give one")
        if self.min_tokens and self.is_restricted:
            raise ConfigError("min_tokens would leave nothing to say once the grammar is complete")
        if self.ignore_eos and self.is_restricted:
            raise ConfigError("ignore_eos would leave nothing to say once the grammar is complete")
        if self.logprobs is not None and self.logprobs < 0:
            raise ConfigError(f"logprobs must be at least 0, got {self.logprobs}")

    @property
    def is_restricted(self) -> bool:
        """Whether a grammar, a schema, a regular expression or forms restrict the text."""
        rules = (self.grammar, self.json_schema, self.regex, self.forms)
        return any(rule is not None for rule in rules)


class Event(NamedTuple):
    """One token. The last event of a generation, and no other, has a stop reason.

    A generation that was cancelled or failed ends with an event whose token is `NO_TOKEN`.
    """

    token: int
    text: str  # characters that are certain now; "" while a character or stop string may follow
    # Natural logarithm, under the model's own distribution, or with `after_sampling` under that
    # from which the token was drawn (-inf: it was kept by a rule that is lossy).
    logprob: float | None = None
    source: str = TARGET  # the drafter of the token, or TARGET
    stop_reason: str | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # the best tokens and theirs, best first
    stop_string: str | None = None  # the one that came up
    sequence: int = 0  # `Sequence.id`, where several are running
    error: NextnError | None = None  # why it failed
    rejected: tuple[int, ...] = ()  # draft tokens in its place, with `with_rejected`


class SourceStats(Struct):
    """What one drafter did."""

    drafted: int = 0
    accepted: int = 0
    ms: float = 0.0


class Stats(Struct):
    """Times and counts of one generation."""

    load_ms: float = 0.0
    prompt_n: int = 0
    prompt_ms: float = 0.0  # from the start of work on it to its last row
    predicted_n: int = 0
    predicted_ms: float = 0.0
    cached_n: int = 0  # tokens of the prompt that were in the prefix cache
    steps: int = 0  # passes of the model that made tokens
    drafts: int = 0  # of these, those that had a draft
    accept_mode: str = "match"  # which draft tokens were kept, see `Acceptance`
    relaxed_n: int = 0  # draft tokens that were kept though the model would not have written them
    draft_n: int = 0
    draft_n_accepted: int = 0
    accept_per_pos: list[int] = field(default_factory=list)  # accepted, by place in the draft
    draft_per_pos: list[int] = field(default_factory=list)  # drafted, by place
    by_source: dict[str, SourceStats] = field(default_factory=dict)

    @property
    def mean_accept_len(self) -> float:
        """Tokens per pass of the model."""
        return self.predicted_n / self.steps if self.steps else 0.0

    @property
    def accept_rates(self) -> list[float]:
        """Of the drafts that had a token at a place, those where it was accepted."""
        pairs = zip(self.accept_per_pos, self.draft_per_pos, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def prompt_per_second(self) -> float:
        return rate(self.prompt_n - self.cached_n, self.prompt_ms)

    @property
    def predicted_per_second(self) -> float:
        return rate(self.predicted_n, self.predicted_ms)

    def as_json(self) -> dict[str, Any]:
        """Under the names that `--json` prints."""
        sources = {
            name: {"drafted": s.drafted, "accepted": s.accepted, "ms": s.ms}
            for name, s in self.by_source.items()
        }
        values: dict[str, Any] = {name: getattr(self, name) for name in _PRINTED}
        places = {name: list(getattr(self, name)) for name in ("accept_per_pos", "draft_per_pos")}
        return values | places | {"by_source": sources}


_PRINTED: Final = (
    "prompt_n",
    "prompt_ms",
    "predicted_n",
    "predicted_ms",
    "prompt_per_second",
    "predicted_per_second",
    "load_ms",
    "draft_n",
    "draft_n_accepted",
    "steps",
    "mean_accept_len",
    "cached_n",
    "drafts",
    "accept_mode",
    "relaxed_n",
)


def rate(n: int, milliseconds: float) -> float:
    """Return the number per second."""
    return 1000 * n / milliseconds if milliseconds > 0 else 0.0
