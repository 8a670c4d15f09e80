"""`HiddenStateDrafter`: a network drafts from the hidden rows that the target leaves.

Rows that the target has accepted are read by the network with the target's features: those of a
prompt as they come, later ones together with the next draft's first row, so that a draft of n
tokens costs n runs of the network. What the network wrote while it drafted is overwritten by then.
A network that reads the target's keys and values has nothing to read but the newest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from ...backend.interface import NO_DRAFT, DraftLoop, DraftLoopPlan, DraftSettings
from ...backend.interface.device_loop import DeviceDrafter
from ...backend.step import Ints, Step, StepArrays
from ...models.drafters.network import BlockNetwork
from ...sampling.draft_sampler import DraftSampler, make_draft_sampler
from ...state.state_rows import EmbeddedSteps
from ...state.store import SequenceState, StateStore
from ..device_speculation import DrafterHandover
from ..draft import Draft, DraftRequest
from ..interface import SavesState, SequenceStart, Speculator, StepResult
from ..request_spec import BY_DEFAULT
from .block_loop import BlockDraftLoop
from .chained_heads import ChainedHeadsLoop
from .draft_vocab import choose_tokens
from .feature_rows import MAX_WAITING, MUCH, RECENT, FeatureRows
from .newest_row import NewestRow

if TYPE_CHECKING:
    from ...backend.layers import Floats
    from ...models.drafters.network import DraftNetwork
    from ..setting import Setting

FEW: Final = 16  # waiting rows that are read for the sake of a later sequence with the same prefix


class _Settings(DraftSettings):
    picker: DraftSampler


class HiddenStateDrafter(Speculator, SavesState):
    is_network = True
    n_trial = RECENT

    def __init__(self, name: str, networks: Sequence[DraftNetwork], setting: Setting) -> None:
        """Several `networks` draft one token each, the next one from the row of the one before."""
        self.name, options = name, setting.options
        self._options, self._backend = options, setting.backend
        self._networks = [_with_short_head(each, setting) for each in networks]
        self._network = self._networks[0]
        self.taps = frozenset(self._network.taps)
        self._p_min, self._n_min = options.draft_p_min, options.draft_n_min
        self.longest = options.n_max
        if len(networks) > 1:
            self.longest = min(self.longest, len(networks))
        self._n_unread = 0  # rows that a draft needs beside those of its tokens
        if isinstance(self._network, BlockNetwork):
            self.longest = min(self.longest, self._network.most_drafted)
            self._n_unread = self._network.n_unread
        self._n_vocab = setting.target.model.hparams.n_vocab
        self._stops = setting.target.tokenizer.eog_ids
        self.reruns_last = self._network.fills_cells
        self._max_rows = setting.n_slots * ((MAX_WAITING + 1) if self._network.fills_cells else 1)
        self._rows: dict[int, FeatureRows] = {}
        self._by_ratio: set[int] = set()  # sequences whose drafts are accepted by ratio
        self._settings: dict[int, _Settings] = {}

    def attach(self, store: StateStore) -> None:
        self._store = store
        self._steps = _Steps(self._network, store, self._max_rows)
        self._run = self._compile(store)

    def _compile(self, store: StateStore) -> DraftLoop:
        network, n_rows = self._network, self._max_rows
        if len(self._networks) > 1:
            n_rows += len(self._networks) * store.sizes.n_slots
        plan = DraftLoopPlan(
            n_rows,
            max(self.longest, 1),
            self._n_vocab,
            network.tap or None,
            network.vocab_subset,
            frozenset(self._stops),
            advances=network.fills_cells,
        )
        if isinstance(network, BlockNetwork):
            return BlockDraftLoop(network, self._backend, store, plan)
        if len(self._networks) == 1:
            return self._backend.compile_draft_loop(network.forward, store.state, plan)
        runs = [
            self._backend.compile(each.forward, store.state, max_rows=n_rows, taps=plan.taps)
            for each in self._networks
        ]
        return ChainedHeadsLoop(runs, plan, store.sizes.window)

    # the verbs

    def begin(self, start: SequenceStart) -> None:
        store, state = self._store, start.state
        cell_ids = start.cell_ids or start.tokens
        rows = self._new_rows(state, len(cell_ids))
        rows.start(
            cell_ids,
            start.carry.get(self.name, b""),
            self._options.mtp_prefill,
            reruns_last=not store.is_recurrent and state.n_cells > 0,
        )
        self._rows[start.sequence] = rows
        if start.spec.is_by_ratio(self._options):
            self._by_ratio.add(start.sequence)

    def _new_rows(self, state: SequenceState, n_prompt: int) -> FeatureRows:
        store, width = self._store, self._network.n_features
        if not self._network.fills_cells:
            return NewestRow(state, n_prompt, store.sizes.page_len, width)
        filled = store.pool.drafter_cells(self.name)
        return FeatureRows(state, n_prompt, store.sizes.page_len, width, filled)

    def observe(self, result: StepResult) -> None:
        step = result.step
        taps = [result.output.taps[name] for name in self._network.taps]
        for b, sequence in enumerate(result.sequences):
            rows, n = self._rows.get(sequence), result.n_valid[b]
            if rows is None or not n:
                continue
            first = int(step.starts[b])
            cell = int(step.past[b])
            is_prompt = cell + n <= rows.n_prompt
            for at in range(0, n, MAX_WAITING):  # a piece of a prompt may be longer
                n_more = min(MAX_WAITING, n - at)
                if rows.n_tokens + n_more > MAX_WAITING:
                    self._make_room(rows, is_prompt=is_prompt)
                rows.add(step.tokens, taps, first + at, n_more, cell + at)
                if is_prompt:
                    self._catch_up(rows)

    def n_pending(self, sequence: int) -> int:
        return min(self._rows[sequence].n_tokens, MUCH)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        wanted, waiting = [], []
        for request in requests:
            rows = self._rows[request.sequence]
            settings = self._draft_settings(request)
            if rows.n_tokens > (RECENT if request.is_trial else MUCH):
                rows.keep_recent()
            rows.add_last(request.tokens[-1], request.n_cells - 1)
            settings.length = rows.make_cells(settings.length, self._n_unread)
            wanted.append(settings)
            waiting.append(rows)
        drafts = self._run(self._steps.of(waiting), wanted)
        for rows in waiting:
            rows.read(rows.n_tokens)
        return [
            self._draft(*each) for each in zip(wanted, drafts.tokens, drafts.chances, strict=True)
        ]

    def end(self, sequence: int) -> None:
        self._rows.pop(sequence, None)
        self._by_ratio.discard(sequence)
        self._settings.pop(sequence, None)

    # saving

    def carry(self, sequence: int) -> dict[str, bytes]:
        rows = self._rows[sequence]
        if rows.n_tokens <= FEW:  # with more waiting, the next sequence begins without them
            self._catch_up(rows)
        return {self.name: rows.last_features.tobytes()} if rows.n_features else {}

    def save(self, sequence: int) -> dict[str, bytes]:
        rows = self._rows[sequence]
        rows.keep_recent()
        self._catch_up(rows)
        place = rows.to_bytes()
        return {self.name: place} if place else {}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        if self.name in blobs:
            self._rows[sequence].resume(blobs[self.name])

    # a device loop

    @property
    def p_min(self) -> float:
        return self._p_min

    @property
    def can_be_lent(self) -> bool:
        """Whether a device loop can draft in its place: it neither draws tokens nor drops drafts,
        encodes no features, and fills cells of its own, one for each token."""
        network = self._network
        is_plain = len(self._networks) == 1 and network.encode is None and network.fills_cells
        is_plain = is_plain and not isinstance(network, BlockNetwork)
        return is_plain and not BY_DEFAULT.is_by_ratio(self._options) and self._n_min <= 1

    def device_drafter(self) -> DeviceDrafter:
        network = self._network
        return DeviceDrafter(
            network.forward, network.tap, max(self.longest, 1), network.vocab_subset
        )

    def lend(self, sequence: int, last: int, room: int) -> DrafterHandover:
        rows = self._rows[sequence]
        if rows.n_tokens > MUCH:
            rows.keep_recent()
        if rows.n_tokens >= room or rows.has_embedded:
            self._catch_up(rows)
        return rows.hand_over(last)

    def give_back(
        self, sequence: int, n_cells: int, fresh: Sequence[int], hidden: Floats | None
    ) -> None:
        if (rows := self._rows.get(sequence)) is not None:
            rows.take_back(n_cells, fresh, hidden)

    # one draft

    def _draft_settings(self, request: DraftRequest) -> _Settings:
        settings = self._settings.get(request.sequence)
        if settings is None:
            by_ratio = request.sequence in self._by_ratio
            picker = make_draft_sampler(
                request.sampler, by_ratio=by_ratio, stops=self._stops, p_min=self._p_min
            )
            settings = self._settings[request.sequence] = _Settings(picker, 0)
        picker = settings.picker
        picker.restart(request.tokens)
        settings.length = min(request.max_draft, self.longest)
        settings.p_min = 0.0 if picker.draws else max(self._p_min, request.stop_below)
        return settings

    def _draft(self, settings: _Settings, tokens: list[int], chances: list[float]) -> Draft:
        sources, picker = [self.name] * len(tokens), settings.picker
        if picker.draws:
            # Neither chances nor a shortest length: nothing may select among drawn drafts.
            return Draft(tokens, sources, distributions=picker.distributions)
        if len(tokens) < self._n_min:
            return Draft()
        return Draft(tokens, sources, chances=chances)

    # reading without drafting

    def _make_room(self, rows: FeatureRows, *, is_prompt: bool) -> None:
        if is_prompt:
            self._catch_up(rows)
        else:
            rows.keep_recent()

    def _catch_up(self, rows: FeatureRows) -> None:
        if rows.n_tokens:
            self._run(self._steps.of([rows]), [NO_DRAFT])
            rows.read(rows.n_tokens)


class _Steps:
    """Steps of a network over waiting rows."""

    def __init__(self, network: DraftNetwork, store: StateStore, max_rows: int) -> None:
        self._store, n_slots = store, store.sizes.n_slots
        self._arrays = StepArrays(
            max_rows,
            n_slots,
            store.tables.shape[1],
            network.n_embd,
            windowed=store.windowed_tables is not None,
        )
        self._embedded = EmbeddedSteps(self._arrays)
        # Of which sequence the pages at each place are, as of which change, from which cell on.
        self._held: list[tuple[SequenceState | None, int, int]] = [(None, 0, 0)] * n_slots
        self._encode = None
        if network.encode is not None:
            self._features = np.zeros((max_rows, network.n_features), np.float32)
            self._all_rows = np.arange(max_rows, dtype=np.int32)
            self._encode = store.backend.compile(network.encode, store.state, max_rows=max_rows)

    def of(self, waiting: Sequence[FeatureRows]) -> Step:
        """A step over all waiting rows; each sequence needs one at least."""
        arrays = self._arrays
        assert arrays.hidden is not None, "the network has a width"
        features = arrays.hidden if self._encode is None else self._features
        row, embedded = 0, self._embedded
        embedded.begin()
        for b, rows in enumerate(waiting):
            n, first = rows.n_tokens, rows.n_done
            self._set_pages(b, rows)
            end = row + n
            arrays.tokens[row:end] = rows.tokens[:n]
            arrays.positions[row:end] = np.arange(first, first + n) - rows.n_shared
            features[row:end] = rows.features[:n]
            if rows.has_embedded and rows.state.prompt is not None:
                embedded.add(rows.state.prompt, first, slice(row, end))
            arrays.past[b] = rows.past
            arrays.starts[b + 1] = row = end
        step = embedded.step(row, len(waiting))
        if self._encode is not None:
            encoding = replace(step, hidden=self._features[:row], out_rows=self._all_rows[:row])
            arrays.hidden[:row] = self._encode(encoding).logits
        return step

    def _set_pages(self, b: int, rows: FeatureRows) -> None:
        state = rows.state
        held = state, state.table.n_changes, rows.first
        if self._held[b] != held:
            self._arrays.slots[b] = state.slot
            first_page = rows.first // rows.page_len
            pages = self._store.tables[state.slot, first_page:]
            self._arrays.pages[b, : len(pages)] = pages
            windowed, tables = self._arrays.windowed_pages, self._store.windowed_tables
            if windowed is not None and tables is not None:
                windowed[b, : len(pages)] = tables[state.slot, first_page:]
            self._held[b] = held


def _with_short_head(network: DraftNetwork, setting: Setting) -> DraftNetwork:
    """With the part of the vocabulary that `--spec-draft-vocab` names, if it has a whole head."""
    subset = None if network.vocab_subset is not None else _tokens_of_head(setting)
    return network if subset is None else network.shortened(setting.backend, subset)


def _tokens_of_head(setting: Setting) -> Ints | None:
    n_vocab, counted = setting.target.model.hparams.n_vocab, setting.token_counts
    counts = np.zeros(n_vocab, np.int64) if counted is None else counted.read()
    return choose_tokens(setting.options.draft_vocab, n_vocab, counts)
