"""Any order of texts, drafts, faults, cancels and restores: each text is as if it were alone.

Target and draft model are scripted: the next token depends on every cell and every pending row,
so a draft model of the same kind as the target is right if and only if its state is.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.drafting import Watched
from support.scripted import (
    HYBRID,
    KV,
    N_VOCAB,
    SMALL,
    ScriptedBackend,
    ScriptedTokenizer,
    assert_nothing_is_held,
    make_engine,
    write_alone,
)
from support.thoroughness import n_examples

from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence
from nextn.core.generation import CANCELLED, GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.draft_model import DraftModel
from nextn.core.speculation.drafters.vocabulary_bridge import SharedTokens
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.setting import LoadedModel, Setting
from nextn.core.state.sizes import StateSizes

PROMPTS = st.builds(
    lambda length, tail: ([9, 1, 2, 3, 4, 5, 6, 7] * 4)[:length] + tail,
    st.sampled_from([0, 5, 7, 13, 30]),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
REQUESTS = st.builds(
    GenerateParams,
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 3),
        repeat_penalty=st.sampled_from([1.0, 1.3]),
    ),
    max_tokens=st.one_of(st.none(), st.integers(1, 25)),
)
ACTIONS = st.one_of(
    st.tuples(st.just("add"), PROMPTS, REQUESTS),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 4)),
    st.tuples(st.just("move"), st.integers(0, 4)),
)


def scripted_model(*, hybrid: bool, n_ctx: int) -> LoadedModel:
    hparams = SimpleNamespace(n_vocab=N_VOCAB, n_ctx_train=n_ctx)
    model = SimpleNamespace(state_shape=HYBRID if hybrid else KV, forward=None, hparams=hparams)
    parts: tuple[Any, ...] = (SimpleNamespace(label="scripted"), model, ScriptedTokenizer())
    return LoadedModel(*parts)


def scripted_drafter(
    *, hybrid: bool, sizes: StateSizes, n_max: int, n_ctx: int, chains: bool = True
) -> DraftModel:
    draft = scripted_model(hybrid=hybrid, n_ctx=n_ctx)
    options = SpecOptions(types=("draft",), draft_n_max=n_max)
    backend = cast(Any, ScriptedBackend(hybrid=hybrid, chains=chains))
    setting = Setting(options, draft, backend, sizes.n_slots, sizes.n_ctx, draft)
    language = SharedTokens(N_VOCAB, N_VOCAB, ScriptedTokenizer.eog_ids)
    return DraftModel(setting, draft, language)


class Life:
    """One engine, and what was asked of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.texts: list[Sequence] = []

    def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("add", prompt, how):
                self.texts.append(self.engine.add(prompt, how))
            case ("step", n):
                for _ in range(n):
                    self.engine.step()
            case ("cancel", i) if i < len(self.texts):
                self.engine.cancel(self.texts[i])
            case ("move", i) if i < len(self.texts) and self.texts[i].stop_reason is None:
                snapshot = self.engine.snapshot(self.texts[i])
                self.engine.cancel(self.texts[i])
                self.texts.append(self.engine.restore(snapshot))

    def check(self) -> None:
        while self.engine.has_work:
            self.engine.step()
        for text in self.texts:
            made = text.tokens[text.n_prompt :]
            want = write_alone(
                text.tokens[: text.n_prompt],
                text.params,
                hybrid=self.engine.store.is_recurrent,
                n_ctx=self.engine.config.sizes.n_ctx,
            ).tokens
            assert made == (want[: len(made)] if text.stop_reason == CANCELLED else want)
        assert_nothing_is_held(self.engine)


@settings(max_examples=n_examples(200), deadline=None)
@given(
    st.tuples(st.booleans(), st.booleans()),
    st.booleans(),
    st.lists(ACTIONS, max_size=25),
    st.lists(st.integers(0, 1), min_size=1, max_size=7),
    st.integers(0, 9),
    st.sampled_from([20, 48]),
    st.integers(1, 3),
)
def test_every_text_is_as_if_it_were_alone(
    hybrid: tuple[bool, bool],
    chains: bool,
    actions: list[tuple[Any, ...]],
    faults: list[int],
    n_max: int,
    n_ctx: int,
    n_slots: int,
) -> None:
    right: list[int] = []

    def spoil(_ask: DraftRequest, draft: Draft) -> None:
        n = len(draft.tokens)
        wrong = [faults[(len(right) + place) % len(faults)] for place in range(n)]
        draft.tokens[:] = [
            t + w if t < 59 else t - w for t, w in zip(draft.tokens, wrong, strict=True)
        ]
        if n:
            right.append(wrong.index(1) if 1 in wrong else n)

    sizes = replace(SMALL, n_slots=n_slots, window=7)
    inner = scripted_drafter(hybrid=hybrid[1], sizes=sizes, n_max=n_max, n_ctx=n_ctx, chains=chains)
    watched = Watched(inner, spoil)
    life = Life(make_engine(hybrid=hybrid[0], sizes=sizes, drafter=watched))
    for action in actions:
        life.act(action)
    life.check()
    if hybrid[0] == hybrid[1]:
        assert watched.settled == right
    store = inner._state.store
    assert (store.pool.n_held, store.pool.promised, store.slots.n_live) == (0, 0, 0)
    assert not inner._sequences
    assert not inner._targets


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("keeps", [True, False])
def test_where_the_target_keeps_nothing_the_draft_model_keeps_nothing(
    hybrid: bool, keeps: bool
) -> None:
    sizes = replace(SMALL, n_slots=2, window=7, max_idle=None if keeps else 0)
    inner = scripted_drafter(hybrid=hybrid, sizes=sizes, n_max=4, n_ctx=48)
    life = Life(make_engine(hybrid=False, sizes=sizes, drafter=inner))
    for _ in range(3):
        for seed in range(3):
            params = GenerateParams(SamplingParams(seed=seed), max_tokens=20)
            life.act(("add", [9, 1, 2, 3, 4, 5, 6, 7, 8], params))
        life.act(("step", 40))
    life.check()
    assert all(text.stats.draft_n for text in life.texts)
    store = inner._state.store
    assert bool(store.pool.n_idle + store.slots.n_kept) == keeps


def test_a_wrong_cell_of_the_draft_model_would_be_seen() -> None:
    """The comparison above can fail."""
    inner = scripted_drafter(hybrid=True, sizes=SMALL, n_max=4, n_ctx=48)
    watched = Watched(inner)
    engine = make_engine(hybrid=True, drafter=watched)
    text = engine.add([9, 1, 2, 3], GenerateParams(SamplingParams(seed=1), max_tokens=30))
    while not watched.settled:
        engine.step()
    inner._state.store.state.stored[:] = [7] * len(inner._state.store.state.stored)
    while engine.has_work:
        engine.step()
    assert text.stats.draft_n > text.stats.draft_n_accepted
