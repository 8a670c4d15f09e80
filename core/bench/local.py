"""`LocalTarget`: an engine of one configuration, over weights that several share."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import fields, replace

from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..engine.sequence import Sequence as EngineSequence
from ..engine.stopwatch import Stopwatch
from ..generation import NO_TOKEN, Event, GenerateParams, Stats
from ..runtime import Runtime
from ..sampling.params import SamplingParams
from ..speculation.build import build_speculator, resolve_types
from ..speculation.options import SpecOptions
from .memory_use import memory_of
from .prompt_tokens import Message, PromptRenderer
from .record import (
    Chunk,
    Configuration,
    Phases,
    Prompt,
    RunSettings,
    Sample,
    SourceCount,
    encode,
)
from .variants import SpecVariant

_DEFAULTS: Final = SpecOptions()


@dataclass(eq=False)
class _Conversation:
    """The state of a prompt: its turns so far, and the text that is being written."""

    prompt: Prompt
    owner: str
    messages: list[Message] = field(default_factory=list)
    turn: int = -1
    text: EngineSequence | None = None
    began: float = 0.0
    chunks: list[Chunk] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    lap: tuple[float, ...] = ()  # of the stopwatch, when the first token was there
    error: str = ""


class LocalTarget:
    """Nothing is reused between prompts: caches are emptied, and n-grams of one prompt's texts
    are not drafted for another, nor for the same one later."""

    def __init__(self, runtime: Runtime, variant: SpecVariant) -> None:
        self.name, self.variant, self._runtime = variant.name, variant, runtime
        # What is drafted must not depend on what this machine has written earlier.
        self._setting = replace(
            runtime.setting(1), options=variant.options, token_counts=None, result_files={}
        )
        self._renderer = PromptRenderer(runtime)
        self._types = resolve_types(self._setting)
        self._engine: Engine | None = None
        self._n_slots = 0
        self._watch: Stopwatch | None = None
        self._n_calls = 0

    def describe(self) -> dict[str, Any]:
        options = self.variant.options
        changed = {
            each.name: getattr(options, each.name)
            for each in fields(options)
            if getattr(options, each.name) != getattr(_DEFAULTS, each.name)
        }
        draft = self._runtime.draft
        return {
            "kind": "local",
            "spec_types": list(self._types),
            "options": changed,
            "longest_draft": options.longest_draft(self._types),
            "draft_model": None if draft is None else draft.file.path.name,
        }

    def configuration(self, baseline: object) -> Configuration:
        details = json.loads(json.dumps(encode(self.describe())))  # as a file holds it
        variant = self.variant
        return Configuration(
            self.name, variant.repeats, variant.is_lossless, details, self.memory()
        )

    def memory(self) -> dict[str, int]:
        return memory_of(self._runtime, self._types, max(self._n_slots, 1))

    def prepare(self, concurrency: int) -> None:
        """Make the engine for so many texts at once. A ConfigError: what drafts cannot work with
        these files, or the state does not fit into memory."""
        if self._engine is not None and self._n_slots == concurrency:
            return
        self.close()
        setting = replace(self._setting, n_slots=concurrency)
        config = EngineConfig(
            self._runtime.plan(concurrency).sizes,
            acceptance=self.variant.options.acceptance(self._types),
        )
        runtime = self._runtime
        engine = Engine(
            runtime.model,
            runtime.backend,
            runtime.tokenizer,
            config,
            drafter=build_speculator(setting),
        )
        self._engine, self._n_slots = engine, concurrency
        self._watch = Stopwatch(engine.phase_times)

    def run(
        self, prompts: Sequence[Prompt], settings: RunSettings, concurrency: int = 1
    ) -> Generator[Sample, None, None]:
        self.prepare(concurrency)
        engine = self._engine
        assert engine is not None, "it was just made"
        self._n_calls += 1
        waiting = deque(_Conversation(each, f"{each.id} {self._n_calls}") for each in prompts)
        active: dict[int, _Conversation] = {}
        try:
            while waiting or active:
                while waiting and len(active) < concurrency:
                    if not active:
                        engine.forget()
                    self._begin(engine, chat := waiting.popleft(), settings, active)
                for chat in self._round(engine, active):
                    yield self._sample(chat, concurrency)
                    if chat.turn + 1 < chat.prompt.n_turns and not chat.error:
                        self._begin(engine, chat, settings, active)
        finally:
            for chat in active.values():  # the caller closed the iterator early
                if chat.text is not None:
                    engine.cancel(chat.text)
            if active:
                engine.step()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = self._watch = None
            gc.collect()

    def step(self, engine: Engine) -> list[Event]:
        """One round of all texts that are being written."""
        return engine.step()

    def _begin(
        self,
        engine: Engine,
        chat: _Conversation,
        settings: RunSettings,
        active: dict[int, _Conversation],
    ) -> None:
        prompt = chat.prompt
        chat.turn += 1
        if prompt.turns:
            if not chat.turn and prompt.system:
                chat.messages.append({"role": "system", "content": prompt.system})
            chat.messages.append({"role": "user", "content": prompt.turns[chat.turn]})
            tokens = self._renderer.chat(chat.messages)
        else:
            tokens = self._renderer.text(prompt.text)
        params = GenerateParams(
            SamplingParams(temperature=settings.temperature, seed=settings.seed),
            max_tokens=settings.max_tokens or prompt.max_tokens,
            ignore_eos=settings.ignore_eos,
            owner=chat.owner,
        )
        chat.chunks, chat.shown = [], []
        chat.began = time.perf_counter()
        chat.text = engine.add(tokens, params)
        active[chat.text.id] = chat

    def _round(self, engine: Engine, active: dict[int, _Conversation]) -> list[_Conversation]:
        """Those whose text has ended."""
        events = self.step(engine)
        now = time.perf_counter()
        n_made = Counter(event.sequence for event in events if event.token != NO_TOKEN)
        for id, n in n_made.items():
            if id not in active:
                continue
            chat = active[id]
            chat.chunks.append(Chunk(1000 * (now - chat.began), n))
            if not chat.lap and self._watch is not None:
                chat.lap = self._watch.lap()
        ended = []
        for event in events:
            if event.sequence not in active:
                continue
            chat = active[event.sequence]
            chat.shown.append(event.text)
            if event.stop_reason is not None:
                chat.error = "" if event.error is None else str(event.error)
                ended.append(active.pop(event.sequence))
        return ended

    def _sample(self, chat: _Conversation, concurrency: int) -> Sample:
        total_ms = 1000 * (time.perf_counter() - chat.began)
        text, prompt = chat.text, chat.prompt
        assert text is not None, "it has begun"
        stats = text.stats
        chat.messages.append({"role": "assistant", "content": "".join(chat.shown)})
        sample = Sample(
            self.name,
            prompt.id,
            prompt.category,
            turn=chat.turn,
            concurrency=concurrency,
            tokens=text.tokens[text.n_prompt :],
            chunks=chat.chunks,
            total_ms=total_ms,
            stop_reason=text.stop_reason or "",
            error=chat.error,
        )
        _count(sample, stats)
        if concurrency == 1 and chat.lap and self._watch is not None:
            sample.phases = _phases(chat.lap, self._watch.lap(), sample.decode_ms)
        chat.lap = ()
        return sample


def _count(sample: Sample, stats: Stats) -> None:
    sample.prompt_n, sample.cached_n = stats.prompt_n, stats.cached_n
    sample.predicted_n = stats.predicted_n
    sample.prompt_ms, sample.predicted_ms = stats.prompt_ms, stats.predicted_ms
    sample.rounds = max(0, stats.steps - 1)  # the first one finished the prompt
    sample.drafts, sample.draft_n = stats.drafts, stats.draft_n
    sample.draft_n_accepted = stats.draft_n_accepted
    sample.drafted_per_pos = list(stats.draft_per_pos)
    sample.accepted_per_pos = list(stats.accept_per_pos)
    sample.by_source = {
        name: SourceCount(each.drafted, each.accepted, each.ms)
        for name, each in stats.by_source.items()
    }


def _phases(before: tuple[float, ...], after: tuple[float, ...], decode_ms: float) -> Phases:
    draft, verify, sampling, settle = (1000 * (b - a) for a, b in zip(before, after, strict=True))
    other = max(0.0, decode_ms - draft - verify - sampling - settle)
    return Phases(draft, verify, sampling, settle, other)
