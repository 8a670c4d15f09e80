"""Answers of a target to requests, several at once, in the order of the requests.

Every text depends on its own request and seed alone, so a run that was stopped goes on with the
texts that it would have written.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ...core.bench.prompt_tokens import PromptRenderer
from ...core.bench.record import Prompt
from ...core.engine.engine import Engine
from ...core.engine.sequence import Sequence as EngineSequence
from ...core.errors import ConfigError
from ...core.generation import LIMIT, GenerateParams
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from .own_questions import OwnQuestions
from .text_store import TextStore
from .training_requests import OWN_QUESTION, RequestSource

AT_ONCE: Final = 8
LONGEST_REQUEST: Final = 384  # tokens; longer ones are left out
LONGEST_ANSWER: Final = 224
N_CTX: Final = LONGEST_REQUEST + LONGEST_ANSWER
MOST_LEFT_OUT: Final = 1000  # in a row, before it is said that none fits
TRIED_TOKENS: Final = 24  # of each text while the speed is measured


class Writing(Struct):
    prompt: Prompt
    seed: int
    sequence: EngineSequence
    is_question: bool = False  # the target writes the prompt


class AnswerWriter:
    def __init__(
        self,
        runtime: Runtime,
        source: RequestSource,
        sampling: SamplingParams,
        store: TextStore,
        seed: int,
    ) -> None:
        self._runtime, self._source, self._store = runtime, source, store
        self._sampling, self._seed = sampling, seed
        self._renderer = PromptRenderer(runtime)
        self._questions = OwnQuestions(runtime, self._renderer, LONGEST_REQUEST)
        self._next = 0  # request

    def speed(self) -> float:
        """Tokens per second, measured on the first requests; nothing is kept."""
        engine = self._runtime.new_engine(self._runtime.plan(AT_ONCE))
        for _ in range(AT_ONCE):
            self._begin(engine, TRIED_TOKENS)
        self._next = 0
        began, n = time.monotonic(), 0
        while engine.has_work:
            n += len(engine.step())
        engine.close()
        return n / (time.monotonic() - began)

    def run(self, n_tokens: int, show: Callable[[int], None]) -> None:
        """Until the store has so many tokens of answers. `show` gets how many there are."""
        store = self._store
        if store.n_answered >= n_tokens:
            return
        engine = self._runtime.new_engine(self._runtime.plan(AT_ONCE))
        self._next = 0
        for _ in store.texts:  # those that are there
            self._next_request()
        active: dict[int, Writing] = {}
        waiting: list[Writing] = []  # in order
        while store.n_answered < n_tokens:
            while len(active) < AT_ONCE:
                written = self._begin(engine, LONGEST_ANSWER)
                active[written.sequence.id] = written
                waiting.append(written)
            for event in engine.step():
                if event.error is not None:
                    raise event.error
                if event.stop_reason is not None:
                    ended = active.pop(event.sequence)
                    if ended.is_question:
                        self._answer(engine, ended, event.stop_reason)
                        active[ended.sequence.id] = ended
            while waiting and waiting[0].sequence.stop_reason is not None:
                if store.n_answered >= n_tokens:
                    break
                text = waiting.pop(0)
                store.add(text.sequence.tokens, text.sequence.n_prompt, text.prompt.category)
                show(store.n_answered)
        engine.close()

    def _begin(self, engine: Engine, n_tokens: int) -> Writing:
        i, prompt, tokens = self._next_request()
        seed = random.Random(f"answer {self._seed} {i}").randrange(1 << 31)
        if prompt.category == OWN_QUESTION and self._questions.opening:
            question = engine.add(self._questions.opening, self._questions.params(seed))
            return Writing(prompt, seed, question, is_question=True)
        return Writing(prompt, seed, engine.add(tokens, self._params(seed, n_tokens)))

    def _answer(self, engine: Engine, asked: Writing, reason: str) -> None:
        """Have the question answered that is now written."""
        written = asked.sequence.tokens[asked.sequence.n_prompt :]
        is_cut = reason == LIMIT
        asked.prompt = self._questions.prompt(asked.prompt, written, is_cut=is_cut)
        tokens = request_tokens(self._renderer, asked.prompt)
        asked.sequence = engine.add(tokens, self._params(asked.seed, LONGEST_ANSWER))
        asked.is_question = False

    def _params(self, seed: int, n_tokens: int) -> GenerateParams:
        return GenerateParams(replace(self._sampling, seed=seed), max_tokens=n_tokens, reuse=False)

    def _next_request(self) -> tuple[int, Prompt, list[int]]:
        for _ in range(MOST_LEFT_OUT):
            i = self._next
            self._next += 1
            prompt = self._source.request(i)
            tokens = request_tokens(self._renderer, prompt)
            if 0 < len(tokens) <= LONGEST_REQUEST:
                return i, prompt, tokens
        raise ConfigError(
            f"{self._source.name}: its prompts are longer than {LONGEST_REQUEST} tokens; give "
            "shorter ones, or the texts themselves with --texts"
        )


def request_tokens(renderer: PromptRenderer, prompt: Prompt) -> list[int]:
    if not prompt.turns:
        return renderer.text(prompt.text)
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return renderer.chat([*system, {"role": "user", "content": prompt.turns[0]}])
