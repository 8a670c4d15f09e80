"""What one text leaves for the next, and who runs when."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from support.scripted import (
    PROMPT,
    SMALL,
    ScriptedBackend,
    alone,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    of,
    params,
    write_alone,
)

from nextn.core.errors import ConfigError
from nextn.core.generation import (
    GenerateParams,
)
from nextn.core.sampling.params import SamplingParams

# Reuse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_invariant", [True, False])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_second_turn_reuses_the_first(hybrid: bool, batch_invariant: bool) -> None:
    engine = make_engine(hybrid=hybrid, batch_invariant=batch_invariant)
    first = engine.add(PROMPT, params(9, ignore_eos=True))
    drain(engine)
    prompt = [*first.tokens, 3, 2, 1]
    second = engine.add(prompt, params())
    drain(engine)
    assert made(second) == alone(prompt, params(), engine)
    # All that the model has seen of the first, or the whole chunks of its prompt.
    assert second.stats.cached_n == (18 if batch_invariant else 8)


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_same_prompt_again(hybrid: bool) -> None:
    engine = make_engine(hybrid=hybrid)
    sequences = []
    for _ in range(3):
        sequences.append(engine.add(PROMPT, params(5)))
        drain(engine)
    # A recurrent state can be had where it was kept, at the end of a chunk.
    assert [s.stats.cached_n for s in sequences] == [0, 8 if hybrid else 9, 8 if hybrid else 9]
    assert made(sequences[0]) == made(sequences[1]) == made(sequences[2])


def test_states_are_kept_where_prompts_part() -> None:
    """The second prompt finds pages but no state; so it leaves one for the third."""
    engine = make_engine(hybrid=True)
    system = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 2
    cached = []
    for user in range(3):
        sequence = engine.add([*system, 20 + user, *([user] * 12)], params(2))
        drain(engine)
        cached.append(sequence.stats.cached_n)
    assert cached == [0, 0, 16]


@pytest.mark.parametrize("hybrid", [False, True])
def test_texts_that_part_within_a_page_do_not_meet(hybrid: bool) -> None:
    """The second goes on in a copy of the page; the third finds the first one's as it was."""
    engine = make_engine(hybrid=hybrid, sizes=replace(SMALL, n_checkpoints=6))
    first = engine.add(PROMPT, params(7, ignore_eos=True))
    drain(engine)
    seen = first.tokens[:-1]  # 16 tokens: at the end of these a state was left
    prompts = [[*seen[:14], 50], [*seen[:14], 51], [*seen, 52]]
    cached = []
    for prompt in prompts:
        sequence = engine.add(prompt, params(4))
        drain(engine)
        assert made(sequence) == alone(prompt, params(4), engine)
        cached.append(sequence.stats.cached_n)
    assert cached == ([8, 8, 16] if hybrid else [14, 14, 16])


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_second_answer_to_the_same_text(hybrid: bool) -> None:
    """As when somebody changes their last message: what follows the text before begins within a
    page, of which another text has more."""
    engine = make_engine(hybrid=hybrid, sizes=replace(SMALL, n_checkpoints=8))
    first = engine.add(PROMPT, params(9, ignore_eos=True))
    drain(engine)
    for last in (40, 41, 42):
        prompt = [*first.tokens, last, last]
        second = engine.add(prompt, params(6))
        drain(engine)
        assert made(second) == alone(prompt, params(6), engine)
        assert second.stats.cached_n >= 18


def test_what_is_used_is_kept_longest() -> None:
    """Room for three states: one that is asked for again outlives newer ones."""
    engine = make_engine(hybrid=True)

    def cached(prompt: list[int]) -> int:
        sequence = engine.add(prompt, params(1))
        drain(engine)
        return sequence.stats.cached_n

    # Each leaves one state, at its end: 7 tokens are no chunk.
    popular, *others = ([i] * 7 for i in range(6))
    assert [cached([*popular, 1 + i]) for i in range(1)] == [0]
    for other in others:
        cached(other)
        assert cached([*popular, 1, 2]) > 0


def test_a_state_whose_page_goes_while_it_is_used() -> None:
    """It lies beside the pages that are shared, and is the oldest: its page makes room for the
    copy of the one within which the texts part."""
    sizes = replace(SMALL, n_slots=1, n_checkpoints=3, kv_pages=12)
    engine = make_engine(hybrid=True, sizes=sizes)
    first = [9, 1, 2, 3, 4, 5, 6, 7, 8]
    longer = [*first, *range(10, 41)]
    for prompt, n in ((first, 1), (longer, 5)):
        engine.add(prompt, params(n, ignore_eos=True))
        drain(engine)
    third = [*longer[:11], 0]
    how = params(3, ignore_eos=True)
    text = engine.add(third, how)
    drain(engine)
    assert text.stats.cached_n == len(first)
    assert made(text) == alone(third, how, engine)
    assert_nothing_is_held(engine)


def test_reuse_can_be_switched_off() -> None:
    engine = make_engine(reuse=False)
    for _ in range(2):
        sequence = engine.add(PROMPT, params(5))
        drain(engine)
    assert sequence.stats.cached_n == 0
    assert len(engine.store.prefixes) == 0


def test_what_texts_left_can_be_forgotten() -> None:
    engine = make_engine()
    found = []
    for _ in range(2):
        sequence = engine.add(PROMPT, params(5))
        with pytest.raises(ConfigError, match="still being written"):
            engine.forget()
        drain(engine)
        found.append((sequence.stats.cached_n, made(sequence)))
        engine.forget()
    assert found[0] == found[1]
    assert not found[0][0]


