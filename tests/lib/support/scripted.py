"""A model of a few lines whose next token depends on every token before it, exactly.

It goes through the engine like a real one: what it has seen lies in KV pages and, if recurrent, in
a slot with pending rows. Logits are hashes of both, so one wrong cell, slot or replay count changes
everything after it; and `next_logits` says what they must be, from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nextn.core.backend.draft_loop import HostBlockDraft, HostDraftLoop
from nextn.core.backend.interface import Backend, DraftLoopPlan, HostOutput, SlotImage, StateRoom
from nextn.core.backend.interface.device_loop import DeviceLoopPlan
from nextn.core.backend.layers import KvShape, RecurrentShape, StateShape
from nextn.core.backend.step import Step, n_kept
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence as EngineSequence
from nextn.core.generation import Event, GenerateParams
from nextn.core.models.model import Model
from nextn.core.sampling.logprobs import token_logprob
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import SavesState, Speculator
from nextn.core.state.sizes import StateSizes
from nextn.core.tokenizer import StreamDecoder, Tokenizer

N_VOCAB = 61
END = 60  # the token that ends a text
NEVER_WRITTEN = -99_999
_MODULUS = (1 << 61) - 1
_FACTOR = 1_000_003
_VOCAB = np.arange(1, N_VOCAB + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_EURO = "€".encode()  # three bytes: characters that tokens split

KV = StateShape((KvShape(1, 1, 1),))
HYBRID = StateShape((KvShape(1, 1, 1),), (RecurrentShape.of_heads(1, 1, 1, 1, 1),))


def digest(tokens: Sequence[int], start: int = 0) -> int:
    for token in tokens:
        start = (start * _FACTOR + int(token) + 1) % _MODULUS
    return start


def logits_of(kv: int, recurrent: int) -> NDArray[np.float32]:
    mixed = (_VOCAB * np.uint64(kv + 1)) ^ np.uint64(recurrent)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    row: NDArray[np.float32] = ((mixed >> np.uint64(40)) % np.uint64(10_007)).astype(np.float32)
    row /= np.float32(1_000)
    return row


def next_logits(
    tokens: Sequence[int], *, hybrid: bool, attention_window: int = 0
) -> NDArray[np.float32]:
    seen = digest(tokens)
    in_window = digest(tokens[-attention_window:]) if attention_window else 0
    return logits_of(seen ^ in_window, seen if hybrid else 0)


@dataclass
class ScriptedState:
    page_len: int
    cells: NDArray[np.int64]  # tokens
    stored: list[int]  # of each slot, before its first pending row
    pending: NDArray[np.int64]  # (slots, window) tokens
    windowed: NDArray[np.int64]  # tokens, in pages of their own


class ScriptedBackend:
    """What the engine uses of a `Backend`. `poison`: tokens after which logits are NaN.
    `attention_window`: another layer sees that many cells of a row."""

    name = state_format = "scripted"
    frees_windows = True
    prompt_chunk = None

    def __init__(
        self,
        *,
        hybrid: bool = False,
        poison: frozenset[int] = frozenset(),
        chains: bool = False,
        attention_window: int = 0,
    ) -> None:
        self.attention_window = attention_window
        self.hybrid, self.poison, self.drafts_in_one_call = hybrid, poison, chains
        self.n_steps = 0
        self.rows: list[int] = []  # of each step
        self.before_step: Callable[[Step], None] = lambda _step: None

    @property
    def state_shape(self) -> StateShape:
        shape = HYBRID if self.hybrid else KV
        if not self.attention_window:
            return shape
        return replace(shape, kv=(*shape.kv, KvShape(1, 1, 1, self.attention_window)))

    def new_state(self, shape: StateShape, room: StateRoom) -> ScriptedState:
        assert bool(shape.recurrent) == self.hybrid
        return ScriptedState(
            room.page_len,
            np.full(room.n_pages * room.page_len, NEVER_WRITTEN),
            [NEVER_WRITTEN] * room.n_slots,
            np.full((room.n_slots, room.window), NEVER_WRITTEN),
            np.full(room.n_windowed_pages * room.page_len, NEVER_WRITTEN),
        )

    def compile(
        self, forward: Any, state: ScriptedState, *, max_rows: int, taps: frozenset[str]
    ) -> Callable[[Step], HostOutput]:
        def run(step: Step) -> HostOutput:
            assert 0 < step.n_rows <= max_rows
            self.before_step(step)
            self.n_steps += 1
            self.rows.append(step.n_rows)
            rows = [row for b in range(step.n_sequences) for row in self._rows(step, b, state)]
            logits = [rows[i] for i in step.out_rows]
            return HostOutput(np.array(logits, np.float32).reshape(-1, N_VOCAB), {})

        return run

    def compile_draft_loop(
        self, forward: Any, state: ScriptedState, plan: DraftLoopPlan
    ) -> HostDraftLoop:
        run = self.compile(forward, state, max_rows=plan.max_rows, taps=plan.taps)
        return HostDraftLoop(run, plan, state.pending.shape[1])

    def compile_block_draft(
        self, forward: Any, state: ScriptedState, plan: DraftLoopPlan
    ) -> HostBlockDraft:
        return HostBlockDraft(
            self.compile(forward, state, max_rows=plan.max_rows, taps=plan.taps), plan, 0
        )

    def compile_device_loop(self, plan: DeviceLoopPlan) -> None:
        """It cannot."""

    def copy_pages(
        self, state: Any, sources: Sequence[int], targets: Sequence[int], *, windowed: bool = False
    ) -> None:
        pages = (state.windowed if windowed else state.cells).reshape(-1, state.page_len)
        for source, target in zip(sources, targets, strict=True):
            pages[target] = pages[source]

    def copy_slot(self, state: Any, source: int, target: int, n_pending: int) -> None:
        state.stored[target] = state.stored[source]
        state.pending[target] = state.pending[source]

    def save_slot(
        self,
        state: Any,
        slot: int,
        pages: Sequence[int],
        n_cells: int,
        n_pending: int,
        windowed_pages: Sequence[int] = (),
    ) -> SlotImage:
        image: SlotImage = {"cells": state.cells[_cells(state, pages, n_cells)]}
        if windowed_pages:
            n_gone = -(-n_cells // state.page_len) - len(windowed_pages)
            cells = _cells(state, windowed_pages, n_cells - n_gone * state.page_len)
            image["windowed"] = state.windowed[cells]
        if self.hybrid:
            image["stored"] = np.array([state.stored[slot]])
            image["pending"] = state.pending[slot].copy()
        return image

    def load_slot(
        self,
        state: Any,
        slot: int,
        pages: Sequence[int],
        image: Any,
        windowed_pages: Sequence[int] = (),
    ) -> None:
        if windowed_pages:
            cells = _cells(state, windowed_pages, len(image["windowed"]))
            state.windowed[cells] = image["windowed"]
        state.cells[_cells(state, pages, len(image["cells"]))] = image["cells"]
        if self.hybrid:
            state.stored[slot] = int(image["stored"][0])
            state.pending[slot] = image["pending"]

    def _rows(self, step: Step, b: int, state: ScriptedState) -> Iterator[NDArray[np.float32]]:
        tokens = step.tokens[step.rows(b)].tolist()
        past = int(step.past[b])
        assert step.positions[step.rows(b)].tolist() == [*range(past, past + len(tokens))]
        cells = _cells(state, step.pages[b], past + len(tokens))
        state.cells[cells[past:]] = tokens
        kv = digest(state.cells[cells[:past]].tolist())
        seen = self._recurrent(step, b, state, tokens) if self.hybrid else [0] * len(tokens)
        in_window = self._in_window(step, b, state, tokens)
        for token, recurrent, windowed in zip(tokens, seen, in_window, strict=True):
            kv = digest([token], kv)
            row = logits_of(kv ^ windowed, recurrent)
            yield row * np.nan if token in self.poison else row

    def _in_window(self, step: Step, b: int, state: ScriptedState, tokens: list[int]) -> list[int]:
        """The digest of what each row sees of the windowed layer."""
        if not self.attention_window:
            return [0] * len(tokens)
        assert step.windowed_pages is not None
        past = int(step.past[b])
        cells = _cells(state, step.windowed_pages[b], past + len(tokens))
        state.windowed[cells[past:]] = tokens
        return [
            digest(state.windowed[cells[max(0, end - self.attention_window) : end]].tolist())
            for end in range(past + 1, past + len(tokens) + 1)
        ]

    def _recurrent(self, step: Step, b: int, state: ScriptedState, tokens: list[int]) -> list[int]:
        """As `Backend.delta_rule` says. The digest after each row."""
        slot, window = int(step.slots[b]), state.pending.shape[1]
        assert not step.past[b] or step.n_pending_accepted[b] <= window
        replay = int(step.n_pending_accepted[b]) if step.past[b] else 0
        replayed = state.pending[slot, :replay].tolist()
        base = digest(replayed, state.stored[slot]) if step.past[b] else 0
        seen = [digest(tokens[: n + 1], base) for n in range(len(tokens))]
        n_final, kept = max(0, len(tokens) - window), n_kept(replay, len(tokens), window)
        if not kept:
            state.stored[slot] = seen[n_final - 1] if n_final else base
        state.pending[slot, kept:] = NEVER_WRITTEN
        state.pending[slot, kept : kept + len(tokens) - n_final] = tokens[n_final:]
        return seen


def _cells(state: Any, pages: Any, n_cells: int) -> NDArray[np.int64]:
    at = np.arange(n_cells)
    where: NDArray[np.int64] = np.asarray(pages, np.int64)[at // state.page_len] * state.page_len
    where += at % state.page_len
    return where


class ScriptedTokenizer:
    """Tokens 0-25 are letters, 26-49 pairs of them, 50-58 bytes of `€`, END has no text.
    `marks`: what else tokens are called."""

    eog_ids = frozenset({END})
    n_vocab = N_VOCAB

    def __init__(self, marks: dict[str, int] | None = None) -> None:
        self.marks = marks or {}

    def piece(self, token: int, *, show_special: bool = False) -> bytes:
        if token < 26:
            return bytes([97 + token])
        if token < 50:
            return bytes([97 + token - 26, 98 + token - 26])
        if token == END:
            return b"<end>" if show_special else b""
        return _EURO[token % 3 : token % 3 + 1]

    def find_token(self, text: str) -> int | None:
        return self.marks.get(text)

    def stream(self, *, continues: bool) -> StreamDecoder:
        assert continues
        return StreamDecoder(self.piece, drops_space=False)


def text_of(tokens: Sequence[int]) -> str:
    pieces = b"".join(map(ScriptedTokenizer().piece, tokens))
    return pieces.decode("utf-8", "replace")


SMALL = StateSizes(48, n_slots=3, n_checkpoints=3, page_len=4, window=5)


def make_engine(
    *,
    hybrid: bool = False,
    attention_window: int = 0,
    sizes: StateSizes = SMALL,
    drafter: Speculator | None = None,
    backend: ScriptedBackend | None = None,
    tokenizer: ScriptedTokenizer | None = None,
    **config: Any,
) -> Engine:
    backend = backend or ScriptedBackend(hybrid=hybrid, attention_window=attention_window)
    model = SimpleNamespace(
        state_shape=backend.state_shape,
        forward=None,
        hparams=SimpleNamespace(n_vocab=N_VOCAB),
        adapters=None,
    )
    return Engine(
        cast(Model, model),
        cast(Backend, backend),
        cast(Tokenizer, tokenizer or ScriptedTokenizer()),
        EngineConfig(sizes, **{"chunk": 8} | config),
        drafter=drafter,
        model_id="scripted",
    )


@dataclass
class Written:
    """A text as it has to come out."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def write_alone(
    prompt: Sequence[int],
    params: GenerateParams,
    *,
    hybrid: bool,
    n_ctx: int,
    index: int = 0,
    attention_window: int = 0,
) -> Written:
    """Token by token from the definition: no engine, no state. Stop strings are not looked at."""
    sampler = Sampler(params.sampling, n_vocab=N_VOCAB, sequence=index)
    sampler.begin(list(prompt))
    text, written = list(prompt), Written()
    end = n_ctx if params.max_tokens is None else min(n_ctx, len(prompt) + params.max_tokens)
    while len(text) < end and not (written.tokens and text[-1] == END):
        logits = next_logits(text, hybrid=hybrid, attention_window=attention_window)
        token = sampler.pick(logits, text, len(text))
        sampler.accept(token)
        text.append(token)
        written.tokens.append(token)
        written.logprobs.append(token_logprob(logits, token))
    return written


