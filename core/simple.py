"""Speculative decoding on one page: one text, no engine, no controller.

A model that writes token by token reads all of its weights for each of them, and reading is what
takes the time: a pass over five tokens is hardly slower than a pass over one. So somebody cheap
guesses how the text goes on, and the model reads the newest token and the whole guess, the
*draft*, in one pass:

    rows of the pass     the   quick  brown  cat
    what the model says  quick brown  fox    ...
                         ok    ok     no: "fox" it is

Behind each row the model says what it would write there. Where that is the next token of the
draft, the draft was right; the first word that differs is the model's own, and it is text too. So
every pass brings one token more than the draft had right, and not one that the model would not
have written without a draft: the same seed gives the same text.

`core/engine` does the same for many texts at once, with a controller that chooses how long drafts
are; the speculators are those of `core/speculation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from time import perf_counter
from typing import Final

from .backend.interface import Backend, HostOutput
from .backend.step import Step
from .generation import TARGET
from .models.base import Model
from .sampling.sampler import Sampler
from .speculation.interface import Draft, DraftRequest, SequenceStart, Speculator, StepResult
from .state.rows import StateRows
from .state.sizes import WINDOW, StateSizes
from .state.store import SequenceState, StateStore

PROMPT_ROWS: Final = 256  # of one pass over a part of the prompt
LONGEST_DRAFT: Final = WINDOW - 1  # a recurrent model can take back no more
THE_TEXT: Final = 0  # speculators know texts by number; here is only one


class SimpleLoop:
    def __init__(
        self, model: Model, backend: Backend, speculators: Sequence[Speculator], n_ctx: int
    ) -> None:
        """The first of the speculators that has a draft is listened to."""
        self.drafters = [Counted(speculator) for speculator in speculators]
        # The model's memory of a text: keys and values of attention, states of recurrent layers.
        sizes = StateSizes(n_ctx)
        reruns_last = any(speculator.reruns_last for speculator in speculators)
        self.store = StateStore(
            backend, model.state_shape, sizes, chunk=PROMPT_ROWS, reruns_last=reruns_last
        )
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
        """Tokens and who proposed them: `n_predict`, or fewer if one of `ends` is written."""
        text = list(prompt)
        full = len(text) + n_predict
        state = self.store.open(prompt, max_cells=full - 1)  # the last token is never read
        assert state is not None, "there is room for one text"
        sampler.begin(prompt)
        try:
            self._read_prompt(text, state)
            token = None
            while len(text) < full and token not in ends:
                for token, source in self._round(text, state, sampler, full - len(text), ends):
                    yield token, source
        finally:
            for drafter in self.drafters:
                drafter.speculator.end(THE_TEXT)

    def close(self) -> None:
        """No more texts."""
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

        # 4. Take back what was wrong, by counting: cells behind the rows that hold are dead, and
        #    recurrent states are made again from as many of the updates that were kept.
        state.advance(len(rows), n_valid=n_picked)

        # 5. Let everybody learn from it.
        self._tell(StepResult(step, output, [THE_TEXT], [n_picked], 1000 * seconds))
        if author is not None:
            author.count(len(draft.tokens), n_right)
            for drafter in self.drafters:
                drafter.settle(n_right, mine=drafter is author)

    def _read_prompt(self, text: list[int], state: SequenceState) -> None:
        """All of it but the last token: that is the first row of the first pass."""
        began_at = perf_counter()
        for drafter in self.drafters:
            drafter.begin(SequenceStart(THE_TEXT, text, state))
        for first in range(0, len(text) - 1, PROMPT_ROWS):
            rows = text[first : min(first + PROMPT_ROWS, len(text) - 1)]
            step, output = self._pass(state, rows, n_out=0)
            state.advance(len(rows), len(rows))
            self._tell(StepResult(step, output, [THE_TEXT], [len(rows)]))
        self.prompt_s = perf_counter() - began_at

    def _pass(self, state: SequenceState, rows: list[int], n_out: int) -> tuple[Step, HostOutput]:
        """The model reads `rows` and says what comes after each of the last `n_out`."""
        self._rows.begin()
        self._rows.add(state, rows, n_out)
        step = self._rows.step()
        return step, self._run(step)

    def _draft(self, text: list[int], sampler: Sampler, room: int) -> tuple[Draft, Counted | None]:
        """A draft and who made it; nobody, if there is no room or no idea."""
        longest = min(room, LONGEST_DRAFT)
        if longest > 0:
            for drafter in self.drafters:
                draft = drafter.propose(DraftRequest(THE_TEXT, text, longest, sampler))
                if draft.tokens:
                    return Draft(draft.tokens[:longest], draft.sources[:longest]), drafter
        return Draft(), None

    def _tell(self, seen: StepResult) -> None:
        for drafter in self.drafters:
            drafter.observe(seen)


class Counted:
    """A speculator, and what it did and took."""

    def __init__(self, speculator: Speculator) -> None:
        self.speculator, self.name = speculator, speculator.name
        self.n_calls = 0
        self.n_drafts = self.n_accepted_drafts = 0  # accepted: at least one token of it
        self.n_drafted = self.n_accepted = 0  # tokens
        self.by_place: list[int] = []  # accepted tokens, by place in the draft
        self.begin_s = self.draft_s = self.learn_s = 0.0

    def begin(self, opening: SequenceStart) -> None:
        began_at = perf_counter()
        self.speculator.begin(opening)
        self.begin_s += perf_counter() - began_at

    def propose(self, ask: DraftRequest) -> Draft:
        began_at = perf_counter()
        (draft,) = self.speculator.propose([ask])
        self.draft_s += perf_counter() - began_at
        self.n_calls += 1
        return draft

    def observe(self, seen: StepResult) -> None:
        began_at = perf_counter()
        self.speculator.observe(seen)
        self.learn_s += perf_counter() - began_at

    def settle(self, n_right: int, *, mine: bool) -> None:
        began_at = perf_counter()
        self.speculator.settle(THE_TEXT, n_right, mine=mine)
        self.learn_s += perf_counter() - began_at

    def count(self, n_drafted: int, n_right: int) -> None:
        """Of a draft of its own."""
        self.n_drafts += 1
        self.n_accepted_drafts += n_right > 0
        self.n_drafted += n_drafted
        self.n_accepted += n_right
        self.by_place += [0] * (n_drafted - len(self.by_place))
        for place in range(n_right):
            self.by_place[place] += 1
