"""The draft model's state where texts are saved, interrupted, or broken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.drafting import (
    CHUNK,
    DRAFTS,
    GREEDY,
    PROMPTS,
    SAMPLED,
    Watched,
    build,
    drafted,
    engine_of,
    make_drafter,
    of,
    tokens_of,
    write,
)
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.generation import ERROR
from nextn.core.state.prefix_export import PrefixExport
from nextn.core.state.snapshot import SequenceSnapshot

Tiny = Callable[..., TinyModel]


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("family", DRAFTS)
def test_saved_and_restored_amid_drafts(
    family: str, n_steps: int, tiny: Tiny, tmp_path: Path
) -> None:
    """C10 and D14: where the text goes on, so does its drafting, and nothing is read again."""
    target = of(tiny, family)
    want = write(engine_of(target), PROMPTS[:1], SAMPLED)
    first = engine_of(target, make_drafter(target, target))
    text = first.add(PROMPTS[0], SAMPLED)
    for _ in range(n_steps):
        first.step()
    first.snapshot(text).save(tmp_path / "saved")
    watched = Watched(make_drafter(target, target))
    second = engine_of(target, watched)
    write(second, [[1, 2, 3]], GREEDY)
    watched.steps.clear()
    restored = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    drain(second)
    assert restored.tokens == want[0].tokens
    n_drafted, n_accepted = drafted([restored])
    assert n_accepted == n_drafted > 0
    if n_steps > 2:  # the prompt was read, and there was a draft
        assert watched.steps[0] <= 5
    drain(first)
    assert text.tokens == want[0].tokens


@pytest.mark.parametrize("family", DRAFTS)
def test_a_state_that_does_not_fit_is_left_alone(family: str, tiny: Tiny) -> None:
    """Of another model, another text, damaged: the text is read again."""
    target, other = of(tiny, "qwen3"), of(tiny, family)
    want = write(engine_of(target), PROMPTS[:1], SAMPLED)
    first = engine_of(target, make_drafter(target, target))
    text, elsewhere = first.add(PROMPTS[0], SAMPLED), first.add(PROMPTS[1], SAMPLED)
    for _ in range(4):
        first.step()
    saved = first.snapshot(text)
    name = next(name for name in saved.blobs if name.endswith("state"))
    blob = saved.blobs[name]
    strange = first.snapshot(elsewhere).blobs[name]
    cases = [b"", blob[:-1], blob[:200], b"x" * 300, strange]
    drafts = [(target, case) for case in cases]
    if family != "qwen3":
        drafts.append((other, blob))
    for draft, case in drafts:
        watched = Watched(make_drafter(target, draft))
        engine = engine_of(target, watched)
        restored = engine.restore(replace(saved, blobs=saved.blobs | {name: case}))
        drain(engine)
        assert restored.tokens == want[0].tokens
        assert watched.steps[0] == CHUNK  # the prompt, not the last few tokens
        if draft is target:
            assert drafted([restored])[0] == drafted([restored])[1] > 0


@pytest.mark.parametrize("family", DRAFTS)
@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_an_interrupted_round_is_forgotten(family: str, at: int, tiny: Tiny) -> None:
    target = of(tiny, family)
    watched = Watched(make_drafter(target, target))
    engine = engine_of(target, watched)
    state = watched.inner._state

    def interrupted(run: Any) -> Any:
        def interrupt(*call: Any) -> Any:
            output = run(*call)
            if len(watched.steps) > at:
                watched.steps.clear()
                state._run, state._loop = whole
                raise KeyboardInterrupt
            return output

        return run and interrupt

    whole = state._run, state._loop
    state._run, state._loop = map(interrupted, whole)
    lost = [engine.add(prompt, SAMPLED) for prompt in PROMPTS[:2]]
    with pytest.raises(KeyboardInterrupt):
        drain(engine)
    drain(engine)
    assert all(text.stop_reason is not None for text in lost)
    texts = write(engine, PROMPTS, SAMPLED)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, SAMPLED))
    assert drafted(texts)[0] == drafted(texts)[1] > 0


def test_a_draft_model_of_broken_numbers_is_left_alone(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the target that is broken: the text goes on without drafts."""

    def poison(_keys: dict[str, Any], tensors: Any) -> None:
        tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)

    target = of(tiny, "qwen3")
    draft = build("qwen35", tmp_path, poison)
    with caplog.at_level(logging.WARNING):
        texts = write(engine_of(target, make_drafter(target, draft)), PROMPTS[:2], SAMPLED)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS[:2], SAMPLED))
    assert ERROR not in {text.stop_reason for text in texts}
    assert drafted(texts) == (0, 0)
    assert caplog.text.count("no more drafts for this sequence") == 2


def test_everything_is_given_back(tiny: Tiny) -> None:
    target = of(tiny, "qwen35")
    drafter = make_drafter(target, target)
    engine = engine_of(target, drafter)
    write(engine, PROMPTS * 3, SAMPLED)
    store = drafter._state.store
    assert (store.pool.n_held, store.pool.promised, store.slots.n_live) == (0, 0, 0)
    assert not drafter._sequences


@pytest.mark.parametrize("family", DRAFTS)
def test_what_a_text_left_is_not_read_again(family: str, tiny: Tiny) -> None:
    """Nor is it after it was forgotten, or if it comes from elsewhere."""
    target = of(tiny, family)
    first = engine_of(target, make_drafter(target, target))
    text = write(first, PROMPTS[:1], SAMPLED)[0]
    prompt = [*text.tokens, 3]
    want = write(engine_of(target), [prompt], SAMPLED)[0].tokens
    found = first.save_prefix(text.tokens)
    assert found is not None
    saved = found.joined()
    name = next(name for name in saved.blobs if name.endswith("state"))
    damaged = replace(saved, blobs=saved.blobs | {name: saved.blobs[name][:-1]})
    for snapshot, is_there in ((saved, True), (damaged, False)):
        watched = Watched(make_drafter(target, target))
        engine = engine_of(target, watched)
        assert engine.load_prefix(PrefixExport.split(snapshot)) == len(text.tokens) - 1
        again = write(engine, [prompt], SAMPLED)[0]
        assert again.tokens == want
        assert drafted([again])[0] > 0
        assert (watched.steps[0] < CHUNK) == is_there
        engine.forget_prefix(again.tokens)
        assert len(watched.inner._state.store.prefixes) == 0
