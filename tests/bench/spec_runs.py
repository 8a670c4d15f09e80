"""Engines of different settings over the same loaded weights, and what they write in how long."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from nextn.core.backend.interface import HostOutput
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import SequenceRows, Verifier
from nextn.core.generation import ERROR, TARGET, GenerateParams, Stats
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.acceptance import MATCH, Acceptance
from nextn.core.speculation.build import make_policy, make_speculators, resolve_types
from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.options import BY_DEFAULT, MTP, NO_SPECULATION, SpecOptions
from nextn.core.speculation.policy.fixed import FixedPolicy
from nextn.core.speculation.rounds import Policy, Round
from nextn.core.state.sizes import PREFILL_CHUNK

from .figures import spread

PLAIN, AUTO = NO_SPECULATION, BY_DEFAULT


def fixed_mtp(n: int, **others: Any) -> SpecOptions:
    return SpecOptions(types=(MTP,), draft_n_max=n, fixed=True, **others)


def new_engine(
    runtime: Runtime, options: SpecOptions, n_slots: int = 1, policy: Policy | None = None
) -> Engine:
    """As `spec` makes one, but what is drafted does not depend on what was counted earlier on this
    machine. `policy`: instead of the one that the options name."""
    setting = replace(runtime.setting(n_slots), options=options, token_counts=None)
    types = resolve_types(setting)
    acceptance = options.acceptance(types) if options.is_synthetic else Acceptance()
    drafter = None
    if types:
        drafter = CompositeSpeculator(make_speculators(setting), policy or make_policy(options))
    config = EngineConfig(
        runtime.plan(n_slots).sizes,
        chunk=runtime.backend.prompt_chunk or PREFILL_CHUNK,
        batch_invariant=runtime.backend.batch_invariant,
        acceptance=acceptance,
    )
    return Engine(runtime.model, runtime.backend, runtime.tokenizer, config, drafter=drafter)


class Watching(FixedPolicy):
    """Keeps what steps take, by rows, and drafts, by length: ms."""

    def __init__(self) -> None:
        self.steps: dict[int, list[float]] = {}
        self.drafts: dict[int, list[float]] = {}

    def observe_step(self, decided: Round | None, n_rows: int, n_ctx: int, ms: float) -> None:
        self.steps.setdefault(n_rows, []).append(ms)

    def observe_draft(
        self, decided: Round, source: str, n_tokens: int, n_sequences: int, ms: float,
        n_pending: int = 0,
    ) -> None:  # fmt: skip
        self.drafts.setdefault(n_tokens, []).append(ms)

    def forget(self) -> None:
        self.steps.clear()
        self.drafts.clear()


@dataclass(frozen=True)
class Task:
    """A prompt, and how many tokens are written. `script`: the target writes these, whatever it
    thinks of them, as a larger model would that can do what it is told."""

    prompt: list[int]
    n: int
    script: list[int] | None = None


@dataclass
class Written:
    tokens: list[int]  # without the prompt
    n: int  # tokens after the first step that made some
    seconds: float  # that they took
    stats: Stats


@dataclass
class Pace:
    """Of several texts together."""

    n: int = 0
    seconds: float = 0.0
    texts: list[list[int]] = field(default_factory=list)
    steps: int = 0

    def add(self, written: Written) -> None:
        self.n, self.seconds = self.n + written.n, self.seconds + written.seconds
        self.steps += written.stats.steps
        self.texts.append(written.tokens)

    @property
    def rate(self) -> float:
        return self.n / self.seconds


def write(engine: Engine, task: Task, temperature: float, seed: int, owner: str) -> Written:
    """One text. `owner`: n-grams of one owner's texts are not drafted for another, so that a task
    which is repeated does not find its own result."""
    sampling = SamplingParams(temperature=temperature, seed=seed)
    params = GenerateParams(sampling, max_tokens=task.n, ignore_eos=True, owner=owner)
    if task.script is not None:
        engine._verifier = Dictated(task.script)
    sequence = engine.add(task.prompt, params)
    while not sequence.stats.steps and engine.has_work:
        engine.step()
    start, before = time.perf_counter(), len(sequence.tokens)
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - start
    if sequence.stop_reason == ERROR:
        raise AssertionError("a text ended with an error: nothing was measured")
    tokens = sequence.tokens[sequence.n_prompt :]
    return Written(tokens, len(sequence.tokens) - before, seconds, sequence.stats)


def write_all(engine: Engine, tasks: Sequence[Task], temperature: float, owner: str) -> Pace:
    pace, own = Pace(), engine._verifier
    for i, task in enumerate(tasks):
        pace.add(write(engine, task, temperature, i, f"{owner} {i}"))
        engine._verifier = own
    return pace


class Dictated(Verifier):
    """The target's tokens are given. It picks its own too, to take as long as it would."""

    mode = MATCH

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script

    def accept(self, part: SequenceRows, output: HostOutput, first: int) -> int:
        sequence, draft, n_made, is_hit = part.sequence, part.draft, 0, True
        while is_hit and sequence.stop_reason is None:
            sequence.pick(output, first + n_made)
            token = self._script[len(sequence.tokens) - sequence.n_prompt]
            is_hit = n_made < len(draft.tokens) and draft.tokens[n_made] == token
            source = draft.sources[n_made] if is_hit else TARGET
            sequence.emit(token, output, first + n_made, source)
            n_made += 1
        part.n_accepted = n_made if is_hit else n_made - 1
        return n_made


def interleaved(runs: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """One of each in every round, forwards and backwards in turn; round 0 is thrown away."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        names = list(runs)[:: 1 if i % 2 else -1]
        for name in names:
            found[name].append(runs[name](i))
    return {name: values[1:] for name, values in found.items()}


def ratio(some: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios within a round: the machine is not equally fast in all of them."""
    return statistics.median(a / b for a, b in zip(some, others, strict=True))


def spreads(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {name: spread(values) for name, values in found.items()}
