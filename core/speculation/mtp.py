"""`mtp`: the model's own multi-token head drafts, from the hidden rows that the target leaves.

Rows that turn out true are read by the head with the target's hidden rows: those of a prompt at
once, those of the text together with the next draft's first row, so that a draft of n tokens costs
n runs of the head. What the head wrote while it drafted is overwritten by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..backend.chain import ChainPlan, Chooser, DraftAsk, DraftRun
from ..backend.interface import Backend, HostOutput
from ..backend.step import Ints, Step
from ..errors import ConfigError
from ..models.mtp import H_NEXTN, MtpHead
from ..sampling.choosing import DraftSampler, DrawingSampler
from ..state.store import StateStore
from .acceptance import RATIO
from .draft_vocab import choose_tokens
from .interface import Ask, Draft, Opening, Seen, Speculator
from .mtp_heads import HeadsChain
from .mtp_text import MAX_WAITING, MtpText
from .options import MTP
from .table import Setting

KEPT_STEPS: Final = 12  # rows of those that come again and again


class MtpSpeculator(Speculator):
    name = MTP
    is_model = True
    taps = frozenset({H_NEXTN})

    def __init__(self, heads: Sequence[MtpHead], backend: Backend, setting: Setting) -> None:
        options = setting.options
        self._taken = _tokens_of_head(setting)
        if self._taken is not None:
            heads = [head.shortened(backend, self._taken) for head in heads]
        self._heads, self._width = heads, heads[0].n_embd
        self._backend = backend
        self._prefill, self._p_min = options.mtp_prefill, options.draft_p_min
        self._n_min, self.longest = options.draft_n_min, options.n_max
        if len(heads) > 1:
            self.longest = min(self.longest, len(heads))
        self._draws = options.accept == RATIO and not options.is_synthetic
        self._n_vocab = setting.target.model.hparams.n_vocab
        self._stops = setting.target.tokenizer.eog_ids
        self._max_rows = (MAX_WAITING + 1) * setting.n_slots
        self._texts: dict[int, MtpText] = {}
        self._choosers: dict[int, DraftSampler] = {}

    def attach(self, store: StateStore) -> None:
        self._store, self._rows = store, _Rows(store, self._width)
        store.reruns_last = True
        self._run = self._compile(store)

    def _compile(self, store: StateStore) -> DraftRun:
        heads, state, longest = self._heads, store.state, max(self.longest, 1)
        if len(heads) == 1:
            return self._backend.compile_chain(
                heads[0].forward,
                state,
                max_rows=self._max_rows,
                max_draft=longest,
                n_vocab=self._n_vocab,
                tap=H_NEXTN,
                taken=self._taken,
                stops=self._stops,
            )
        n_rows = self._max_rows + len(heads) * store.sizes.n_slots
        plan = ChainPlan(n_rows, longest, self._n_vocab, H_NEXTN, self._taken, self._stops)
        runs = [
            self._backend.compile(head.forward, state, max_rows=n_rows, taps=plan.taps)
            for head in heads
        ]
        return HeadsChain(runs, plan, store.sizes.window)

    def begin(self, opening: Opening) -> None:
        store, state = self._store, opening.state
        text = MtpText(state, len(opening.tokens), store.sizes.page_len, self._width)
        text.start(
            opening.tokens,
            opening.carry.get(self.name, b""),
            self._prefill,
            store.pool.n_drafter_cells,
            runs_again=not store.is_recurrent and state.n_cells > 0,
        )
        self._texts[opening.sequence] = text

    def observe(self, seen: Seen) -> None:
        step, rows = seen.step, seen.output.taps[H_NEXTN]
        if len(step.tokens) == 1:
            text = self._texts.get(seen.sequences[0])
            if text is not None and text.add_next(step.tokens, rows, step.positions):
                if text.room < 1:
                    text.forget()
                return
        for b, sequence in enumerate(seen.sequences):
            text = self._texts.get(sequence)
            n = seen.n_true[b]
            if text is None or not n:
                continue
            first = int(step.starts[b])
            position = int(step.positions[first])
            is_prompt = position + n <= text.n_prompt
            if n > text.room:
                self._make_room(text, is_prompt=is_prompt)
            text.add(step.tokens[first : first + n], rows[first : first + n], position)
            if is_prompt:
                self._catch_up(text)

    def n_pending(self, sequence: int) -> int:
        return self._texts[sequence].n_tokens

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        wanted, texts = [], []
        for ask in asks:
            text = self._texts[ask.sequence]
            length = min(ask.max_draft, self.longest)
            end = text.add_last(ask.tokens[-1])
            text.state.table.reserve(end - 1, end + length)
            chooser = self._chooser(ask)
            draws = isinstance(chooser, DrawingSampler)
            p_min = 0.0 if draws else max(self._p_min, ask.stop_below)
            wanted.append(DraftAsk(chooser, length, p_min))
            texts.append(text)
        drafts = self._run(self._rows.of(texts), wanted)
        marks = self._store.pool.n_drafter_cells
        for text in texts:
            text.read(text.n_tokens, marks)
        return [
            self._draft(ask.chooser, tokens, chances)
            for ask, tokens, chances in zip(wanted, drafts.tokens, drafts.chances, strict=True)
        ]

    def end(self, sequence: int) -> None:
        self._texts.pop(sequence, None)
        self._choosers.pop(sequence, None)

    def carry(self, sequence: int) -> dict[str, bytes]:
        text = self._texts[sequence]
        text.forget()
        self._catch_up(text)
        return {self.name: text.hidden[: text.n_hidden].tobytes()}

    def save(self, sequence: int) -> dict[str, bytes]:
        row = self.carry(sequence)[self.name]
        text = self._texts[sequence]
        return {"mtp": np.array([text.first, text.n_done], "<i8").tobytes() + row}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        if self.name in blobs:
            self._texts[sequence].resume(blobs[self.name])

    def _chooser(self, ask: Ask) -> DraftSampler:
        chooser = self._choosers.get(ask.sequence)
        if chooser is None:
            sampler = ask.sampler
            if self._draws and not sampler.is_certain:
                chooser = DrawingSampler(sampler, self._stops, self._p_min)
            else:
                chooser = DraftSampler(sampler)
            self._choosers[ask.sequence] = chooser
        chooser.restart(ask.tokens)
        return chooser

    def _draft(self, chooser: Chooser, tokens: list[int], chances: list[float]) -> Draft:
        if isinstance(chooser, DrawingSampler):
            # No beliefs, and no shortest length: nobody may choose among drafts by what was drawn.
            return Draft(tokens, [self.name] * len(tokens), laws=chooser.laws)
        if len(tokens) < self._n_min:
            tokens, chances = [], []
        return Draft(tokens, [self.name] * len(tokens), chances=chances)

    def _make_room(self, text: MtpText, *, is_prompt: bool) -> None:
        if is_prompt:
            self._catch_up(text)
        else:
            text.forget()

    def _catch_up(self, text: MtpText) -> None:
        """Read all that waits, without drafting."""
        if text.n_tokens:
            self._run(self._rows.of([text]), [_NOTHING])
            text.read(text.n_tokens, self._store.pool.n_drafter_cells)


class _Nobody(Chooser):
    request = 0

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        raise AssertionError("nothing is drafted")

    def accept(self, token: int) -> None:
        raise AssertionError("nothing is drafted")


_NOTHING: Final = DraftAsk(_Nobody(), 0)


class _Rows:
    """Steps of the head over what waits in texts."""

    def __init__(self, store: StateStore, width: int) -> None:
        self._store, self._width = store, width
        self._numbers = np.arange(store.sizes.n_ctx + 1, dtype=np.int32)
        self._kept: dict[int, Step] = {}

    def of(self, texts: Sequence[MtpText]) -> Step:
        """All tokens that wait; one row of each text has to be there."""
        if len(texts) == 1:
            return self._of_one(texts[0], texts[0].n_tokens)
        counts = [text.n_tokens for text in texts]
        longest = max(len(self._pages(text)) for text in texts)
        pages = np.zeros((len(texts), longest), np.int32)
        for row, text in zip(pages, texts, strict=True):
            own = self._pages(text)
            row[: len(own)] = own
        parts = [(text, slice(text.n_done, text.n_done + text.n_tokens)) for text in texts]
        return Step(
            tokens=np.concatenate([text.tokens[: text.n_tokens] for text in texts]),
            positions=np.concatenate([self._numbers[part] for _, part in parts]),
            starts=np.cumsum([0, *counts], dtype=np.int32),
            slots=np.array([text.state.slot for text in texts], np.int32),
            past=np.array([text.past for text in texts], np.int32),
            replay=np.zeros(len(texts), np.int32),
            pages=pages,
            out_rows=_NO_ROWS,
            hidden=np.concatenate([text.hidden[: text.n_tokens] for text in texts]),
        )

    def _of_one(self, text: MtpText, n: int) -> Step:
        """The same step for the same number of rows: that saves looking at its arrays again."""
        step = self._kept.get(n)
        if step is None:
            step = self._blank(n)
            if n <= KEPT_STEPS:
                self._kept[n] = step
        assert step.hidden is not None
        first = text.n_done
        step.tokens[:] = text.tokens[:n]
        step.positions[:] = self._numbers[first : first + n]
        step.slots[0], step.past[0] = text.state.slot, text.past
        pages = self._pages(text)
        step.pages[0, : len(pages)] = pages
        step.hidden[:] = text.hidden[:n]
        return step

    def _blank(self, n: int) -> Step:
        def zeros(*shape: int) -> Ints:
            return np.zeros(shape, np.int32)

        return Step(
            tokens=zeros(n),
            positions=zeros(n),
            starts=np.array((0, n), np.int32),
            slots=zeros(1),
            past=zeros(1),
            replay=zeros(1),
            pages=zeros(1, self._store.tables.shape[1]),
            out_rows=_NO_ROWS,
            hidden=np.zeros((n, self._width), np.float32),
        )

    def _pages(self, text: MtpText) -> Ints:
        pages: Ints = self._store.tables[text.state.slot, text.first // text.page_len :]
        return pages


_NO_ROWS: Final = np.zeros(0, np.int32)


def _tokens_of_head(setting: Setting) -> Ints | None:
    n_vocab, counted = setting.target.model.hparams.n_vocab, setting.token_counts
    counts = np.zeros(n_vocab, np.int64) if counted is None else counted.read()
    return choose_tokens(setting.options.draft_vocab, n_vocab, counts)


def make(setting: Setting) -> MtpSpeculator:
    heads = setting.target.model.nextn
    if not heads:
        raise ConfigError(
            f"--spec-type mtp: {setting.target.file.label} has no MTP head; give one with -md, or "
            "attach it with `spec convert attach`"
        )
    return MtpSpeculator(heads, setting.backend, setting)
