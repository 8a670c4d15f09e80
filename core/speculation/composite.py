"""Several speculators as one: who is asked, and how their proposals become one draft.

N-grams cost next to nothing and are asked first; then the policy says for whom a model drafts and
how far; then the splice joins what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final

from ..state.store import StateStore
from .composite_device import CompositeDevice
from .device_speculation import DeviceSpeculation
from .drafters.hidden_state import HiddenStateDrafter
from .interface import Draft, DraftRequest, SequenceStart, Speculator, StepResult
from .plans import ModelOffer, Plan, PlanRequest, Policy
from .rehearsal import OWNER, Go, Rehearsal
from .run import Run
from .splice import shortened, splice

QUESTIONS: Final = 0.01  # of a step's time may go into asking, while nothing is drafted
LONGEST_REST: Final = 64  # rounds, for each text under way
GLANCE_EVERY: Final = 7  # rounds of a rest, between two looks at n-grams, to begin with
FIRST_GLANCE: Final = 28  # the same at the beginning of a text, where they did not pay in the last
SELDOM: Final = 56  # the same, while they do not pay
_FORGET: Final = 0.9  # of that profit, at every question
AFTER_MISS: Final = 5  # rounds
_HEARD_EVERY: Final = 8  # rounds without a rest: whether models are wanted changes seldom
_LONG: Final = 96  # rows of a prompt: of which a model that is wanted reads the end


class CompositeSpeculator(Speculator):
    listens = False  # an attribute: it is looked at in every round

    def __init__(self, speculators: Sequence[Speculator], policy: Policy) -> None:
        """`speculators` in the order of their precedence."""
        self._all, self.policy = list(speculators), policy
        self._cheap = self._wanted()
        self._cheap_names = {each.name for each in speculators if not each.is_model}
        self._limited: dict[int, frozenset[str]] = {}  # texts for which only some may draft
        self._models = [each for each in speculators if each.is_model]
        self.taps = frozenset().union(*(each.taps for each in self._all))
        self._observers = [
            each for each in self._all if type(each).observe is not Speculator.observe
        ]
        self._settlers = [each for each in self._all if type(each).settle is not Speculator.settle]
        self._rehearsal: Rehearsal | None = None
        self._go: Go | None = None  # of the rehearsal, under way
        self._drafts: dict[int, Draft] = {}  # the latest of each sequence
        self._listeners: set[tuple[int, str]] = set()  # texts, and models that keep up with them
        self._has_naps = True  # a model lets rows pass by until shortly before it is tried
        self._begun: set[int] = set()  # texts under way
        self._n_unheard = 0  # rounds since it was asked whom models are to keep up with
        self._resting = 0  # rounds of the rest that is over, or under way
        self._to_rest = 0  # rounds that it may still last
        self._glance = GLANCE_EVERY  # rounds of a rest, between two looks at n-grams
        self._run: Run | None = None  # of the text that is alone, while its n-grams are right
        self._profit = 0.0  # ms that n-grams have saved lately, less what it took to ask
        self._step_ms = 0.0  # what the latest step took

    def attach(self, store: StateStore) -> None:
        for each in self._all:
            each.attach(store)

    def begin(self, opening: SequenceStart) -> None:
        sequence = opening.sequence
        self._run, self.skips_step = None, False
        # Another text may repeat what the last one did not: a first look is soon, but sooner where
        # looks have paid lately.
        self._glance = GLANCE_EVERY if self._profit >= 0.0 else FIRST_GLANCE
        if self._begun:
            self._wake_after(self._glance)
        else:
            self.rest = self._to_rest = self._n_unheard = 0
        self._begun.add(sequence)
        self.policy.begin(sequence)
        for each in self._all:
            if each.is_model:
                self._begin_model(each, opening)
            else:
                each.begin(opening)
        self._cheap = self._wanted()
        self.limit(sequence, opening.spec.sources)

    def _begin_model(self, model: Speculator, opening: SequenceStart) -> None:
        sequence = opening.sequence
        is_wanted = self.policy.wants(sequence, model.name)
        is_long = len(opening.tokens) - opening.state.n_cells > _LONG
        reads_all = is_wanted and not (is_long and self.policy.quick_ms())
        model.begin(opening if reads_all else opening._replace(is_wanted=False))
        if is_wanted:
            self._note_listener((sequence, model.name), listens=True)
            if not reads_all:
                model.keep_up(sequence, wanted=True)

    def limit(self, sequence: int, sources: frozenset[str]) -> None:
        self._run = None
        if sources:
            self._limited[sequence] = sources
        else:
            self._limited.pop(sequence, None)

    def _hear(self, sequence: int, model: Speculator) -> None:
        key = sequence, model.name
        wanted = self.policy.wants(*key) and not (self._has_naps and self.policy.may_nap(*key))
        if wanted != (key in self._listeners):
            model.keep_up(sequence, wanted=wanted)
            self._note_listener(key, listens=wanted)

    def _note_listener(self, key: tuple[int, str], *, listens: bool) -> None:
        (self._listeners.add if listens else self._listeners.discard)(key)
        self.listens = bool(self.taps and self._listeners)

    def hears(self, sequence: int, model: Speculator) -> bool:
        """Whether the model is to keep up with the text: decided anew. For rounds, which it takes
        part in or not: none are made while it wakes up."""
        self._has_naps = False
        self._hear(sequence, model)
        return (sequence, model.name) in self._listeners

    def may_draft(self, sequence: int, model: Speculator) -> bool:
        return sequence not in self._limited or model.name in self._limited[sequence]

    def for_rounds(self) -> DeviceSpeculation | None:
        """If no model drafts, or the one that does is a head that a device can run by itself."""
        if not self._models:
            return CompositeDevice(self, None)
        model = self._models[0]
        if (
            len(self._models) > 1
            or not isinstance(model, HiddenStateDrafter)
            or not model.can_be_lent
        ):
            return None
        return CompositeDevice(self, model)

    def rehearse(self) -> bool:
        if not self.policy.repeats:
            self._rehearsal = Rehearsal([each.name for each in self._models])
        return self.is_rehearsing

    @property
    def is_rehearsing(self) -> bool:
        return self._rehearsal is not None

    def _practise(self, rehearsal: Rehearsal, asks: Sequence[DraftRequest]) -> list[Draft]:
        go = self._go = rehearsal.next()
        if go is None:
            self._rehearsal = None
            return [Draft() for _ in asks]
        if not go.model:
            drafts = [Draft([ask.tokens[-1]] * go.n, [OWNER] * go.n) for ask in asks]
        else:
            (model,) = (each for each in self._models if each.name == go.model)
            plans = [Plan(model=go.model, n_model=min(go.n, ask.max_draft)) for ask in asks]
            drafts = [Draft() for _ in asks]
            self._ask_model(model, asks, plans, drafts)
        for ask, draft in zip(asks, drafts, strict=True):
            self._drafts[ask.sequence] = draft
        return drafts

    def propose(self, asks: Sequence[DraftRequest]) -> Sequence[Draft]:
        if self._rehearsal is not None:
            return self._practise(self._rehearsal, asks)
        if self._run is not None and (draft := self._go_on(self._run, asks)) is not None:
            return [draft]
        was_resting = self._to_rest > 0
        if was_resting:
            if not self.is_known(asks):
                self._glance = min(2 * self._glance, SELDOM)
                self._rest_on()
                return [Draft() for _ in asks]
            self._to_rest = 0
        self._n_unheard += 1
        if self._is_time_to_hear():
            self._hear_all(asks)
        if not was_resting and self._nobody_could(asks):
            self._pass_by(asks)
            return [Draft() for _ in asks]
        self._tell_of_rest(asks)
        return self._question(asks)

    def _is_time_to_hear(self) -> bool:
        if self._n_unheard >= _HEARD_EVERY or self._resting >= LONGEST_REST:
            return True
        return bool(self._listeners) and self.policy.quick_ms() > 0.0

    def _hear_all(self, asks: Sequence[DraftRequest]) -> None:
        self._tell_of_rest(asks)
        self._n_unheard = 0
        for model in self._models:
            for ask in asks:
                self._hear(ask.sequence, model)

    def _pass_by(self, asks: Sequence[DraftRequest]) -> None:
        """A round without a question; where steps are quick, more of them."""
        self._resting += 1
        if self.policy.quick_ms():
            if self._profit < 0.0:
                self._glance = min(2 * self._glance, SELDOM)
            self._to_rest = LONGEST_REST * len(self._begun)
            self._rest_on()
            return
        if not self._n_unheard:  # now and then
            self.policy.passed_by(len(asks), sum(len(ask.tokens) for ask in asks))
        self.skips_step = self._n_unheard > 0  # what one takes has been told of lately

    def _tell_of_rest(self, asks: Sequence[DraftRequest]) -> None:
        if self._resting:
            for ask in asks:
                self.policy.rested(ask.sequence, self._resting)
            self._resting = 0

    def _begin_run(self, ask: DraftRequest, whole: Draft, n: int) -> None:
        if not self.policy.repeats and self.policy.quick_ms():
            self._run = Run(ask, whole, n)

    def _go_on(self, run: Run, asks: Sequence[DraftRequest]) -> Draft | None:
        """With what is left of a draft that was right."""
        ask = asks[0]
        draft = run.next(ask) if len(asks) == 1 and ask.sequence == run.sequence else None
        if draft is None:
            self._run = None
        else:
            self.policy.go_on(ask, draft)
            self._drafts[ask.sequence] = draft
        return draft

    def _question(self, asks: Sequence[DraftRequest]) -> Sequence[Draft]:
        began = perf_counter()
        cheap = self._ask_cheap(asks) if self._cheap else []
        if self._limited:
            cheap = self._permitted(cheap, asks)
        drafts = self._propose(asks, cheap)
        ms = 1000 * (perf_counter() - began)
        self._profit = _FORGET * self._profit - ms
        for draft in drafts:
            if draft.tokens:
                return drafts
        if not self.policy.repeats:
            if self._profit < 0.0:
                self._glance = min(2 * self._glance, SELDOM)
            self._take_a_rest(ms)
        return drafts

    def _nobody_could(self, asks: Sequence[DraftRequest]) -> bool:
        """No model is awake, and n-grams know nothing: there is nothing to decide."""
        if self._listeners or self.policy.repeats:
            return False
        return not self.is_known(asks)

    def _take_a_rest(self, ms: float) -> None:
        """Where a question takes long beside a step, it is asked less often while the answer is
        nothing."""
        affordable = QUESTIONS * self._step_ms
        if affordable:
            self._to_rest = min(LONGEST_REST * len(self._begun), int(ms / affordable))
            self._rest_on()

    def _rest_on(self) -> None:
        """In between only n-grams are asked, which takes little, and now and then; of many texts
        some nearly always know something, and a question takes longer."""
        n = min(self._to_rest, self._glance * len(self._begun)) if self._cheap else self._to_rest
        if self._to_rest < n + n // 2:
            n = self._to_rest  # its end is a look, too
        self.rest = n
        self._to_rest -= n
        self._resting += n

    def _wake_after(self, n: int) -> None:
        """Of the rounds that were to pass without a look no more than these are left."""
        early = max(self.rest - n, 0)
        self.rest -= early
        self._resting -= early
        self._to_rest += early

    def _propose(self, asks: Sequence[DraftRequest], cheap: list[Sequence[Draft]]) -> list[Draft]:
        infos = []
        for i, ask in enumerate(asks):
            sequence, tokens, max_draft, *_ = ask
            offers = []
            for each in self._models if self._listeners else ():
                if (sequence, each.name) not in self._listeners:
                    continue
                if not self.may_draft(sequence, each):
                    continue
                if (n := each.n_pending(sequence)) >= 0:
                    offers.append(ModelOffer(each.name, each.longest, n, each.n_trial))
            infos.append(
                PlanRequest(sequence, tokens, max_draft, [drafts[i] for drafts in cheap], offers)
            )
        plans = self.policy.plan(infos)
        drafts = [self._cheap_part(cheap, i, plan) for i, plan in enumerate(plans)]
        for each in self._models:
            self._ask_model(each, asks, plans, drafts)
        if len(plans) == 1 and plans[0].n_cheap and not plans[0].model:
            self._begin_run(asks[0], cheap[plans[0].cheap][0], plans[0].n_cheap)
        for i, n in enumerate(self.policy.cut(drafts)):
            # What was drawn stays: whether n-grams agree with it depends on which it was.
            drafts[i] = shortened(drafts[i], max(n, len(drafts[i].distributions)))
            self._drafts[asks[i].sequence] = drafts[i]
        return drafts

    def observe(self, seen: StepResult) -> None:
        for each in self._observers:
            if self._listeners or not each.taps:
                each.observe(seen)
        self.step_took(seen.ms)
        if self.rest or (self._go is not None and not self._go.counts):
            return
        step = seen.step
        if len(step.out_rows) == len(step.tokens):  # no pieces of prompts
            n_cells = int(step.past[0]) if len(step.past) == 1 else int(step.past.sum())
            self.policy.observe_step(len(step.tokens), n_cells, seen.ms)

    def step_took(self, ms: float) -> None:
        self._step_ms = ms

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        if self._go is not None:
            return
        draft = self._drafts[sequence]
        self.policy.settle(sequence, draft, n_accepted)
        self.tell_others(sequence, draft, n_accepted)
        if self._listeners and not n_accepted:
            self._n_unheard = _HEARD_EVERY  # a model that was tried may sleep again
        is_alone = len(self._drafts) == 1
        if is_alone and not self.policy.repeats and draft.sources[0] in self._cheap_names:
            self._count_profit(n_accepted)

    def tell_others(self, sequence: int, draft: Draft, n_accepted: int) -> None:
        for each in self._settlers:
            each.settle(sequence, n_accepted, mine=each.name in draft.sources)

    def _count_profit(self, n_accepted: int) -> None:
        """Of n-grams, for one text alone, where asking takes long beside a step."""
        plain = self.policy.quick_ms()
        if not plain:
            return
        self._profit += (n_accepted + 1) * plain - self._step_ms
        if self._profit > 0.0:
            self._glance = GLANCE_EVERY
        if not n_accepted:  # what was looked up goes on differently here
            self._to_rest = AFTER_MISS if self._profit > 0.0 else self._glance
            self._rest_on()

    def end(self, sequence: int) -> None:
        self._rehearsal = self._go = self._run = None
        self._begun.discard(sequence)
        self.policy.end(sequence)
        self._drafts.pop(sequence, None)
        self._limited.pop(sequence, None)
        for model in self._models:
            self._note_listener((sequence, model.name), listens=False)
        for each in self._all:
            each.end(sequence)
        self._cheap = self._wanted()

    def recover(self) -> None:
        self.skips_step = False
        for each in self._all:
            each.recover()

    def forget(self) -> None:
        for each in self._all:
            each.forget()

    def close(self) -> None:
        self.policy.close()
        for each in self._all:
            each.close()

    def carry(self, sequence: int) -> dict[str, bytes]:
        return {k: v for each in self._all for k, v in each.carry(sequence).items()}

    def save(self, sequence: int) -> dict[str, bytes]:
        return {f"{each.name}.{k}": v for each in self._all for k, v in each.save(sequence).items()}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        for each, own in self._shares(blobs):
            each.load(sequence, own)

    def save_prefix(self, tokens: Sequence[int]) -> dict[str, bytes]:
        return {
            f"{each.name}.{k}": v for each in self._all for k, v in each.save_prefix(tokens).items()
        }

    def load_prefix(self, tokens: Sequence[int], blobs: dict[str, bytes]) -> None:
        for each, own in self._shares(blobs):
            each.load_prefix(tokens, own)

    def forget_text(self, tokens: Sequence[int]) -> None:
        for each in self._all:
            each.forget_text(tokens)

    def _shares(self, blobs: dict[str, bytes]) -> Iterator[tuple[Speculator, dict[str, bytes]]]:
        """Whose blobs these are."""
        for each in self._all:
            prefix = f"{each.name}."
            own = {k.removeprefix(prefix): v for k, v in blobs.items() if k.startswith(prefix)}
            if own:
                yield each, own

    # the parts of a draft

    def _wanted(self) -> list[Speculator]:
        return [each for each in self._all if not each.is_model and each.is_wanted]

    def _permitted(
        self, cheap: list[Sequence[Draft]], asks: Sequence[DraftRequest]
    ) -> list[Sequence[Draft]]:
        """Without what some texts do not want: everybody was asked for everybody."""
        allowed = [self._limited.get(ask.sequence) for ask in asks]
        return [
            [
                draft if names is None or each.name in names else Draft(ms=draft.ms)
                for draft, names in zip(drafts, allowed, strict=True)
            ]
            for each, drafts in zip(self._cheap, cheap, strict=True)
        ]

    def is_known(self, asks: Sequence[DraftRequest]) -> bool:
        """Some n-gram could have a draft."""
        for each in self._cheap:
            for ask in asks:
                if each.knows(ask):
                    return True
        return False

    def _ask_cheap(self, asks: Sequence[DraftRequest]) -> list[Sequence[Draft]]:
        """By speculator, then by ask."""
        made = []
        for each in self._cheap:
            began = perf_counter()
            drafts = each.propose(asks)
            ms = 1000 * (perf_counter() - began) / len(asks)
            for draft in drafts:
                draft.ms[each.name] = ms
            made.append(drafts)
        return made

    def _cheap_part(self, cheap: list[Sequence[Draft]], i: int, plan: Plan) -> Draft:
        draft = shortened(cheap[plan.cheap][i], plan.n_cheap) if plan.n_cheap else Draft()
        for drafts in cheap:  # everybody was asked
            draft.ms.update(drafts[i].ms)
        return draft

    def _ask_model(
        self,
        model: Speculator,
        asks: Sequence[DraftRequest],
        plans: Sequence[Plan],
        drafts: list[Draft],
    ) -> None:
        wanted, chosen, n_pending, longest = [], [], 0, 0
        for i, plan in enumerate(plans):
            if plan.model == model.name:
                sequence, tokens, _, sampler, *_ = asks[i]
                ask = DraftRequest(
                    sequence, tokens, plan.n_model, sampler, plan.stop_below, plan.is_trial
                )
                wanted.append(ask)
                chosen.append(i)
                n = model.n_pending(sequence)
                n_pending += min(n, model.n_trial) if plan.is_trial else n
                longest = max(longest, plan.n_model)
        if not chosen:
            return
        began = perf_counter()
        made = model.propose(wanted)
        ms = 1000 * (perf_counter() - began)
        if self._go is None or self._go.counts:
            self.policy.observe_draft(model.name, longest, len(chosen), ms, n_pending)
        for i, draft in zip(chosen, made, strict=True):
            draft.ms[model.name] = ms / len(chosen)
            drafts[i] = splice(drafts[i], draft, asks[i].max_draft)
