"""`draft`: a smaller model drafts.

It reads rows only for a draft: then it catches up, in pieces if there are many, in the same steps
that draft for other sequences. Drafted tokens that the target accepted are not run again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...backend.interface import DraftSettings
from ...errors import ConfigError, FileFormatError
from ...sampling.draft_sampler import make_draft_sampler
from ...state.fingerprint import model_fingerprint
from ...state.prefix_export import Origin, PrefixExport, export_prefix, import_prefix
from ...state.snapshot import SequenceSnapshot
from ..draft import Draft, DraftRequest
from ..interface import SavesState, SequenceStart, Speculator
from ..options import DRAFT
from .draft_model_round import DraftedSequence, DraftInProgress, DraftModelRound
from .draft_model_state import DraftState, ReadSequence, draft_sizes, load_reading, save_reading
from .translation import Translator
from .vocabulary_bridge import SharedTokens, TranslatedTokens, VocabularyBridge
from .vocabulary_difference import find_difference

if TYPE_CHECKING:
    from ...state.store import SequenceState, StateStore
    from ..setting import LoadedModel, Setting

logger = logging.getLogger(__name__)
_STATE: Final = "state"
_GREEDY: Final = 1.0  # the temperature of a greedy draft's chances


def make(setting: Setting) -> DraftModel:
    draft = setting.draft
    if draft is None:
        raise ConfigError("spec-type draft needs a draft model: give its file with -md")
    bridge = _make_bridge(setting.target, draft)
    return DraftModel(setting, draft, bridge, model_fingerprint(draft.file))


class DraftModel(Speculator, SavesState):
    name = DRAFT
    is_network = True

    def __init__(
        self, setting: Setting, draft: LoadedModel, bridge: VocabularyBridge, model_id: str = ""
    ) -> None:
        """`model_id`: a `model_fingerprint` of the draft model; saved states carry it."""
        options = self._options = setting.options
        self._backend, self._draft, self._bridge = setting.backend, draft, bridge
        self._model_id = model_id
        self._n_max, self._n_min = options.n_max, max(1, options.draft_n_min)
        self.longest = self._n_max
        self._p_min = options.draft_p_min
        h = draft.model.hparams
        self._n_vocab, self._n_target = h.n_vocab, setting.target.model.hparams.n_vocab
        self._eog_ids = setting.target.tokenizer.eog_ids
        self._sequences: dict[int, DraftedSequence] = {}
        self._by_ratio: set[int] = set()  # sequences whose drafts are accepted by ratio
        self._targets: dict[int, SequenceState] = {}  # of the target, by sequence
        self._is_drafting = False

    def attach(self, store: StateStore) -> None:
        n_train = self._draft.model.hparams.n_ctx_train
        if n_train < store.sizes.n_ctx:
            logger.warning(
                "%s: drafts end at %d tokens, the context that this model was trained for",
                self._draft.file.label,
                n_train,
            )
        sizes = draft_sizes(store.sizes, n_train, self._n_max + self._bridge.n_unsure)
        state = self._state = DraftState(self._backend, self._draft.model, sizes, store.chunk)
        if self._bridge.shares_ids and self._backend.drafts_in_one_call:
            state.compile_draft_loop(self._draft.model, self._n_max, self._n_target, self._eog_ids)
        self._round = DraftModelRound(state, self._bridge, self._draft.file.label)

    def begin(self, start: SequenceStart) -> None:
        self._targets[start.sequence] = start.state
        if self._bridge.shares_ids and start.spec.is_by_ratio(self._options):
            self._by_ratio.add(start.sequence)

    def n_pending(self, sequence: int) -> int:
        """Rows to read before a draft, approximately."""
        drafted = self._sequences.get(sequence)
        n_read = 0 if drafted is None or drafted.reading is None else len(drafted.reading.cells)
        return max(0, self._targets[sequence].n_cells - n_read)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._recover()
        self._is_drafting = True
        began_at = time.perf_counter()
        drafts = [self._start(request) for request in requests]
        possible = [draft for draft in drafts if draft is not None]
        if possible:
            self._round.draft(possible)
        self._is_drafting = False
        ms = 1000 * (time.perf_counter() - began_at) / max(1, len(possible))
        return [Draft() if draft is None else self._finish(draft, ms) for draft in drafts]

    def end(self, sequence: int) -> None:
        self._recover()
        self._targets.pop(sequence, None)
        self._by_ratio.discard(sequence)
        drafted = self._sequences.pop(sequence, None)
        if drafted is not None and drafted.reading is not None:
            self._state.close(drafted.reading, is_valid=not drafted.is_broken)

    def save(self, sequence: int) -> dict[str, bytes]:
        self._recover()
        drafted = self._sequences.get(sequence)
        if drafted is None or drafted.reading is None or drafted.is_broken:
            return {}
        return {_STATE: save_reading(self._state.store, drafted.reading, self._model_id)}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        """A state that does not fit is ignored: the sequence is read again."""
        self._recover()
        if _STATE in blobs:
            drafted = self._new(sequence)
            drafted.reading = load_reading(self._state.store, blobs[_STATE], self._model_id)

    def _new(self, sequence: int) -> DraftedSequence:
        drafted = self._sequences[sequence] = DraftedSequence(self._bridge.new_translation())
        return drafted

    def save_prefix(self, tokens: Sequence[int]) -> dict[str, bytes]:
        self._recover()
        found = export_prefix(self._origin, self._state.store, self._ids_of(tokens))
        return {} if found is None else {_STATE: found.joined().to_bytes()}

    def load_prefix(self, tokens: Sequence[int], blobs: dict[str, bytes]) -> None:
        self._recover()
        ids = self._ids_of(tokens)
        try:
            saved = SequenceSnapshot.from_bytes(blobs.get(_STATE, b""), "draft model")
            if saved.tokens[: saved.n_cells].tolist() == ids[: saved.n_cells]:
                given = PrefixExport.split(saved)
                import_prefix(self._origin, self._state.store, given, self._n_vocab)
        except (FileFormatError, ConfigError):
            return

    def forget_prefix(self, tokens: Sequence[int]) -> None:
        self._recover()
        self._state.store.prefixes.forget(self._ids_of(tokens))

    @property
    def _origin(self) -> Origin:
        store = self._state.store
        return Origin(self._model_id, store.backend.state_format, store.sizes.window)

    def _ids_of(self, tokens: Sequence[int]) -> list[int]:
        """The tokens in the draft model's vocabulary."""
        text = self._bridge.new_translation()
        if text is None:
            return self._bridge.known(tokens)
        text.follow(tokens)
        return self._bridge.known(text.ids)

    # one round

    def _start(self, request: DraftRequest) -> DraftInProgress | None:
        """A draft to make; None where no draft is possible."""
        length = min(self._n_max, request.max_draft)
        if length < self._n_min:
            return None
        drafted = self._sequences.get(request.sequence) or self._new(request.sequence)
        if drafted.is_broken:
            return None
        ids, n_final = request.tokens, len(request.tokens)
        if drafted.translation is not None:
            drafted.translation.follow(request.tokens)
            ids, n_final = drafted.translation.ids, drafted.translation.n_final
        # The last token drafted needs no cell.
        length = min(length, self._state.n_ctx + 1 - len(ids))
        if length < self._n_min or not len(ids):
            return None
        reading = self._reading(drafted, ids, n_final)
        if reading is None:
            return None
        picker = drafted.picker
        if picker is None:
            by_ratio = request.sequence in self._by_ratio
            picker = drafted.picker = make_draft_sampler(
                request.sampler, by_ratio=by_ratio, stops=self._eog_ids, p_min=self._p_min
            )
        picker.restart(request.tokens)
        inverse_temperature = 1 / (request.sampler.params.temperature or _GREEDY)
        p_min = max(self._p_min, request.stop_below)
        settings = DraftSettings(picker, length, p_min, inverse_temperature)
        return DraftInProgress(drafted, reading, ids, n_final, picker, request.position, settings)

    def _reading(
        self, drafted: DraftedSequence, ids: Sequence[int], n_final: int
    ) -> ReadSequence | None:
        """The cells of the sequence that still hold; opened anew where none do."""
        reading = drafted.reading
        if reading is not None and not (
            self._is_of(reading, ids) and self._state.follow(reading, ids, n_final)
        ):
            self._state.close(reading, is_valid=False)
            reading = drafted.reading = None
        if reading is None:
            reading = drafted.reading = self._state.open(self._bridge.known(ids))
        return reading

    def _is_of(self, reading: ReadSequence, ids: Sequence[int]) -> bool:
        """Whether a restored state belongs to these tokens: a file may hold any state."""
        if not reading.is_restored or reading.is_compared:
            return True
        reading.is_compared = True
        return reading.cells[: reading.n_final] == self._bridge.known(ids[: reading.n_final])

    def _finish(self, draft: DraftInProgress, ms: float) -> Draft:
        n_drawn = len(draft.tokens)
        if draft.picker.draws:
            # Neither chances nor a shortest length: nothing may select among drawn drafts.
            distributions = draft.picker.distributions[:n_drawn]
            return Draft(draft.tokens, [DRAFT] * n_drawn, {DRAFT: ms}, distributions=distributions)
        tokens, chances = self._bridge.back(draft.tokens, draft.chances)
        if len(tokens) > (length := draft.settings.length):
            tokens, chances = tokens[:length], chances[:length]
        if len(tokens) < self._n_min:
            tokens, chances = [], []
        return Draft(tokens, [DRAFT] * len(tokens), {DRAFT: ms}, chances)

    def forget(self) -> None:
        self._sequences.clear()
        self._state.reset()

    def _recover(self) -> None:
        """Start over after an interrupt within a round."""
        if self._is_drafting:
            self._is_drafting = False
            self._sequences.clear()
            self._state.reset()


def _make_bridge(target: LoadedModel, draft: LoadedModel) -> VocabularyBridge:
    n_target, n_draft = target.model.hparams.n_vocab, draft.model.hparams.n_vocab
    difference = find_difference(target.tokenizer, draft.tokenizer)
    if difference is None:
        return SharedTokens(n_target, n_draft, target.tokenizer.eog_ids)
    label = draft.file.label
    try:
        translator = Translator(target.tokenizer, draft.tokenizer)
    except ConfigError as error:
        raise ConfigError(f"{label}: cannot draft for this model: {difference}; {error}") from None
    logger.warning("%s: %s; drafts are translated by way of their text", label, difference)
    return TranslatedTokens(translator, n_target, n_draft)
