"""What the parts of a benchmark hand to each other, and what its files hold.

`Prompt`s go into a `Target`, `Sample`s come out, a `BenchReport` holds all of it. Samples are raw:
every figure of a run can be computed again from its file.

Imports nothing heavy, on purpose: reports are read and compared where no model is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct, field

from ..errors import ConfigError

T = TypeVar("T")
SCHEMA: Final = 1  # goes up when an older reader would misread a file
FORMAT: Final = "nextn-bench"


def encode(value: Any) -> Any:
    """Plain lists, dicts, numbers and text. Fields that hold their default are kept."""
    return msgspec.to_builtins(value, str_keys=True)


def decode(kind: type[T], value: Any) -> T:
    """A ConfigError names the part of `value` that is not what `kind` declares. Unknown keys are
    skipped: a newer version may have written them."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise ConfigError(f"not a report of bench-spec: {error}") from None


# Prompts -----------------------------------------------------------------------------------------


class Prompt(Struct, frozen=True):
    """One task. Exactly one of `text` and `turns` is given."""

    id: str  # unique in its set
    category: str
    text: str = ""  # to be continued as it stands
    turns: tuple[str, ...] = ()  # of the user, one after the other; answered in between
    system: str = ""  # before the first turn
    max_tokens: int = 128  # of each turn

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.turns):
            raise ConfigError(f"prompt {self.id!r} needs either a text or turns")
        if self.max_tokens < 1:
            raise ConfigError(f"prompt {self.id!r}: max_tokens must be at least 1")

    @property
    def n_turns(self) -> int:
        return len(self.turns) or 1