def test_two_texts_with_one_prompt_share_its_pages() -> None:
    engine = make_engine()
    first, second = engine.add(PROMPT, params()), engine.add(PROMPT, params())
    for _ in range(4):
        engine.step()
    assert first.state is not None
    assert second.state is not None
    assert first.state.table.pages[:2] == second.state.table.pages[:2]
    assert first.state.table.pages[2] != second.state.table.pages[2]
    drain(engine)
    assert made(first) == made(second) == alone(PROMPT, params(), engine)


@pytest.mark.parametrize("hybrid", [False, True])
def test_prompts_that_arrive_together_are_read_once(hybrid: bool) -> None:
    backend = ScriptedBackend(hybrid=hybrid)
    engine = make_engine(backend=backend, sizes=replace(SMALL, n_slots=4, n_checkpoints=8))
    long = [*range(20)]
    texts = [engine.add(prompt, params(4)) for prompt in (long, [*long, 7], long, [3, 3, 3])]
    drain(engine)
    for text in texts:
        assert made(text) == alone(text.tokens[: text.n_prompt], params(4), engine)
    assert [text.stats.cached_n >= 16 for text in texts] == [False, True, True, False]
    assert backend.rows[1] == 3  # the one that is different goes first
    assert sum(backend.rows) <= 20 + 5 + 4 + 3 + 4 * 4
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("reason", ["cancelled", "failed"])
def test_who_waited_for_a_prompt_that_is_given_up_reads_it(reason: str) -> None:
    long = [*range(20)]
    backend = ScriptedBackend(poison=frozenset({50}))
    engine = make_engine(backend=backend)
    first, second = engine.add([*long, 50], params(4)), engine.add(long, params(4))
    engine.step()
    assert second.state is None
    if reason == "cancelled":
        engine.cancel(first)
    drain(engine)
    assert made(second) == alone(long, params(4), engine)
    assert second.stats.cached_n == 0
    assert_nothing_is_held(engine)


def test_who_wants_nothing_of_others_does_not_wait() -> None:
    engine = make_engine()
    texts = [engine.add([*range(20)], params(4, reuse=False)) for _ in range(2)]
    engine.step()
    assert all(text.state is not None for text in texts)
    drain(engine)


# Scheduling --------------------------------------------------------------------------------------


def test_prompts_are_cut_at_absolute_places() -> None:
    backend = ScriptedBackend()
    engine = make_engine(backend=backend)
    for _ in range(2):
        engine.add([*PROMPT, *PROMPT], params(1))
        drain(engine)
    assert backend.rows == [8, 8, 4, 1]
    engine.add([*PROMPT, 1, *PROMPT[1:]], params(1))
    drain(engine)
    assert backend.rows[4:] == [6, 4]  # 10 were there


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    engine = make_engine()
    writing = engine.add([1], params(10, ignore_eos=True))
    engine.step()
    long, short = engine.add([2, 3] * 20, params(2)), engine.add([4, 4], params(2))
    events = [engine.step() for _ in range(4)]
    assert all(of(writing, step) for step in events)
    assert of(short, events[1])
    assert not any(of(long, step) for step in events)


def test_the_first_in_line_is_not_overtaken() -> None:
    sizes = replace(SMALL, n_slots=3, kv_pages=12)
    engine = make_engine(sizes=sizes)
    running = engine.add([1], params(20, ignore_eos=True))
    engine.step()
    big, small = engine.add([2], params(None, ignore_eos=True)), engine.add([3], params(1))
    engine.step()
    assert big.state is None
    assert small.state is None
    drain(engine)
    assert all(s.stop_reason is not None for s in (running, big, small))
    assert_nothing_is_held(engine)


def test_more_texts_than_slots() -> None:
    engine = make_engine()
    sequences = [engine.add([i, 1], params(4)) for i in range(8)]
    engine.step()
    assert sum(s.state is not None for s in sequences) == 3
    drain(engine)
    for i, sequence in enumerate(sequences):
        assert made(sequence) == alone([i, 1], params(4), engine)


def test_texts_of_one_request_differ() -> None:
    engine = make_engine()
    how = GenerateParams(SamplingParams(temperature=1.0, seed=3), max_tokens=8)
    texts = [engine.add(PROMPT, how, index=i) for i in range(2)]
    drain(engine)
    assert made(texts[0]) != made(texts[1])
    for i, text in enumerate(texts):
        assert made(text) == write_alone(PROMPT, how, hybrid=False, n_ctx=48, index=i).tokens


def test_nothing_to_do() -> None:
    engine = make_engine()
    assert not engine.has_work
    assert engine.step() == []


def test_pages_of_a_chunk() -> None:
    with pytest.raises(ConfigError, match="pieces of 6 rows are not whole pages of 4"):
        make_engine(chunk=6)


def test_logits_are_not_kept_over_steps() -> None:
    """Events own their numbers: a backend may reuse its buffers."""
    engine = make_engine()
    engine.add(PROMPT, params(2, logprobs=1))
    events = engine.step() + engine.step() + engine.step()
    assert all(isinstance(value, float) for e in events for _, value in e.top_logprobs)
    assert not any(isinstance(e.token, np.generic) for e in events)
