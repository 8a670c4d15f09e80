"""A loaded model, ready to be asked: `load`, then `logits` or `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from .backend import create_backend
from .backend.interface import Backend, State
from .backend.layers import Floats
from .backend.step import Piece, build_step
from .errors import ConfigError
from .generation import CONTEXT, EOS, LIMIT, Event, GenerateParams, Stats
from .gguf.checks import check_vocabulary
from .gguf.reader import GgufFile, open_gguf
from .models import build_model
from .models.base import Model
from .sampling.sampler import logprobs, pick
from .tokenizer import Tokenizer, load_tokenizer

DEFAULT_CONTEXT = 8192  # tokens, if the model allows that many and nothing else is asked for
PAGE_LEN = 256  # cells of a KV page
PROMPT_ROWS = 512  # rows of a prompt in one step

Progress = Callable[[str, float], None]  # what is being done, and the fraction that is done


def load_runtime(
    path: str | Path,
    device: str = "auto",
    *,
    n_ctx: int | None = None,
    progress: Progress | None = None,
) -> Runtime:
    """Open, check and prepare a GGUF file. `device` as on the command line."""
    start, report = time.perf_counter(), progress or _silent
    backend = create_backend(device)
    report("reading", 0.0)
    file = open_gguf(path)
    check_vocabulary(file)
    model = build_model(file, backend)
    report("reading", 0.5)
    tokenizer = load_tokenizer(file.metadata)
    runtime = Runtime(file, model, backend, tokenizer, _context_length(model, n_ctx))
    runtime.stats.load_ms = 1000 * (time.perf_counter() - start)
    report("reading", 1.0)
    return runtime


class Runtime:
    def __init__(
        self, file: GgufFile, model: Model, backend: Backend, tokenizer: Tokenizer, n_ctx: int
    ) -> None:
        self.file, self.model, self.backend = file, model, backend
        self.tokenizer, self.n_ctx = tokenizer, n_ctx
        self.stats = Stats()

    @property
    def name(self) -> str:
        return self.file.metadata.str("general.name", "") or self.file.path.name

    @property
    def architecture(self) -> str:
        return self.model.hparams.architecture

    @property
    def device(self) -> str:
        return self.backend.name

    @property
    def n_vocab(self) -> int:
        return self.model.hparams.n_vocab

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """Logits of every row of one fresh sequence, (T, V)."""
        self._check_tokens(token_ids)
        text = self._new_text()
        pieces = [
            text.run(token_ids[i : i + PROMPT_ROWS], all_rows=True)
            for i in range(0, len(token_ids), PROMPT_ROWS)
        ]
        return np.concatenate(pieces)

    def generate(
        self, prompt: str | Sequence[int], params: GenerateParams | None = None
    ) -> Iterator[Event]:
        """Tokens as they are made. Closing the iterator ends the generation."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_tokens(tokens)
        if len(tokens) >= self.n_ctx:
            raise ConfigError(
                f"the prompt has {len(tokens)} tokens, which exceeds the available context size "
                f"of {self.n_ctx}; shorten it or give a larger -c"
            )
        return self._generate(tokens, params or GenerateParams())

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _generate(self, prompt: list[int], params: GenerateParams) -> Iterator[Event]:
        self.stats = Stats(load_ms=self.stats.load_ms, prompt_n=len(prompt))
        clock = _Clock()
        text = self._new_text()
        for i in range(0, len(prompt), PROMPT_ROWS):
            row = text.run(prompt[i : i + PROMPT_ROWS])[-1]
        self.stats.prompt_ms = clock.lap()
        budget = min(params.max_tokens or self.n_ctx, self.n_ctx - len(prompt))
        stream = self.tokenizer.stream()
        for made in range(1, budget + 1):
            token = pick(row, params.sampling, sequence=0, position=text.n_tokens)
            reason = self._stop_reason(token, made, budget, params)
            shown = stream.push(token) + (stream.finish() if reason else "")
            self.stats.predicted_n, self.stats.predicted_ms = made, clock.since_lap()
            yield Event(token, shown, float(logprobs(row)[token]), stop_reason=reason)
            if reason:
                return
            row = text.run([token])[-1]

    def _stop_reason(
        self, token: int, made: int, budget: int, params: GenerateParams
    ) -> str | None:
        if token in self.tokenizer.eog_ids:
            return EOS
        if made < budget:
            return None
        return LIMIT if budget == params.max_tokens else CONTEXT

    def _check_tokens(self, token_ids: Sequence[int]) -> None:
        if not len(token_ids):
            raise ConfigError("the prompt is empty, and this model has no token to begin with")
        for i, token in enumerate(token_ids):
            if not 0 <= token < self.n_vocab:
                raise ConfigError(
                    f"token id {token} at place {i} is outside the vocabulary of {self.n_vocab}"
                )

    def _new_text(self) -> _Text:
        n_pages = -(-self.n_ctx // PAGE_LEN)
        state = self.backend.new_state(
            self.model.state_shape, n_pages=n_pages, page_len=PAGE_LEN, n_slots=1, window=1
        )
        return _Text(self.model, self.backend, state, list(range(n_pages)))


@dataclass(slots=True)
class _Text:
    """One sequence that only ever grows."""

    model: Model
    backend: Backend
    state: State
    pages: list[int]
    n_tokens: int = 0
    replay: int = field(default=0)

    def run(self, tokens: Sequence[int], all_rows: bool = False) -> Floats:
        """Append tokens; logits of the last one or of all, (R, V)."""
        n_out = len(tokens) if all_rows else 1
        piece = Piece(tokens, self.n_tokens, self.pages, replay=self.replay, n_out=n_out)
        output = self.model.forward(self.backend, build_step([piece]), self.state)
        self.n_tokens += len(tokens)
        self.replay = 1  # the window is one row, and it holds
        return self.backend.to_host(output.logits)


class _Clock:
    """Milliseconds."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def since_lap(self) -> float:
        return 1000 * (time.perf_counter() - self.start)

    def lap(self) -> float:
        elapsed = self.since_lap()
        self.start = time.perf_counter()
        return elapsed


def _context_length(model: Model, n_ctx: int | None) -> int:
    if n_ctx is None:
        return min(model.hparams.n_ctx_train, DEFAULT_CONTEXT)
    if n_ctx < 1:
        raise ConfigError(f"the context size must be at least 1, got {n_ctx}")
    return n_ctx


def _silent(what: str, fraction: float) -> None:
    pass