class PromptSet(Struct, frozen=True):
    name: str
    prompts: tuple[Prompt, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for prompt in self.prompts:
            if prompt.id in seen:
                raise ConfigError(f"two prompts of {self.name} are called {prompt.id!r}")
            seen.add(prompt.id)

    @property
    def sha256(self) -> str:
        """The hash of the contents: the same texts under another name are the same set."""
        text = json.dumps(encode(self.prompts), ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(prompt.category for prompt in self.prompts))


# Running -----------------------------------------------------------------------------------------


class RunSettings(Struct, frozen=True):
    """How texts are written, by every configuration alike."""

    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None  # instead of those of the prompts
    ignore_eos: bool = True  # go on where the model would end the text


class Chunk(NamedTuple):
    """Tokens that came together: those of one step here, of one event of a server."""

    ms: float  # since the request began
    n: int  # tokens; 0 if unknown


class SourceCount(NamedTuple):
    """The work of one drafter."""

    drafted: int
    accepted: int
    ms: float


class Phases(NamedTuple):
    """Where the time of the rounds of one text went, ms in all."""

    draft: float
    verify: float  # the pass of the target
    sampling: float  # picking tokens and comparing them with the draft
    settle: float  # updating drafters, moving states
    other: float = 0.0  # the rest of the rounds


class Sample(Struct):
    """One text (of a chat: one turn) by one configuration.

    A *round* is a pass of the target after the one that finished the prompt. Unknown is None:
    servers differ in what they report.
    """

    configuration: str
    prompt: str  # Prompt.id
    category: str
    turn: int = 0
    repetition: int = 0  # -1: warm-up, not to be counted
    concurrency: int = 1
    group: int = 0  # prompts that ran at once have the same; set by the caller, as the next two
    order: int = 0  # place in the run: samples in the order in which they began
    started_s: float = 0.0  # since the run began
    prompt_n: int = 0
    cached_n: int = 0  # of these, not read again
    predicted_n: int = 0
    tokens: list[int] | None = None
    text: str | None = None  # where there are no tokens
    chunks: list[Chunk] = field(default_factory=list)
    prompt_ms: float = 0.0  # by the clock of the engine or server
    predicted_ms: float = 0.0  # likewise; may cover another span than `decode_ms`
    total_ms: float = 0.0  # from the request to its end, as seen from outside
    rounds: int | None = None
    drafts: int | None = None  # rounds that had a draft
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    drafted_per_pos: list[int] | None = None  # drafts that had a token at this place
    accepted_per_pos: list[int] | None = None  # drafts whose token at this place was accepted
    by_source: dict[str, SourceCount] = field(default_factory=dict)
    phases: Phases | None = None  # of texts that had the engine to themselves
    stop_reason: str = ""
    error: str = ""  # it failed; nothing else in it counts

    @property
    def ttft_ms(self) -> float:
        return self.chunks[0].ms if self.chunks else self.total_ms

    @property
    def decode_n(self) -> int:
        """Tokens after the first chunk: what `decode_ms` was spent on."""
        return sum(chunk.n for chunk in self.chunks[1:])

    @property
    def decode_ms(self) -> float:
        return self.chunks[-1].ms - self.chunks[0].ms if self.chunks else 0.0

    @property
    def output(self) -> list[int] | str | None:
        """The part that has to be equal between configurations."""
        return self.tokens if self.tokens is not None else self.text


class Target(Protocol):
    """Something that writes texts: engines in this process, or a server."""

    name: str

    def describe(self) -> dict[str, Any]:
        """Where its figures come from: file, hash, device, options, version."""

    def memory(self) -> dict[str, int]:
        """Bytes, by what takes them; empty if unknown."""

    def run(
        self, prompts: Sequence[Prompt], settings: RunSettings, concurrency: int = 1
    ) -> Iterator[Sample]:
        """Write all texts, so many at once, and yield each turn when it has ended, with nothing
        reused from other calls or other prompts (turns of one prompt may reuse each other).

        `configuration`, `prompt`, `category`, `turn`, `concurrency` and everything measured are
        set; `repetition`, `group`, `order` and `started_s` are the caller's.
        """

    def close(self) -> None: ...


# Results -----------------------------------------------------------------------------------------


class Interval(NamedTuple):
    low: float
    value: float
    high: float


class TimeSpread(NamedTuple):
    """Of a time, ms."""

    mean: float
    p50: float
    p95: float


class SummaryCounts(Struct):
    """What repeats exactly where drafts do not depend on a clock: of one repetition then, of all
    of them otherwise."""

    n_samples: int = 0  # texts
    prompt_n: int = 0
    predicted_n: int = 0
    rounds: int | None = None
    drafts: int | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    accept_rate: float | None = None  # accepted / drafted; never to be compared across lengths
    mean_len: float | None = None  # tokens per round, rounds without a draft included
    mean_len_drafted: float | None = None  # of rounds that had a draft
    accept_per_pos: list[float] = field(default_factory=list)  # first i all accepted / drafts
    accept_if_reached: list[float] = field(default_factory=list)  # and so was the one before
    histogram: list[int] = field(default_factory=list)  # drafts of which 0, 1, … were accepted
    by_source: dict[str, SourceCount] = field(default_factory=dict)  # ms of all repetitions
    repeats: bool = True  # every repetition had the same counts
    identical: bool | None = None  # all texts are those of the baseline; None: it is that itself
    first_difference: str = ""  # prompt, place and both values


class Times(Struct):
    """Figures of the clock. Rates are tokens/s of decoding: total tokens by total time."""

    n_blocks: int = 0  # pairs that times and intervals come from
    n_disturbed: int = 0  # pairs that were set aside
    avg_ts: float = 0.0  # per user
    stddev_ts: float = 0.0  # between repetitions
    samples_ts: list[float] = field(default_factory=list)  # of each repetition
    aggregate_ts: float | None = None  # all users together, with concurrency
    prompt_ts: float = 0.0
    ttft: TimeSpread | None = None
    itl_chunk: TimeSpread | None = None  # between two chunks
    itl_token: TimeSpread | None = None  # the same, each token an equal part of its chunk
    round_ms: float | None = None
    phases: Phases | None = None  # ms per round
    break_even_len: float | None = None  # tokens per round from which on it is a gain
    speedup: Interval | None = None  # of decoding, against the baseline
    wall_speedup: Interval | None = None  # prompt included
    prompt_speedup: Interval | None = None
    drift: float | None = None  # rate of the last third of the run by that of the first


class Summary(Struct):
    configuration: str
    category: str  # "" for all together
    concurrency: int
    counts: SummaryCounts = field(default_factory=SummaryCounts)
    times: Times = field(default_factory=Times)

    @property
    def label(self) -> str:
        """The configuration, with the number of users where it is not one."""
        users = "" if self.concurrency == 1 else f", {self.concurrency} users"
        return self.configuration + users


class Configuration(Struct):
    name: str  # as the user spelled it
    repeats: bool  # drafts do not depend on a clock: counts must repeat exactly
    lossless: bool  # its texts must be those of the baseline
    details: dict[str, Any] = field(default_factory=dict)  # Target.describe()
    memory: dict[str, int] = field(default_factory=dict)  # Target.memory()


class GateResult(Struct):
    gate: str  # the flag, without dashes
    configuration: str
    ok: bool
    line: str  # the measured value, and the limit


class CurvePoint(Struct):
    """Of a sweep with synthetic acceptance."""

    n_max: int
    asked_len: float
    mean_len: float  # as it came out
    speedup: Interval
    round_ms: float
    break_even_len: float | None = None


class BenchReport(Struct):
    """`baseline` is the name of the configuration that the others are compared with."""

    provenance: dict[str, Any]
    prompt_set: str
    prompt_set_sha256: str
    settings: RunSettings
    baseline: str
    configurations: list[Configuration] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)
    gates: list[GateResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)  # of the prompts, in their order
    format: str = FORMAT
    schema: int = SCHEMA

    def summary(
        self, configuration: str, category: str = "", concurrency: int = 1
    ) -> Summary | None:
        for each in self.summaries:
            if (each.configuration, each.category, each.concurrency) == (
                configuration, category, concurrency,
            ):  # fmt: skip
                return each
        return None

    def with_fewest_users(self, category: str = "") -> list[Summary]:
        """Summaries of this category ("" for all) with the fewest users that were measured."""
        found = [each for each in self.summaries if each.category == category]
        least = min((each.concurrency for each in found), default=1)
        return [each for each in found if each.concurrency == least]

    def shown_categories(self) -> list[str]:
        return list(dict.fromkeys(each.category for each in self.summaries if each.category))

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = encode(self)
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """ConfigError: no report, one of a newer version, or something in it is wrong."""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ConfigError("this is no report of bench-spec (-o json writes one)")
        schema = value.get("schema")
        if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
            raise ConfigError(
                f"the report has schema {schema!r}, this version reads {SCHEMA}; update nextn"
            )
        return decode(cls, value)
