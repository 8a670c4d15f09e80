"""From the events of a stream to counts: what was drafted, what held, when it came."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nextn.core.bench.dialects import EOS, ServerEvent
from nextn.core.bench.receiving import Receiver
from nextn.core.bench.record import Sample

ROUND = st.integers(0, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
StreamRound = tuple[int, int]


def pieces_of(rounds: Sequence[StreamRound], ending: str = "limit") -> list[list[ServerEvent]]:
    """By the pass that they came from; the last is the event without a token."""
    n, drafted, accepted, found = 1, 0, 0, [[timed(1, 0.0, 0, 0)]]
    for i, (some, held) in enumerate(rounds, 1):
        drafted, accepted = drafted + some, accepted + held
        found.append([timed(n + k + 1, float(i), drafted, accepted) for k in range(held + 1)])
        n += held + 1
    last = timed(n, float(len(rounds)), drafted, accepted)
    return [*found, [last._replace(text="", tokens=(), ending=ending)]]


def timed(n: int, ms: float, drafted: int, accepted: int) -> ServerEvent:
    timings = {"prompt_n": 7, "prompt_ms": 4.0, "predicted_n": n, "predicted_ms": ms}
    if drafted:
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    return ServerEvent(f"t{n}", (n,), timings)


def received(reads: Sequence[Sequence[ServerEvent]]) -> Sample:
    receiver, sample = Receiver(), Sample("x", "p", "c")
    for i, pieces in enumerate(reads):
        receiver.take(float(10 * i), list(pieces))
    receiver.fill(sample)
    return sample


@given(st.lists(ROUND, max_size=12), st.booleans())
def test_rounds_are_found_again(rounds: list[StreamRound], one_by_one: bool) -> None:
    passes = pieces_of(rounds)
    reads = [[piece] for each in passes for piece in each] if one_by_one else passes
    sample = received(reads)
    drafts = [each for each in rounds if each[0]]
    longest = max((n for n, _ in drafts), default=0)
    assert sample.rounds == len(rounds)
    assert sample.drafts == len(drafts)
    assert sample.draft_n == sum(n for n, _ in rounds)
    assert sample.draft_n_accepted == sum(k for _, k in rounds)
    assert sample.drafted_per_pos == [sum(n > i for n, _ in drafts) for i in range(longest)]
    assert sample.accepted_per_pos == [sum(k > i for _, k in drafts) for i in range(longest)]
    assert [chunk.n for chunk in sample.chunks] == [1, *(k + 1 for _, k in rounds)]
    assert sample.tokens == list(range(1, sample.predicted_n + 1))
    assert (sample.prompt_n, sample.prompt_ms) == (7, 4.0)


def test_a_token_within_a_character_has_no_event() -> None:
    """Its pass seems to be one with the next: then places are unknown."""
    passes = pieces_of([(3, 2), (3, 0), (2, 2)])
    del passes[2]
    sample = received(passes)
    assert (sample.predicted_n, sample.draft_n, sample.draft_n_accepted) == (8, 8, 4)
    assert (sample.rounds, sample.drafts, sample.accepted_per_pos) == (3, None, None)
    assert sample.tokens is None
    assert sum(chunk.n for chunk in sample.chunks) == 8


def test_an_end_within_a_draft_hides_what_was_accepted_behind_it() -> None:
    passes = pieces_of([(3, 3), (3, 3)], EOS)
    passes[2] = passes[2][:2]
    passes[3] = [passes[3][0]._replace(timings={**(passes[3][0].timings or {}), "predicted_n": 7})]
    sample = received(passes)
    assert (sample.rounds, sample.drafts, sample.accepted_per_pos) == (2, 2, [2, 2, 2])


def test_without_timings_a_read_is_a_chunk() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 4}
    sample = received([[ServerEvent("a", (1,))], [ServerEvent("b", (2,)), ServerEvent("c", (3,))],
                       [ServerEvent("d", (4,))],
                       [ServerEvent(usage=usage, ending="limit")]])  # fmt: skip
    assert [chunk.n for chunk in sample.chunks] == [1, 2, 1]
    assert (sample.predicted_n, sample.prompt_n, sample.tokens) == (4, 5, [1, 2, 3, 4])
    assert sample.draft_n is None
    assert sample.rounds is None


def test_text_alone_and_a_count_that_fits() -> None:
    usage = {"completion_tokens": 2, "prompt_tokens": 3}
    sample = received([[ServerEvent("a")], [ServerEvent("b")], [ServerEvent(usage=usage)]])
    assert [chunk.n for chunk in sample.chunks] == [1, 1]


def test_text_alone_and_a_count_that_does_not() -> None:
    """Several tokens per event, of unknown numbers: a rate would be made up."""
    usage = {"completion_tokens": 9, "prompt_tokens": 3}
    sample = received(
        [[ServerEvent("a")], [ServerEvent("b")], [ServerEvent("c", usage=usage, ending="limit")]]
    )
    assert [chunk.n for chunk in sample.chunks] == [0, 0, 0]
    assert sample.predicted_n == 9


def test_usage_that_grows_with_each_event() -> None:
    reads = [
        [ServerEvent("x", usage={"completion_tokens": n, "prompt_tokens": 3})] for n in (1, 4, 5)
    ]
    sample = received(reads)
    assert [chunk.n for chunk in sample.chunks] == [1, 3, 1]


def test_predictions_of_openai() -> None:
    details = {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 4}
    usage = {"completion_tokens": 9, "prompt_tokens": 3, "completion_tokens_details": details,
             "prompt_tokens_details": {"cached_tokens": 2}}  # fmt: skip
    sample = received([[ServerEvent("a")], [ServerEvent(usage=usage, ending="limit")]])
    assert (sample.draft_n, sample.draft_n_accepted, sample.rounds) == (7, 3, 5)
    assert sample.cached_n == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
NAMES = st.sampled_from(["predicted_n", "predicted_ms", "draft_n", "draft_n_accepted", "prompt_n",
                         "completion_tokens", "cache_n", "prompt_tokens_details"])  # fmt: skip


@given(st.lists(st.builds(ServerEvent, st.text(max_size=3), st.just(()),
                          st.dictionaries(NAMES, JSON), st.dictionaries(NAMES, JSON)),
                max_size=5))  # fmt: skip
def test_nonsense_in_the_figures_is_survived(pieces: list[ServerEvent]) -> None:
    received([[piece] for piece in pieces])


@given(st.lists(ROUND, max_size=12), st.booleans())
def test_what_tokens_say_of_themselves_is_believed_before_the_clock(
    rounds: list[StreamRound], one_by_one: bool
) -> None:
    """Our server writes events when it gets round to it, with what it has counted until then."""
    sources = [[("target", 0)]]
    for drafted, held in rounds:
        sources.append([*[("mtp", 0)] * held, ("target", drafted - held)])
    passes = pieces_of(rounds)
    late = passes[-1][0].timings
    events = [
        [piece._replace(timings=late, sources=(pair,)) for piece, pair in zip(*both, strict=True)]
        for both in zip(passes[:-1], sources, strict=True)
    ]
    reads = [[piece] for each in events for piece in each] if one_by_one else events
    sample = received([*reads, passes[-1]])
    assert (sample.rounds, sample.drafts) == (len(rounds), sum(n > 0 for n, _ in rounds))
    assert sum(sample.drafted_per_pos or []) == sample.draft_n == sum(n for n, _ in rounds)
    assert sum(sample.accepted_per_pos or []) == sum(k for _, k in rounds)
    assert [chunk.n for chunk in sample.chunks] == [1, *(k + 1 for _, k in rounds)]
