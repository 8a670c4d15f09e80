"""The loop on one page writes what plain decoding writes, whatever is drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drafters import Toy, knows, repeats
from support.running import random_tokens, start
from support.thoroughness import n_examples
from support.tiny_models import TinyModel

import nextn.core
from nextn.core.engine.samplers import SamplerMaker
from nextn.core.generation import TARGET, GenerateParams
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.simple import LONGEST_DRAFT, PROMPT_ROWS, SimpleLoop
from nextn.core.speculation.interface import Speculator

Tiny = Callable[..., TinyModel]
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(seed=4, repeat_penalty=1.1, temperature=1.2)
PROMPT = random_tokens(9, seed=5, n_vocab=256)
N_CTX = 400


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def runtime(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Runtime]:
    """A dense model, then a hybrid with recurrent state."""
    path = tiny(request.param, mtp=request.param == "qwen35").path
    with nextn.core.load(path, "cpu", n_ctx=N_CTX) as loaded:
        yield loaded


def plain(runtime: Runtime, n: int, how: SamplingParams, prompt: Sequence[int]) -> list[int]:
    params = GenerateParams(how, max_tokens=n)
    return [event.token for event in runtime.generate(prompt, params)]


def write(
    runtime: Runtime,
    speculators: Sequence[Speculator],
    n: int = 24,
    how: SamplingParams = GREEDY,
    prompt: Sequence[int] = PROMPT,
    ends: frozenset[int] | None = None,
) -> tuple[list[int], list[str], SimpleLoop]:
    loop = SimpleLoop(runtime.model, runtime.backend, speculators, runtime.n_ctx)
    tokenizer = runtime.tokenizer
    sampler = SamplerMaker(tokenizer, runtime.n_vocab).make(GenerateParams(how), 0)
    ends = tokenizer.eog_ids if ends is None else ends
    written = list(loop.write(prompt, sampler, n, ends))
    return [token for token, _ in written], [source for _, source in written], loop


@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("wrong", [None, 0, 1, 2, 7])
def test_wrong_drafts_change_nothing(
    runtime: Runtime, how: SamplingParams, wrong: int | None
) -> None:
    want = plain(runtime, 24, how, PROMPT)
    toy = Toy(lambda text, longest: knows([*PROMPT, *want], wrong)(text, min(longest, 8)))
    tokens, sources, loop = write(runtime, [toy], how=how)
    assert tokens == want
    tally = loop.drafters[0]
    per_pass = 9 if wrong is None else wrong + 1
    assert loop.n_passes == -(-24 // per_pass)
    assert tally.n_accepted == sources.count("toy") == 24 - loop.n_passes
    assert sources.count(TARGET) == loop.n_passes
    assert toy.begun == [PROMPT]
    assert toy.n_ended == 1


def test_nobody_drafts(runtime: Runtime) -> None:
    tokens, sources, loop = write(runtime, [], how=SAMPLED)
    assert tokens == plain(runtime, 24, SAMPLED, PROMPT)
    assert set(sources) == {TARGET}
    assert loop.n_passes == 24


@settings(max_examples=n_examples(25), deadline=None)
@given(data=st.data())
def test_random_drafts_change_nothing(runtime: Runtime, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 3))
    how = SamplingParams(seed=seed, temperature=1.5)
    want = plain(runtime, 30, how, PROMPT)

    def guess(text: list[int], longest: int) -> list[int]:
        length = data.draw(st.integers(0, 70))
        wrong = data.draw(st.integers(0, 70))
        return knows([*PROMPT, *want, *PROMPT * 9], wrong)(text, length)

    assert write(runtime, [Toy(guess)], 30, how)[0] == want


def test_c2_drafts_as_long_as_may_be_on_a_recurrent_model(runtime: Runtime) -> None:
    """C2: such a draft could not be taken back, and what followed was wrong."""
    want = plain(runtime, 150, GREEDY, PROMPT)
    for wrong in (0, 1, 40, 62, 63, None):
        toy = Toy(knows([*PROMPT, *want], wrong))
        tokens, _, loop = write(runtime, [toy], 150)
        assert tokens == want
        assert max(len(rows) for rows, _ in toy.seen[1:]) == LONGEST_DRAFT + 1
        assert loop.drafters[0].n_accepted > 0 or wrong == 0


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_c7_no_room_means_no_draft(runtime: Runtime, n: int) -> None:
    """C7: a cap of 0 meant none at all, and more was written than was asked for."""
    want = plain(runtime, 10, GREEDY, PROMPT)
    toy = Toy(lambda text, _longest: knows([*PROMPT, *want])(text, 5))
    tokens, _, _ = write(runtime, [toy], n)
    assert tokens == want[:n]
    assert 0 not in toy.asked
    assert toy.asked == ([n - 1] if n <= 6 else [9, 3]) * (n > 1)
    for (rows, _), longest in zip(toy.seen[1:], toy.asked, strict=False):
        assert len(rows) <= 1 + longest


def test_a_draft_longer_than_asked_for_is_cut(runtime: Runtime) -> None:
    want = plain(runtime, 6, GREEDY, PROMPT)
    toy = Toy(lambda text, _longest: knows([*PROMPT, *want, *PROMPT])(text, 30))
    tokens, _, loop = write(runtime, [toy], 6)
    assert tokens == want
    assert loop.drafters[0].n_drafted == 5


@pytest.mark.parametrize("n_prompt", [1, 2, PROMPT_ROWS, PROMPT_ROWS + 1, PROMPT_ROWS + 2, 390])
def test_b10_a_prompt_of_any_length(runtime: Runtime, n_prompt: int) -> None:
    """B10: it had to fit into one pass."""
    prompt = random_tokens(n_prompt, seed=6, n_vocab=256)
    want = plain(runtime, 10, GREEDY, prompt)
    toy = Toy(knows([*prompt, *want], wrong=3))
    assert write(runtime, [toy], 10, prompt=prompt)[0] == want
    read = [token for rows, n_valid in toy.seen for token in rows[:n_valid]]
    assert read == [*prompt, *want][: len(read)]


def test_a_text_that_ends_within_a_draft(runtime: Runtime) -> None:
    want = plain(runtime, 12, GREEDY, PROMPT)
    place = next(i for i in range(3, 12) if want[i] not in want[:i])
    toy = Toy(knows([*PROMPT, *want]))
    tokens, _, loop = write(runtime, [toy], 12, ends=frozenset({want[place]}))
    assert tokens == want[: place + 1]
    assert toy.n_ended == 1
    # What it had drafted up to the end counts; the end itself is the model's.
    assert (loop.drafters[0].n_drafted, loop.drafters[0].n_accepted) == (11, place)
    assert toy.settled == [(place, True)]


def test_a_prompt_may_end_with_an_end(runtime: Runtime) -> None:
    want = plain(runtime, 5, GREEDY, PROMPT)
    ends = frozenset({PROMPT[-1]} - set(want))
    assert write(runtime, [], 5, ends=ends)[0] == want


def test_the_first_with_a_draft_is_heard(runtime: Runtime) -> None:
    want = plain(runtime, 24, GREEDY, PROMPT)
    truth = [*PROMPT, *want]
    rare = Toy(lambda text, n: knows(truth)(text, min(n, 2)) if len(text) % 2 else [], "rare")
    wrong, last = Toy(knows(truth, 0), "wrong"), Toy(knows(truth), "last")
    tokens, sources, loop = write(runtime, [rare, wrong, last])
    assert tokens == want
    assert set(sources) == {"rare", TARGET}
    assert last.asked == []
    assert loop.drafters[1].n_drafts > 0 == loop.drafters[1].n_accepted
    # All hear what became of a draft, and whose it was.
    assert [n for n, _ in rare.settled] == [n for n, _ in wrong.settled]
    assert [mine for _, mine in rare.settled] == [not mine for _, mine in wrong.settled]
    assert not any(mine for _, mine in last.settled)
    assert rare.seen == wrong.seen == last.seen


def test_what_is_counted(runtime: Runtime) -> None:
    want = plain(runtime, 12, GREEDY, PROMPT)
    toy = Toy(lambda text, n: knows([*PROMPT, *want], 2)(text, min(n, 4)))
    _, _, loop = write(runtime, [toy], 12)
    tally = loop.drafters[0]
    # Three tokens a pass; the last draft has room for two, and both are right.
    assert (tally.n_calls, tally.n_drafts, tally.n_accepted_drafts) == (4, 4, 4)
    assert (tally.n_drafted, tally.n_accepted) == (3 * 4 + 2, 3 * 2 + 2)
    assert tally.by_place == [4, 4, 0, 0]
    assert min(tally.begin_s, tally.draft_s, tally.learn_s, loop.passes_s) > 0


def test_hidden_rows_for_who_asks(runtime: Runtime, tiny: Tiny) -> None:
    """Of every row that holds, prompt and text, the bits of a run without any draft."""
    want = plain(runtime, 20, GREEDY, PROMPT)
    taps = frozenset({H_NEXTN})
    toy = Toy(knows([*PROMPT, *want], 2), taps=taps)
    assert write(runtime, [Toy(repeats), toy], 20)[0] == want
    rows = np.concatenate([tapped[H_NEXTN] for tapped in toy.tapped])
    name = runtime.architecture
    alone = start(tiny(name, mtp=name == "qwen35").path, "cpu")
    alone.machine.taps = taps
    alone.machine.__post_init__()
    assert np.array_equal(rows, alone.forward([*PROMPT, *want][: len(rows)]).taps[H_NEXTN])
