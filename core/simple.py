"""Speculative decoding on one page: one sequence, no engine, no controller.

A model that writes token by token reads all of its weights for each of them, and reading is what
takes the time: a pass over five tokens is hardly slower than a pass over one. So a cheap drafter
proposes how the text continues, and the model reads the newest token and the whole proposal, the
*draft*, in one pass:

    rows of the pass     the   quick  brown  cat
    what the model says  quick brown  fox    ...
                         ok    ok     no: "fox" it is

Each row of the pass yields the token that the model would write next. Where that equals the next
token of the draft, the draft token is accepted; the first token that differs is the model's own,
and it belongs to the text too. So every pass adds one token more than were accepted, and each is
the token that the model would have written without a draft: the same seed gives the same text.

`core/engine` does the same for many sequences at once, with a controller that chooses the length
of drafts; the speculators are those of `core/speculation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from time import perf_counter
from typing import Final

from .backend.interface import Backend, HostOutput
from .backend.step import Step
from .generation import TARGET
from .models.adapters import scales_of
from .models.model import Model
from .sampling.sampler import Sampler
from .speculation.draft import Draft, DraftRequest
from .speculation.interface import SequenceStart, Speculator, StepResult
from .state.sizes import WINDOW, StateSizes
from .state.state_rows import StateRows
from .state.store import SequenceState, StateStore

PROMPT_ROWS: Final = 256  # of one pass over a part of the prompt
LONGEST_DRAFT: Final = WINDOW - 1  # a recurrent model can take back no more
SEQUENCE_ID: Final = 0  # speculators know sequences by number; here is only one


class SimpleLoop:
    def __init__(
        self, model: Model, backend: Backend, speculators: Sequence[Speculator], n_ctx: int
    ) -> None:
        """The draft of the first speculator that has one is verified."""
        self.drafters = [CountedSpeculator(speculator) for speculator in speculators]
        # The state of a sequence: keys and values of attention, states of recurrent layers.
        sizes = StateSizes(n_ctx)
        reruns_last = any(speculator.reruns_last for speculator in speculators)
        self.store = StateStore(
            backend, model.state_shape, sizes, chunk=PROMPT_ROWS, reruns_last=reruns_last,
            n_adapters=len(model.adapters or ()),
        )  # fmt: skip
        self._scales = scales_of(model.adapters)
        self._rows = StateRows(self.store, max(PROMPT_ROWS, WINDOW))
        for speculator in speculators:
            speculator.attach(self.store)
        # Some speculators go on from hidden rows of the model: it is compiled to leave them.
        taps = frozenset(tap for speculator in speculators for tap in speculator.taps)
        self._run = backend.compile(
            model.forward, self.store.state, max_rows=max(PROMPT_ROWS, WINDOW), taps=taps
        )
        self.n_passes, self.passes_s, self.prompt_s = 0, 0.0, 0.0  # passes after the prompt

    def write(
        self, prompt: Sequence[int], sampler: Sampler, n_predict: int, ends: Collection[int]
    ) -> Iterator[tuple[int, str]]:
        """Yield tokens and their sources: `n_predict`, or fewer if one of `ends` is written."""
        text = list(prompt)
        full = len(text) + n_predict
        # The last token is never read.
        state = self.store.open(prompt, max_cells=full - 1, scales=self._scales)
        assert state is not None, "there is room for one sequence"
        sampler.begin(prompt)
        try:
            self._read_prompt(text, state)
            token = None
            while len(text) < full and token not in ends:
                for token, source in self._round(text, state, sampler, full - len(text), ends):
                    yield token, source
        finally:
            for drafter in self.drafters:
                drafter.speculator.end(SEQUENCE_ID)

    def close(self) -> None:
        """End all speculators."""
        for drafter in self.drafters:
            drafter.speculator.close()

    def _round(
        self,
        text: list[int],
        state: SequenceState,
        sampler: Sampler,
        n_missing: int,
        ends: Collection[int],
    ) -> Iterator[tuple[int, str]]:
        # 1. Draft. The model adds one token to what is right, and there must be room for it.
        draft, author = self._draft(text, sampler, n_missing - 1)

        # 2. One pass over the newest token, which the model has not read yet, and the draft.
        rows = [text[-1], *draft.tokens]
        began_at = perf_counter()
        step, output = self._pass(state, rows, n_out=len(rows))
        seconds = perf_counter() - began_at
        self.n_passes += 1
        self.passes_s += seconds

        # 3. Verify: pick behind each row, until the pick is not the next token of the draft.
        n_picked, token, is_right = 0, None, True
        while is_right and token not in ends:
            token = sampler.pick_row(output, n_picked, text, len(text))
            sampler.accept(token)
            text.append(token)
            is_right = n_picked < len(draft.tokens) and draft.tokens[n_picked] == token
            yield token, draft.sources[n_picked] if is_right else TARGET
            n_picked += 1
        n_right = n_picked - 1  # the last one is the model's own, or the end

        # 4. Drop the rejected rows by counting: cells after the accepted rows are free again, and
        #    recurrent states are computed again from that many of the stored updates.
        state.advance(len(rows), n_valid=n_picked)

        # 5. Report the step to every drafter.
        self._observe(StepResult(step, output, [SEQUENCE_ID], [n_picked], 1000 * seconds))
        if author is not None:
            author.count(len(draft.tokens), n_right)
            for drafter in self.drafters:
                drafter.settle(n_right, mine=drafter is author)

    def _read_prompt(self, text: list[int], state: SequenceState) -> None:
        """Read all of the prompt but its last token, which is the first row of the first round."""
        began_at = perf_counter()
        for drafter in self.drafters:
            drafter.begin(SequenceStart(SEQUENCE_ID, text, state))
        for first in range(0, len(text) - 1, PROMPT_ROWS):
            rows = text[first : min(first + PROMPT_ROWS, len(text) - 1)]
            step, output = self._pass(state, rows, n_out=0)
            state.advance(len(rows), len(rows))
            self._observe(StepResult(step, output, [SEQUENCE_ID], [len(rows)]))
        self.prompt_s = perf_counter() - began_at

    def _pass(self, state: SequenceState, rows: list[int], n_out: int) -> tuple[Step, HostOutput]:
        """Run the model over `rows`; the output has logits for the last `n_out` of them."""
        self._rows.begin()
        self._rows.add(state, rows, n_out)
        step = self._rows.step()
        return step, self._run(step)

    def _draft(
        self, text: list[int], sampler: Sampler, room: int
    ) -> tuple[Draft, CountedSpeculator | None]:
        """Return a draft and its drafter; an empty draft and None where there is none."""
        longest = min(room, LONGEST_DRAFT)
        if longest > 0:
            for drafter in self.drafters:
                draft = drafter.propose(DraftRequest(SEQUENCE_ID, text, longest, sampler))
                if draft.tokens:
                    return Draft(draft.tokens[:longest], draft.sources[:longest]), drafter
        return Draft(), None

    def _observe(self, result: StepResult) -> None:
        for drafter in self.drafters:
            drafter.observe(result)


class CountedSpeculator:
    """A speculator with counts of its drafts and the seconds that it took."""

    def __init__(self, speculator: Speculator) -> None:
        self.speculator, self.name = speculator, speculator.name
        self.n_calls = 0
        self.n_drafts = self.n_accepted_drafts = 0  # accepted: at least one token of it
        self.n_drafted = self.n_accepted = 0  # tokens
        self.by_place: list[int] = []  # accepted tokens, by place in the draft
        self.begin_s = self.draft_s = self.learn_s = 0.0

    def begin(self, start: SequenceStart) -> None:
        began_at = perf_counter()
        self.speculator.begin(start)
        self.begin_s += perf_counter() - began_at

    def propose(self, request: DraftRequest) -> Draft:
        began_at = perf_counter()
        (draft,) = self.speculator.propose([request])
        self.draft_s += perf_counter() - began_at
        self.n_calls += 1
        return draft

    def observe(self, result: StepResult) -> None:
        began_at = perf_counter()
        self.speculator.observe(result)
        self.learn_s += perf_counter() - began_at

    def settle(self, n_right: int, *, mine: bool) -> None:
        began_at = perf_counter()
        self.speculator.settle(SEQUENCE_ID, n_right, mine=mine)
        self.learn_s += perf_counter() - began_at

    def count(self, n_drafted: int, n_right: int) -> None:
        """Add one draft of this speculator to the counts."""
        self.n_drafts += 1
        self.n_accepted_drafts += n_right > 0
        self.n_drafted += n_drafted
        self.n_accepted += n_right
        self.by_place += [0] * (n_drafted - len(self.by_place))
        for place in range(n_right):
            self.by_place[place] += 1
