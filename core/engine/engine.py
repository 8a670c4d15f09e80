"""The engine: requests go in, events come out, one step of the model at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from collections.abc import Sequence as Tokens
from itertools import count
from weakref import WeakMethod

from msgspec.structs import replace

from ..backend.interface import Backend, HostOutput
from ..backend.interface.device_loop import DeviceLoopPlan
from ..errors import ConfigError
from ..generation import CANCELLED, ERROR, Event, GenerateParams
from ..models.adapters import scales_of
from ..models.model import Model
from ..sampling.relaxed import Phase
from ..sampling.sampler import Sampler
from ..speculation.interface import Speculator
from ..state.embedded_rows import ModelPrompt
from ..state.prefix_export import (
    Origin,
    PrefixExport,
    add_drafter_blobs,
    drafter_blobs_of,
    export_prefix,
    import_prefix,
)
from ..state.snapshot import SequenceSnapshot
from ..state.state_rows import StateRows
from ..state.store import StateStore
from ..tokenizer import Tokenizer
from ..tokenizer.thinking import find_thinking_marks
from . import saving
from .config import EngineConfig
from .device_rounds import DeviceRounds
from .prompt_checks import check_images, check_prompt
from .samplers import SamplerMaker
from .scheduler import Scheduler
from .sequence import Sequence, SequenceRows, Verifier
from .speculator_host import SpeculatorHost
from .stopwatch import PhaseTimes
from .verify import Verifiers, make_verifier


class Engine:
    """Not safe for several threads: one of them adds, steps and cancels."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        tokenizer: Tokenizer,
        config: EngineConfig,
        *,
        drafter: Speculator | None = None,
        model_id: str = "",
    ) -> None:
        """`model_id`: a `model_fingerprint`, by which snapshots know their model."""
        self.config = config
        self.store = StateStore(
            backend,
            model.state_shape,
            config.sizes,
            chunk=config.chunk,
            batch_invariant=config.batch_invariant,
            reruns_last=drafter is not None and drafter.reruns_last,
            n_adapters=len(model.adapters or ()),
        )
        self.phase_times = PhaseTimes()
        self._drafting = SpeculatorHost(drafter, self.store)
        self._scheduler = Scheduler(self.store, config)
        self._rows = StateRows(self.store, config.max_rows)
        self._run = backend.compile(
            model.forward,
            self.store.state,
            max_rows=config.max_rows,
            taps=self._drafting.taps,
        )
        self._tokenizer, self._hparams = tokenizer, model.hparams
        self._n_vocab, self._model = model.hparams.n_vocab, model
        self._samplers = SamplerMaker(tokenizer, self._n_vocab)
        self._verifier = make_verifier(config.acceptance, tokenizer)
        self._ahead = self._compile_rounds(model, backend)
        self._others = Verifiers(tokenizer) if drafter is not None else None
        self._origin = Origin(model_id, backend.state_format, config.sizes.window)
        self._ids = count()
        self._sequences: dict[int, Sequence] = {}  # by id, until their last events are taken
        self._is_amid_step = False
        self._settling_s = 0.0  # the end of the last step

    @property
    def has_work(self) -> bool:
        return any(
            sequence.events or sequence.stop_reason is None for sequence in self._sequences.values()
        )

    def add(
        self,
        prompt: Tokens[int] | ModelPrompt,
        params: GenerateParams | None = None,
        *,
        index: int = 0,
        sampler: Sampler | None = None,
    ) -> Sequence:
        """Queue a sequence. `index` numbers those of one request, which share a seed. `sampler`:
        what `prepare` made for the same parameters and index."""
        given = self._checked(
            prompt if isinstance(prompt, ModelPrompt) else ModelPrompt(list(prompt))
        )
        sequence = self._new_sequence(given, params or GenerateParams(), index, sampler)
        self._queue(sequence)
        return sequence

    def prepare(self, params: GenerateParams, index: int = 0) -> Sampler:
        """Make the sampler, which may take long: a grammar is compiled. This is the one method that
        other threads may call."""
        sampler = self._samplers.make(params, index)
        self._verifier_for(params).check(sampler)
        return sampler

    def step(self) -> list[Event]:
        """`advance`, and take the events of all sequences."""
        self.advance()
        taken: list[Event] = []
        for sequence in tuple(self._sequences.values()):
            taken += sequence.events
            sequence.events.clear()
            if sequence.stop_reason is not None:
                del self._sequences[sequence.id]
        return taken

    def advance(self) -> None:
        """One pass of the model over rows of all sequences that have work.

        Events are appended to `Sequence.events`, where an interrupt cannot lose them.
        """
        if self._is_amid_step:
            self._recover()
        self._is_amid_step = True
        if not self._ahead.step():
            self._ordinary_step()
        self._is_amid_step = False

    def _ordinary_step(self) -> None:
        entered_at = time.perf_counter()
        if not (parts := self._scheduler.plan()):
            return
        began_at = time.perf_counter()
        self._drafting.draft(parts)
        drafted_at = time.perf_counter()
        rows = self._rows
        rows.begin()
        for part in parts:
            rows.add(part.state, part.tokens, part.n_out, part.sequence.request)
        step = rows.step()
        output = self._run(step)
        ran_at = time.perf_counter()
        n_valid = self._accept(parts, output, ran_at)
        accepted_at = time.perf_counter()
        # The time of a step includes what is done for its tokens: of the end, as much as last time.
        seconds = accepted_at - drafted_at + began_at - entered_at + self._settling_s
        self._drafting.settle(step, output, n_valid, 1000 * seconds)
        for part in parts:
            self._settle(part)
        self._settling_s = time.perf_counter() - accepted_at
        times = self.phase_times
        times.draft += drafted_at - began_at
        times.verify += ran_at - drafted_at
        times.sampling += accepted_at - ran_at
        times.settle += self._settling_s

    def _accept(self, parts: list[SequenceRows], output: HostOutput, ran_at: float) -> list[int]:
        """Rows of each part that are final."""
        first, n_valid = 0, []
        for part in parts:
            accept = part.sequence.verifier.accept
            n_made = accept(part, output, first) if part.n_out else 0
            first += part.n_out
            n_valid.append(len(part.tokens) - part.n_out + n_made)
            part.state.advance(len(part.tokens), n_valid[-1])
            if part.n_out:
                part.sequence.count(ran_at, n_made, part.draft, part.n_accepted)
        return n_valid

    def cancel(self, sequence: Sequence, reason: str = CANCELLED) -> None:
        """End a sequence now. Its last event comes with the next step."""
        self._recover()
        self._read_to_end(sequence)
        if sequence.stop_reason is None:
            sequence.end(reason)
            self._scheduler.remove(sequence)
            self._close(sequence)

    def drop(self, sequence: Sequence) -> None:
        """End a sequence, whose further events are not wanted."""
        self.cancel(sequence)
        sequence.events.clear()
        self._sequences.pop(sequence.id, None)

    def drop_others(self, wanted: Container[int]) -> None:
        """Drop the sequences whose ids are not wanted: interrupts may leave some behind."""
        for sequence in tuple(self._sequences.values()):
            if sequence.id not in wanted:
                self.drop(sequence)

    def snapshot(self, sequence: Sequence) -> SequenceSnapshot:
        """Everything that the rest of this sequence depends on; the sequence itself goes on."""
        self._recover()
        self._read_to_end(sequence)
        if sequence.stop_reason is not None:
            raise ConfigError(f"sequence {sequence.id} has ended: nothing is left to save")
        if sequence.n_dropped:
            raise ConfigError(f"sequence {sequence.id} has lost a part: it cannot be saved")
        state = sequence.state
        if state is None or not state.n_cells:
            return sequence.saved or saving.take(self._origin_of(sequence.scales), sequence, {}, {})
        blobs = self._drafting.save(sequence)
        origin = self._origin_of(sequence.scales)
        return saving.take(origin, sequence, self.store.save(state), blobs)

    def restore(self, snapshot: SequenceSnapshot, params: GenerateParams | None = None) -> Sequence:
        """Queue a saved sequence, with its own parameters or others."""
        request = saving.SavedRequest.read(snapshot)
        params = params or request.params
        origin = self._origin_of(scales_of(self._model.adapters, params.adapters))
        saving.check(origin, snapshot, self.store, self._n_vocab)
        prompt = self._checked(saving.prompt_of(snapshot))
        sequence = self._new_sequence(prompt, params, request.index)
        sequence.replay_tokens(snapshot.tokens[snapshot.n_prompt :].tolist())
        sequence.sampler.load(snapshot.blobs.get(saving.SAMPLER, b""))
        if sequence.n_missing < 1:
            raise ConfigError(
                f"the saved text has {len(sequence.tokens)} tokens already, and no more than "
                f"{sequence.max_len} are allowed"
            )
        sequence.saved = snapshot
        self._queue(sequence)
        return sequence

    def save_prefix(
        self, tokens: Tokens[int], scales: tuple[float, ...] = ()
    ) -> PrefixExport | None:
        """What a finished sequence of these tokens left in the prefix cache; None if nothing.
        `scales`: see `Sequence`."""
        self._recover()
        found = export_prefix(self._origin_of(scales), self.store, tokens, scales)
        if found is not None:
            add_drafter_blobs(found.last, self._drafting.save_prefix(tokens[: found.last.n_cells]))
        return found

    def load_prefix(self, given: PrefixExport) -> int:
        """Put that into the prefix cache; return of how many tokens it is there. It was made
        without adapters, or with scales as they are now."""
        self._recover()
        scales = self.scales_of(given)
        n = import_prefix(self._origin_of(scales), self.store, given, self._n_vocab, scales)
        self._drafting.load_prefix(given.last.tokens[:n].tolist(), drafter_blobs_of(given.last))
        return n

    def scales_of(self, given: PrefixExport) -> tuple[float, ...]:
        """The scales of adapters with which a saved sequence was made, if they are known."""
        scales = scales_of(self._model.adapters)
        return scales if given.last.model == self._origin_of(scales).model else ()

    def forget_prefix(self, tokens: Tokens[int], scales: tuple[float, ...] = ()) -> None:
        """Drop a finished sequence from the prefix cache, but for what others share with it."""
        self._recover()
        self.store.forget_prefix(tokens, scales)
        self._drafting.forget_prefix(tokens)

    def forget(self) -> None:
        """Empty the prefix cache, as if there had been no sequence."""
        if self.has_work:
            raise ConfigError("texts are still being written: what they share cannot be dropped")
        self.store.reset()
        self._drafting.forget()

    def disable_drafters_on_error(self, on_failure: Callable[[Exception], None]) -> None:
        """From now on a drafter that fails no longer drafts for the sequences under way, and
        `on_failure` is called with the exception, which is not raised. For servers: a request does
        not need drafts."""
        self._drafting.on_failure = on_failure

    def close(self) -> None:
        """No more steps: what drafters keep in files is written."""
        self._ahead.abandon()
        self._drafting.close()

    def _queue(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = sequence
        self._scheduler.waiting.append(sequence)

    def _new_sequence(
        self,
        prompt: ModelPrompt,
        params: GenerateParams,
        index: int,
        sampler: Sampler | None = None,
    ) -> Sequence:
        if sampler is None:
            sampler = self.prepare(params, index)
        verifier = self._verifier_for(params)
        sampler.begin(prompt.real_tokens() if prompt.runs else prompt.tokens)
        sequence = Sequence(
            next(self._ids),
            prompt,
            params,
            n_ctx=self.config.sizes.n_ctx,
            eog_ids=self._tokenizer.eog_ids,
            stream=self._tokenizer.stream(continues=True),
            sampler=sampler,
            verifier=verifier,
        )
        sequence.scales = scales_of(self._model.adapters, params.adapters)
        if params.thinking_spec is not None:
            sequence.track_thinking(self._thoughts())
        if verifier.picks_every_row(sampler):
            sequence.request = sampler.request
        sequence.stats.accept_mode = verifier.mode
        return sequence

    def _origin_of(self, scales: tuple[float, ...]) -> Origin:
        """Of sequences that follow adapters by these scales."""
        adapters = self._model.adapters
        if adapters is None or not scales:
            return self._origin
        return replace(self._origin, model=f"{self._origin.model}+{adapters.fingerprint(scales)}")

    def _checked(self, prompt: ModelPrompt) -> ModelPrompt:
        check_prompt(prompt, self._hparams, self.config.sizes.n_ctx)
        check_images(prompt, self._model, self.store.backend, self.config.chunk)
        return prompt

    def _thoughts(self) -> Phase:
        marks = find_thinking_marks(self._tokenizer)
        if marks is None:
            raise ConfigError(
                "speculation settings for the thinking phase need tokens that open and close it; "
                "this model has none"
            )
        return Phase(*marks)

    def _verifier_for(self, params: GenerateParams) -> Verifier:
        rule = params.spec.accept
        return self._others.of(rule) if rule and self._others is not None else self._verifier

    def _compile_rounds(self, model: Model, backend: Backend) -> DeviceRounds:
        speculation, chances = self._drafting.for_device(), self._verifier.round_chances
        rounds, store, config = None, self.store, self.config
        if speculation is not None and chances is not None:
            plan = DeviceLoopPlan(
                model.forward,
                store.state,
                self._n_vocab,
                self._tokenizer.eog_ids,
                config.sizes.n_slots,
                speculation.drafter,
                chances,
            )
            rounds = backend.compile_device_loop(plan)
        return DeviceRounds(
            rounds,
            speculation,
            self._drafting,
            self._scheduler,
            store,
            WeakMethod(self._finish),
            chances=chances,
            times=self.phase_times,
            keeps_states=store.is_recurrent and config.batch_invariant and config.reuse,
        )

    def _read_to_end(self, sequence: Sequence) -> None:
        """Read the tokens that the device has made meanwhile: they are part of the sequence."""
        if self._ahead.holds(sequence):
            self._is_amid_step = True
            self._ahead.drain()
            self._is_amid_step = False

    # the parts of a step

    def _finish(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._close(sequence, is_sound=sequence.stop_reason != ERROR)

    def _settle(self, part: SequenceRows) -> None:
        sequence, state = part.sequence, part.state
        if sequence.stop_reason is not None:
            self._finish(sequence)
            return
        if sequence.is_full:
            self._shift(sequence)
            return
        if sequence.has_thoughts:
            sequence.update_spec()
        if state.n_cells in state.wanted:
            self.store.checkpoint(state, self._drafting.carry(sequence))
        if state.n_cells == sequence.n_prompt and self._is_reusable(sequence):
            self.store.publish(state, self._reusable(sequence, state.n_cells))
        self._scheduler.move_on(part)

    def _shift(self, sequence: Sequence) -> None:
        """Let a sequence go on from a part of its context, before all that wait."""
        self._close(sequence)
        sequence.shift()
        self._scheduler.queue_again(sequence)

    def _close(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        state, sequence.state = sequence.state, None
        if state is None:
            return
        is_sound &= self._is_reusable(sequence)
        carry = self._drafting.carry(sequence) if is_sound else {}
        self._drafting.end(sequence)
        self.store.close(state, self._reusable(sequence, state.n_cells) if is_sound else (), carry)

    def _recover(self) -> None:
        """An interrupt (Ctrl-C) ended the last step anywhere: what ran in it cannot go on."""
        if not self._is_amid_step:
            return
        self._drafting.recover()
        for sequence in self._scheduler.running:
            sequence.interrupt()
            self._scheduler.remove(sequence)
            sequence.state = None
            self._drafting.end(sequence)
        self._ahead.abandon()
        self.store.reset()
        self._is_amid_step = False

    def _is_reusable(self, sequence: Sequence) -> bool:
        # Finite logits vouch for the cells before them. Nothing vouches for what a file held.
        return self.config.reuse and sequence.stats.steps > 0 and sequence.saved is None

    def _reusable(self, sequence: Sequence, n_cells: int) -> list[int]:
        if not self.config.batch_invariant:
            n_cells = min(n_cells, sequence.n_prompt) // self.config.chunk * self.config.chunk
        return sequence.tokens[:n_cells]