def drain(engine: Engine) -> list[Event]:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


class Oracle(Speculator, SavesState):
    """Drafts the text that it was told, with the faults that it was told to make."""

    def __init__(self, spoil: Callable[[int, int], int] | None = None, length: int = 64) -> None:
        """`spoil(number of the draft, place in it)` is added to a token; 0 leaves it right."""
        self.spoil = spoil or (lambda _number, _place: 0)
        self.length, self.texts, self.n_drafts = length, dict[int, list[int]](), 0
        self.n_vocab = N_VOCAB
        self.settled: list[tuple[int, int]] = []
        self.ended: list[int] = []

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        self.settled.append((sequence, n_accepted))

    def end(self, sequence: int) -> None:
        self.ended.append(sequence)

    def _draft(self, ask: DraftRequest) -> Draft:
        self.n_drafts += 1
        known = self.texts.get(ask.sequence, [])
        rest = known[len(ask.tokens) : len(ask.tokens) + self.length]
        tokens = [
            (token + self.spoil(self.n_drafts, place)) % self.n_vocab
            for place, token in enumerate(rest)
        ]
        return Draft(tokens, ["oracle"] * len(tokens), {"oracle": 1.0})


# What most tests of the engine ask for and look at.
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 3, 8, 1, 4, 4, 7, 2, 9, 11]


def params(n: int | None = 12, **more: Any) -> GenerateParams:
    return GenerateParams(GREEDY, max_tokens=n, **more)


def alone(prompt: list[int], how: GenerateParams, engine: Engine) -> list[int]:
    return write_alone_in(engine, prompt, how).tokens


def write_alone_in(engine: Engine, prompt: Sequence[int], how: GenerateParams) -> Written:
    """As its backend has to write it."""
    backend = cast(ScriptedBackend, engine.store.backend)
    return write_alone(
        prompt,
        how,
        hybrid=backend.hybrid,
        n_ctx=engine.config.sizes.n_ctx,
        attention_window=backend.attention_window,
    )


def made(sequence: EngineSequence) -> list[int]:
    return sequence.tokens[sequence.n_prompt :]


def of(sequence: EngineSequence, events: list[Event]) -> list[Event]:
    return [event for event in events if event.sequence == sequence.id]


def assert_nothing_is_held(engine: Engine) -> None:
    store = engine.store
    assert store.pool.n_held == 0
    assert store.pool.promised == 0
    assert store.windowed_pool is None or store.windowed_pool.n_held == 0
    assert store.slots.n_live == 0
    assert not engine.has_work
