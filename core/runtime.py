"""A loaded model: `load_runtime`, then `logits` or `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Tokens
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from msgspec.structs import replace

from .backend.interface import Backend, Taps
from .backend.layers import Floats
from .engine.config import EngineConfig
from .engine.engine import Engine
from .engine.prompt_checks import check_images, check_length, check_prompt
from .engine.sequence import RowObserver, Sequence
from .engine.sequence_reader import SequenceReader
from .errors import ConfigError, NextnError
from .fitting import (
    available_beside,
    sizes_of,
    working_of,
)
from .generation import Event, GenerateParams, SourceStats, Stats
from .gguf.reader import GgufFile
from .models.demand import Demand
from .models.drafters.mtp_network import H_NEXTN
from .models.model import Model
from .sampling.file_defaults import file_defaults
from .speculation.build import build_speculator, resolve_types
from .speculation.composite import CompositeSpeculator
from .speculation.draft_file import DraftFile, draft_budget
from .speculation.drafter_results import ResultFile
from .speculation.interface import Speculator
from .speculation.options import AUTO, FROM_FILES, MTP, NO_SPECULATION, SpecOptions
from .speculation.rounds import Policy
from .speculation.setting import LoadedModel, Setting
from .speculation.token_counts import TokenCounts
from .state.budget import MemoryBudget, make_budget
from .state.embedded_rows import ModelPrompt
from .state.fingerprint import model_fingerprint
from .state.sizes import MIB, PAGE_LEN, PREFILL_CHUNK, with_cache
from .state.windows import WindowedPages
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .vision.image_encoder import ImageEncoder, ReadImage
    from .vision.image_prompt import ImagePrompt

NO_MMPROJ: Final = "images need the model's mmproj file: give it with --mmproj FILE"
PROMPT_ROWS = 512  # rows of one step of a reader
IDLE_STEPS, IDLE_SHARE = 16, 10  # a drafter is idle that drafts a token in ten steps or less


class Runtime:
    def __init__(
        self,
        file: GgufFile,
        model: Model,
        backend: Backend,
        tokenizer: Tokenizer,
        n_ctx: int,
        spec: SpecOptions = NO_SPECULATION,
        draft: LoadedModel | None = None,
        demands: Iterable[Demand] = (),
    ) -> None:
        """`demands`: the memory needs of the model and of the draft model.

        Raises ConfigError if the state of one sequence does not fit into memory.
        """
        self.file, self.model, self.backend, self.spec = file, model, backend, spec
        self.draft, self._demands = draft, tuple(demands)
        self.tokenizer, self.n_ctx = tokenizer, n_ctx
        self.draft_files: tuple[DraftFile, ...] = ()  # what drafts beside the model's own file
        self.image_encoder: ImageEncoder | None = None  # of the mmproj file
        self.n_batch: int | None = None  # tokens of a prompt that one step reads, at most
        self.load_ms = 0.0
        self.stats = Stats()  # of the latest generation
        self.budget = self.plan(1)
        self._engine: Engine | None = None
        self._short_reader: SequenceReader | None = None
        self._policy: Policy | None = None  # of the engine that speculates
        self._is_closed, self._keeps_results = False, True
        self._iterated: set[int] = set()  # ids of sequences with an iterator

    @property
    def name(self) -> str:
        return self.file.metadata.str("general.name", "") or self.file.path.name

    @cached_property
    def recommended_sampling(self) -> dict[str, Any]:
        """The fields of `SamplingParams` that the model's file sets."""
        return file_defaults(self.file.metadata)

    @cached_property
    def fingerprint(self) -> str:
        return model_fingerprint(self.file)

    @cached_property
    def token_counts(self) -> TokenCounts:
        """How often the model generates each token; saved on `close` for later runs."""
        return TokenCounts(self.fingerprint, self.n_vocab)

    @property
    def architecture(self) -> str:
        return self.model.hparams.architecture

    @property
    def device(self) -> str:
        return self.backend.name

    @property
    def n_vocab(self) -> int:
        return self.model.hparams.n_vocab

    @property
    def spec_types(self) -> tuple[str, ...]:
        """The drafters, in the order of precedence."""
        return resolve_types(self.setting(1))

    def beside(self, spec: SpecOptions, *, keeps: bool = True) -> Runtime:
        """Return one over the same weights that speculates otherwise. Its files are this one's to
        close. `keeps`: what its drafters bring, for later runs."""
        other = Runtime(
            self.file, self.model, self.backend, self.tokenizer, self.n_ctx, spec, self.draft,
            self._demands,
        )  # fmt: skip
        other.draft_files, other._keeps_results = self.draft_files, keeps
        other.n_batch = self.n_batch
        return other

    def setting(self, n_slots: int) -> Setting:
        """Return what speculators for `n_slots` sequences at once are made from."""
        target = LoadedModel(self.file, self.model, self.tokenizer)
        return Setting(
            self.spec, target, self.backend, n_slots, self.n_ctx, self.draft, self.token_counts,
            self.result_files if self._keeps_results else {},
        )  # fmt: skip

    @property
    def result_files(self) -> dict[str, ResultFile]:
        """By drafter, what is known of it from earlier runs."""
        files = {each.drafter: each.file for each in self.draft_files}
        if MTP in self.model.drafters:
            files.setdefault(MTP, self.file)
        return {name: ResultFile(self.file, file) for name, file in files.items()}

    def plan(self, n_slots: int, cache_ram: int | None = None) -> MemoryBudget:
        """Return the memory that `n_slots` sequences at once need; ConfigError if it is not free.

        `cache_ram`: further bytes for the prefix cache; None: the cells that contexts do not use,
        and two checkpoints for each sequence.
        """
        budget = self._plan(n_slots)
        if cache_ram is None:
            return budget
        page, slot = self.backend.state_bytes(
            self.model.state_shape, page_len=budget.sizes.page_len, window=budget.sizes.window
        )
        bare = replace(budget, sizes=replace(budget.sizes, n_checkpoints=0))
        free = None if bare.available is None else bare.available - bare.needed + bare.draft
        if free is not None and cache_ram > free - bare.draft:
            raise ConfigError(
                f"cache-ram {cache_ram // MIB} does not fit: only "
                f"{max(free - bare.draft, 0) // MIB} MiB are left after the KV cache; "
                "lower it, or -c"
            )
        sizes = with_cache(bare.sizes, cache_ram, page, slot)
        windows = WindowedPages.of(self.backend, self.model.state_shape, sizes)
        return replace(bare, sizes=sizes, windows=windows)

    def _plan(self, n_slots: int) -> MemoryBudget:
        sizes, shape = sizes_of(self.n_ctx, n_slots), self.model.state_shape
        n_draft = 0
        if self.draft is not None:
            target = LoadedModel(self.file, self.model, self.tokenizer)
            state = draft_budget(target, self.draft, self.backend, self.spec, sizes)
            n_draft = self.backend.reserved = state.kv + state.recurrent
        available = available_beside(self.backend)
        working = working_of(self._demands, sizes)
        return make_budget(self.backend, shape, sizes, available, draft=n_draft, working=working)

    def new_engine(self, budget: MemoryBudget, drafter: Speculator | None = None) -> Engine:
        """Return an engine with a state of its own, for the sequences that `budget` is for."""
        self._check_open()
        return Engine(
            self.model,
            self.backend,
            self.tokenizer,
            EngineConfig(
                budget.sizes,
                chunk=self.prompt_rows,
                reuse=budget.sizes.max_idle != 0,
                batch_invariant=self.backend.batch_invariant,
                acceptance=self.spec.acceptance(self.spec_types),
            ),
            drafter=drafter,
            model_id=self.fingerprint,
        )

    def warm_up(self) -> Engine:
        """Make the engine now, with all kernels compiled, not at the first generation."""
        if self._engine is None:
            self._engine = self.ready_engine(self.budget)
        return self._engine

    def ready_engine(self, budget: MemoryBudget) -> Engine:
        """Return an engine that speculates by `self.spec`, with all kernels compiled."""
        speculator = build_speculator(self.setting(budget.sizes.n_slots))
        if isinstance(speculator, CompositeSpeculator):
            self._policy = speculator.policy
        return self.new_engine(budget, speculator)

    def idle_drafters(self, steps: int, by_source: Mapping[str, SourceStats]) -> dict[str, str]:
        """Return the drafters that hardly drafted in so many steps, each with the reason: those
        that were named, and after some steps all that were loaded."""
        found, loaded = {}, self.spec_types
        files = {each.drafter for each in self.draft_files if not each.is_companion}
        named = files if AUTO in self.spec.types else {*loaded}
        for name in loaded if steps else ():
            drafted = by_source[name].drafted if name in by_source else 0
            if drafted * IDLE_SHARE > steps:
                continue
            outlook = None
            if name in FROM_FILES and steps >= IDLE_STEPS and self._policy is not None:
                outlook = self._policy.outlook(name)
            if outlook is not None:
                found[name] = outlook.describe()
            elif name in named and not drafted:
                found[name] = self._why_nothing(name, steps)
        return found

    def _why_nothing(self, name: str, steps: int) -> str:
        """Why a drafter of which nothing was measured has drafted nothing."""
        if name not in FROM_FILES:
            return "nothing before in the text went on in a way that could be drafted"
        if self.spec.draft_n_max == 0:
            return "spec-draft-n-max is 0"
        return f"it was not tried in {steps} step{'s' * (steps != 1)}"

    def logits(self, token_ids: Tokens[int] | ModelPrompt) -> Floats:
        """Return the logits of every row of one fresh sequence, (T, V)."""
        self.check_prompt(token_ids, len(token_ids) + 1)
        pieces = self.reader(len(token_ids)).logits(token_ids)
        return np.concatenate([piece.copy() for piece in pieces])

    def hidden_rows(self, token_ids: Tokens[int] | ModelPrompt) -> Floats:
        """Return the rows before the head, behind the last norm, (T, D)."""
        return np.concatenate(list(self.hidden_pieces(token_ids)))

    def hidden_pieces(self, token_ids: Tokens[int] | ModelPrompt) -> Iterator[Floats]:
        """Yield these rows in pieces as long as those of prompts. A sequence is to be read to its
        end before the next one begins."""
        self.check_prompt(token_ids, len(token_ids) + 1)
        for output in self._hidden_reader(len(token_ids)).outputs(token_ids):
            yield output.taps[H_NEXTN].copy()

    def _hidden_reader(self, n_tokens: int) -> SequenceReader:
        """One of few tokens is kept: making it takes longer than to read a sentence."""
        taps, n_rows = frozenset({H_NEXTN}), self.prompt_rows
        if n_tokens > PREFILL_CHUNK:
            return self.reader(n_tokens, n_rows, taps)
        self._check_open()
        if self._short_reader is None:
            self._short_reader = self.reader(PREFILL_CHUNK, n_rows, taps)
        return self._short_reader

    def reader(
        self, n_tokens: int, n_rows: int | None = None, taps: Taps = frozenset()
    ) -> SequenceReader:
        """Return a reader of sequences of up to `n_tokens`, `n_rows` rows at once."""
        self._check_open()
        n_rows = n_rows or max(PROMPT_ROWS, self.prompt_rows)
        return SequenceReader(self.model, self.backend, n_tokens, n_rows, taps)

    @property
    def prompt_rows(self) -> int:
        """Rows of a prompt in one step, at most: at least those of an image that see each other.
        A device whose bits depend on how prompts are cut cuts them in its own way."""
        least, encoder = self.backend.prompt_chunk or PREFILL_CHUNK, self.image_encoder
        if self.n_batch is not None and self.backend.prompt_chunk is None:
            least = min(least, -(-self.n_batch // PAGE_LEN) * PAGE_LEN)
        if encoder is None or not encoder.is_bidirectional:
            return least
        return max(least, -(-encoder.most_rows // PAGE_LEN) * PAGE_LEN)

    def encode_images(self, prompt: ImagePrompt) -> ModelPrompt:
        """Return the prompt with the rows of its images."""
        from .vision.image_prompt import encode_prompt, finish

        check_length(len(prompt), self.n_ctx)
        return finish(encode_prompt(self.images, prompt))

    def image_prompt(self, pieces: Tokens[str], images: Tokens[ReadImage]) -> ImagePrompt:
        """Return pieces of text with an image between each two, none of them encoded."""
        from .vision.image_prompt import place_images

        return place_images(pieces, images, self.images.projector, self.tokenizer)

    @property
    def images(self) -> ImageEncoder:
        """What makes rows of images; ConfigError without an mmproj file."""
        if self.image_encoder is None:
            raise ConfigError(NO_MMPROJ)
        return self.image_encoder

    def check_prompt(self, prompt: Tokens[int] | ModelPrompt, n_ctx: int | None = None) -> None:
        """ConfigError for a prompt that cannot be continued."""
        check_prompt(prompt, self.model.hparams, n_ctx or self.n_ctx)
        if isinstance(prompt, ModelPrompt):
            check_images(prompt, self.model, self.backend, self.prompt_rows)

    def generate(
        self,
        prompt: str | Tokens[int] | ModelPrompt,
        params: GenerateParams | None = None,
        *,
        plainly: bool = False,
        on_row: RowObserver | None = None,
    ) -> Iterator[Event]:
        """Yield tokens as they are made. Closing the iterator ends the generation.

        `plainly`: without speculation and without the prefix cache; other generations must have
        ended, because their state is freed. `on_row` is called with the logits of every token.
        """
        self._check_open()
        given = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self.check_prompt(given)
        return self._generate(given, params or GenerateParams(), plainly, on_row)

    def close(self) -> None:
        """Free the memory. A closed model raises NextnError."""
        self._is_closed = True
        self._short_reader = None
        self.drop_engine()
        self.file.close()
        if self.draft is not None:
            self.draft.file.close()
        if self.image_encoder is not None:
            self.image_encoder.close()
        self.backend.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise NextnError("the model is closed: load it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _generate(
        self,
        prompt: Tokens[int] | ModelPrompt,
        params: GenerateParams,
        plainly: bool,
        on_row: RowObserver | None,
    ) -> Iterator[Event]:
        if plainly:
            self.drop_engine()  # memory was planned for one state at a time
        engine = self.new_engine(self.budget) if plainly else self.warm_up()
        engine.drop_others(self._iterated)
        sequence = engine.add(prompt, params)
        sequence.on_row = on_row
        self.stats = sequence.stats
        self.stats.load_ms = self.load_ms
        try:
            self._iterated.add(sequence.id)
            stop_reason = None
            while stop_reason is None:
                while not sequence.events:  # those of others wait for their iterators
                    engine.advance()
                    if sequence.stats.steps < 2:  # the prompt is being read, or just was
                        self._report_prompt(sequence)
                event = sequence.events.popleft()
                stop_reason = event.stop_reason
                if event.error is not None:
                    raise event.error
                yield event
        finally:
            self._iterated.discard(sequence.id)
            engine.drop(sequence)
            self.token_counts.add(sequence.tokens[sequence.n_prompt :])

    def drop_engine(self) -> None:
        """Free the state of generations; the next one makes another."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self.token_counts.save()

    def _report_prompt(self, sequence: Sequence) -> None:
        if sequence.state is not None and sequence.n_prompt > self.prompt_rows:
            fraction = min(sequence.state.n_cells / sequence.n_prompt, 1.0)
            self.backend.report("reading the prompt", fraction)
