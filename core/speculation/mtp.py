"""`mtp`: the model's own multi-token head drafts, from the hidden rows that the target leaves.

Rows that turn out true are read by the head with the target's hidden rows: those of a prompt at
once, those of the text together with the next draft's first row, so that a draft of n tokens costs
n runs of the head. What the head wrote while it drafted is overwritten by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..backend.device_loop import DeviceDrafter
from ..backend.draft_loop import DraftLoop, DraftLoopPlan, DraftSettings, TokenPicker
from ..backend.interface import Backend, HostOutput
from ..backend.layers import Floats
from ..backend.step import Ints, Step, StepArrays
from ..errors import ConfigError
from ..models.mtp import H_NEXTN, MtpHead
from ..sampling.draft_sampler import DraftSampler, make_draft_sampler
from ..state.store import SequenceState, StateStore
from .device_speculation import DrafterHandover
from .draft_vocab import choose_tokens
from .interface import Draft, DraftRequest, SequenceStart, Speculator, StepResult
from .mtp_chained_heads import ChainedHeadsLoop
from .mtp_text import MAX_WAITING, MUCH, RECENT, MtpText, WaitingRows, bytes_of
from .options import MTP
from .per_text import BY_DEFAULT
from .table import Setting

FEW: Final = 16  # rows that wait where drafts are made now and then


class MtpSpeculator(Speculator):
    name = MTP
    is_model = True
    taps = frozenset({H_NEXTN})
    n_trial = RECENT

    def __init__(self, heads: Sequence[MtpHead], backend: Backend, setting: Setting) -> None:
        options = self._options = setting.options
        self._vocab_subset = _tokens_of_head(setting)
        if self._vocab_subset is not None:
            heads = [head.shortened(backend, self._vocab_subset) for head in heads]
        self._heads, self._width = heads, heads[0].n_embd
        self._backend = backend
        self._prefill, self._p_min = options.mtp_prefill, options.draft_p_min
        self._n_min, self.longest = options.draft_n_min, options.n_max
        if len(heads) > 1:
            self.longest = min(self.longest, len(heads))
        self._draws = BY_DEFAULT.is_by_ratio(options)
        self._n_vocab = setting.target.model.hparams.n_vocab
        self._stops = setting.target.tokenizer.eog_ids
        self._max_rows = (MAX_WAITING + 1) * setting.n_slots
        self._texts: dict[int, MtpText] = {}
        self._spare: list[WaitingRows] = []
        self._by_ratio: set[int] = set()  # texts that want to know laws
        self._choosers: dict[int, DraftSampler] = {}
        self._asks: dict[int, DraftSettings] = {}  # of the same texts
        self._views: _Views | None = None

    def attach(self, store: StateStore) -> None:
        self._store, self._rows = store, _Rows(store, self._width, self._max_rows)
        store.reruns_last = True
        self._run = self._compile(store)

    def _compile(self, store: StateStore) -> DraftLoop:
        heads, state, longest = self._heads, store.state, max(self.longest, 1)
        if len(heads) == 1:
            return self._backend.compile_draft_loop(
                heads[0].forward,
                state,
                max_rows=self._max_rows,
                max_draft=longest,
                n_vocab=self._n_vocab,
                tap=H_NEXTN,
                vocab_subset=self._vocab_subset,
                stops=self._stops,
            )
        n_rows = self._max_rows + len(heads) * store.sizes.n_slots
        plan = DraftLoopPlan(
            n_rows, longest, self._n_vocab, H_NEXTN, self._vocab_subset, self._stops
        )
        runs = [
            self._backend.compile(head.forward, state, max_rows=n_rows, taps=plan.taps)
            for head in heads
        ]
        return ChainedHeadsLoop(runs, plan, store.sizes.window)

    def begin(self, opening: SequenceStart) -> None:
        store, state = self._store, opening.state
        rows = self._spare.pop() if self._spare else WaitingRows(self._width)
        text = MtpText(state, len(opening.tokens), store.sizes.page_len, rows)
        if opening.is_wanted:
            text.start(
                opening.tokens,
                opening.carry.get(self.name, b""),
                self._prefill,
                store.pool.n_drafter_cells,
                runs_again=not store.is_recurrent and state.n_cells > 0,
            )
        else:
            text.sleep()
        self._texts[opening.sequence] = text
        if opening.spec.is_by_ratio(self._options):
            self._by_ratio.add(opening.sequence)

    def observe(self, seen: StepResult) -> None:
        rows = seen.output.taps[H_NEXTN]
        views = self._views
        if views is None or seen.step is not views.step or rows is not views.rows:
            views = self._views = _Views(seen.step, rows)
        marks = self._store.pool.n_drafter_cells
        for b, sequence in enumerate(seen.sequences):
            text = self._texts.get(sequence)
            n = seen.n_valid[b]
            if text is None or not n:
                continue
            first = views.starts[b]
            position = views.positions[first]
            is_prompt = position + n <= text.n_prompt
            if text.sleeps and not text.wakes_in(position, n, marks):
                continue
            if text.n_tokens + n > MAX_WAITING:
                self._make_room(text, is_prompt=is_prompt)
            text.add(views.tokens, views.hidden, (first, first + n), position)
            if is_prompt:
                self._catch_up(text)

    def n_pending(self, sequence: int) -> int:
        text = self._texts[sequence]
        return -1 if text.sleeps else min(text.n_tokens, MUCH)

    def keep_up(self, sequence: int, *, wanted: bool) -> None:
        text = self._texts[sequence]
        if wanted:
            text.is_wanted = True
        else:
            text.sleep()

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        wanted, texts, marks = [], [], self._store.pool.n_drafter_cells
        for ask in asks:
            text = self._texts[ask.sequence]
            draft_ask = self._draft_ask(ask)
            if text.n_tokens > (RECENT if ask.is_trial else MUCH):
                text.forget(marks)
            end = text.add_last(ask.tokens[-1])
            text.state.table.reserve(end - 1, end + draft_ask.length)
            wanted.append(draft_ask)
            texts.append(text)
        drafts = self._run(self._rows.of(texts), wanted)
        for text in texts:
            text.read(text.n_tokens, marks)
        return [
            self._draft(ask, tokens, chances)
            for ask, tokens, chances in zip(asks, drafts.tokens, drafts.chances, strict=True)
        ]

    def end(self, sequence: int) -> None:
        text = self._texts.pop(sequence, None)
        if text is not None:
            self._spare.append(text.rows)
        self._by_ratio.discard(sequence)
        self._choosers.pop(sequence, None)
        self._asks.pop(sequence, None)

    def carry(self, sequence: int) -> dict[str, bytes]:
        text = self._texts[sequence]
        if text.sleeps:
            return {}
        if text.n_tokens <= FEW:  # else nobody drafts here: the next text begins without them
            self._catch_up(text)
        return {self.name: text.last_hidden.tobytes()}

    def save(self, sequence: int) -> dict[str, bytes]:
        text = self._texts[sequence]
        if text.sleeps:
            return {}
        text.forget(self._store.pool.n_drafter_cells)
        self._catch_up(text)
        place = np.array([text.first, text.n_done], "<i8")
        return {"mtp": place.tobytes() + text.last_hidden.tobytes()}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        if self.name in blobs:
            text = self._texts[sequence]
            if text.resume(blobs[self.name]):
                text.sleeps = False

    # rounds on the device

    @property
    def p_min(self) -> float:
        return self._p_min

    @property
    def can_be_lent(self) -> bool:
        """To a device, which neither draws nor drops what it has drafted."""
        return len(self._heads) == 1 and not self._draws and self._n_min <= 1

    def round_drafter(self) -> DeviceDrafter:
        return DeviceDrafter(
            self._heads[0].forward, H_NEXTN, max(self.longest, 1), self._vocab_subset
        )

    def lend(self, sequence: int, last: int, room: int) -> DrafterHandover:
        text = self._texts[sequence]
        if text.n_tokens > MUCH:
            text.forget(self._store.pool.n_drafter_cells)
        if text.n_tokens >= room:
            self._catch_up(text)
        return text.lend(last)

    def give_back(
        self, sequence: int, n_cells: int, fresh: Sequence[int], hidden: Floats | None
    ) -> None:
        if (text := self._texts.get(sequence)) is not None:
            text.take_back(n_cells, fresh, hidden, self._store.pool.n_drafter_cells)

    def _draft_ask(self, ask: DraftRequest) -> DraftSettings:
        picker = self._choosers.get(ask.sequence)
        if picker is None:
            by_ratio = ask.sequence in self._by_ratio
            picker = make_draft_sampler(
                ask.sampler, by_ratio=by_ratio, stops=self._stops, p_min=self._p_min
            )
            self._choosers[ask.sequence] = picker
            self._asks[ask.sequence] = DraftSettings(picker, 0)
        picker.restart(ask.tokens)
        draft_ask = self._asks[ask.sequence]
        draft_ask.length = min(ask.max_draft, self.longest)
        draft_ask.p_min = 0.0 if picker.draws else max(self._p_min, ask.stop_below)
        return draft_ask

    def _draft(self, ask: DraftRequest, tokens: list[int], chances: list[float]) -> Draft:
        sources = [self.name] * len(tokens)
        picker = self._choosers[ask.sequence]
        if picker.draws:
            # No beliefs, and no shortest length: nobody may choose among drafts by what was drawn.
            return Draft(tokens, sources, distributions=picker.distributions)
        if len(tokens) < self._n_min:
            return Draft()
        return Draft(tokens, sources, chances=chances)

    def _make_room(self, text: MtpText, *, is_prompt: bool) -> None:
        if is_prompt:
            self._catch_up(text)
        else:
            text.forget(self._store.pool.n_drafter_cells)

    def _catch_up(self, text: MtpText) -> None:
        """Read all that waits, without drafting."""
        if text.n_tokens:
            self._run(self._rows.of([text]), [_NOTHING])
            text.read(text.n_tokens, self._store.pool.n_drafter_cells)


class _Nobody(TokenPicker):
    request = 0

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        raise AssertionError("nothing is drafted")

    def accept(self, token: int) -> None:
        raise AssertionError("nothing is drafted")


_NOTHING: Final = DraftSettings(_Nobody(), 0)


class _Views:
    """What is observed of a step, without numpy: its calls are slow when the caches are cold. Steps
    and outputs that come again have the same memory."""

    __slots__ = ("hidden", "positions", "rows", "starts", "step", "tokens")

    def __init__(self, step: Step, rows: Floats) -> None:
        self.step, self.rows = step, rows
        self.tokens, self.positions, self.starts = (
            array.data for array in (step.tokens, step.positions, step.starts)
        )
        self.hidden = bytes_of(rows)


class _Rows:
    """Steps of the head over what waits in texts."""

    def __init__(self, store: StateStore, width: int, max_rows: int) -> None:
        self._tables, n_slots = store.tables, store.sizes.n_slots
        arrays = self._arrays = StepArrays(max_rows, n_slots, self._tables.shape[1], width)
        assert arrays.hidden is not None
        self._tokens, self._positions, self._starts, self._past = (
            array.data for array in (arrays.tokens, arrays.positions, arrays.starts, arrays.past)
        )
        self._hidden, self._row_bytes = bytes_of(arrays.hidden), 4 * width
        self._numbers = np.arange(store.sizes.n_ctx + 1, dtype=np.int32).data
        # Whose pages lie at each place: the state, as of which change, and from which cell on.
        self._held: list[tuple[SequenceState | None, int, int]] = [(None, 0, 0)] * n_slots

    def of(self, texts: Sequence[MtpText]) -> Step:
        """All tokens that wait; one row of each text has to be there."""
        row = b = 0
        for text in texts:
            n, first, width = text.n_tokens, text.n_done, self._row_bytes
            held, n_changes, begin = self._held[b]
            if held is not text.state or n_changes != held.table.n_changes or begin != text.first:
                self._hold(b, text)
            end = row + n
            self._tokens[row:end] = text.token_view[:n]
            self._positions[row:end] = self._numbers[first : first + n]
            self._hidden[row * width : end * width] = text.hidden_view[: n * width]
            self._past[b] = text.past
            row, b = end, b + 1
            self._starts[b] = row
        return self._arrays.step(row, b)

    def _hold(self, b: int, text: MtpText) -> None:
        state = text.state
        self._arrays.slots[b] = state.slot
        pages = self._tables[state.slot, text.first // text.page_len :]
        self._arrays.pages[b, : len(pages)] = pages
        self._held[b] = state, state.table.n_changes, text.first


def _tokens_of_head(setting: Setting) -> Ints | None:
    n_vocab, counted = setting.target.model.hparams.n_vocab, setting.token_counts
    counts = np.zeros(n_vocab, np.int64) if counted is None else counted.read()
    return choose_tokens(setting.options.draft_vocab, n_vocab, counts)


def make(setting: Setting) -> MtpSpeculator:
    heads = setting.target.model.nextn
    if not heads:
        raise ConfigError(
            f"--spec-type mtp: {setting.target.file.label} has no MTP head; give a file "
            "that holds one with -md"
        )
    return MtpSpeculator(heads, setting.backend, setting)
