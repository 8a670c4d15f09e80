"""Which replica a request goes to."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import n_examples

from nextn.core.server.replicas.forwarding import ForwardedRequest
from nextn.core.server.replicas.prefix_keys import RoutingHint
from nextn.core.server.replicas.prefix_policy import PrefixPolicy, ReplicaLoad

keys = st.lists(st.integers(0, 5), max_size=6).map(tuple)
hints = st.builds(RoutingHint, keys=keys, n_sequences=st.integers(1, 4))


def policy(n: int = 2, slots: int = 4, max_remembered: int = 1000) -> PrefixPolicy:
    made = PrefixPolicy(max_remembered)
    made.update({f"r{index}": (index, slots) for index in range(n)})
    return made


def request(*, n_sequences: int = 1, **more: object) -> ForwardedRequest:
    hint = RoutingHint(n_sequences=n_sequences)
    return ForwardedRequest("POST", "/completion", hint=hint, **more)  # type: ignore[arg-type]


def of(hint: RoutingHint) -> ForwardedRequest:
    return ForwardedRequest("POST", "/completion", hint=hint)


def chain(*names: int) -> ForwardedRequest:
    """Keys as `keys_of` makes them: each stands for all before it."""
    return of(RoutingHint(tuple(hash(names[: i + 1]) for i in range(len(names)))))


def begin(made: PrefixPolicy, index: int, parsed: ForwardedRequest) -> ReplicaLoad:
    load = made.begin(f"r{index}", parsed)
    assert load is not None
    assert parsed.routed_to == index
    return load


def best(made: PrefixPolicy, parsed: ForwardedRequest) -> int:
    return made.loads[made.order(parsed)[0]].index


def ask(made: PrefixPolicy, parsed: ForwardedRequest) -> int:
    index = best(made, parsed)
    begin(made, index, parsed).end(parsed)
    return index


def test_what_begins_alike_goes_to_the_same_one() -> None:
    made = policy(3)
    first = {name: ask(made, chain(name)) for name in range(30)}
    assert set(first.values()) == {0, 1, 2}
    for length in range(2, 6):  # chats whose history grows, in any order
        for name in random.Random(length).sample(range(30), 30):
            assert ask(made, chain(*[name] * length)) == first[name]


def test_the_longest_beginning_wins() -> None:
    made = policy(2)
    begin(made, 0, chain(1))
    begin(made, 1, chain(1, 2, 3))
    assert best(made, chain(1, 2, 3, 4)) == 1
    assert best(made, chain(1, 2, 9)) == 1
    assert made.loads["r1"].n_cached(chain(1, 2, 9).hint.keys) == 2


def test_a_cache_is_worth_so_much_and_no_more() -> None:
    made = policy(2, slots=3)
    parsed = chain(1, 2)
    loads = [begin(made, 0, chain(1, 2)) for _ in range(2)]
    assert best(made, parsed) == 0
    loads += [begin(made, 0, chain(1, 2)) for _ in range(2)]
    assert best(made, parsed) == 1
    for load in loads[:2]:
        load.end(parsed)
    assert best(made, parsed) == 0
    assert best(made, chain(1, 5)) == 1  # half of it is cached: half as much


def test_without_prefixes_the_least_busy_one() -> None:
    made = policy(4)
    found = []
    for _ in range(8):
        found.append(best(made, request()))
        begin(made, found[-1], request())
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_several_sequences_weigh_more() -> None:
    made = policy(2)
    begin(made, 0, request(n_sequences=5))
    for _ in range(5):
        begin(made, 1, request())
    assert [load.n_sequences for load in made.loads.values()] == [5, 5]


def test_a_slot_is_at_one_replica() -> None:
    made = policy(3)
    begin(made, 2, request(n_sequences=9))
    assert best(made, request(replica=2)) == 2
    assert best(made, request(replica=7)) in (0, 1)


def test_a_replica_that_has_refused_comes_last() -> None:
    made = policy(3)
    begin(made, 0, request())
    begin(made, 0, request())
    begin(made, 1, request())
    assert made.order(request(excluded=frozenset({2}))) == ["r1", "r0", "r2"]
    assert made.order(request(replica=1, excluded=frozenset({1, 2})))[0] == "r0"


def test_a_replica_that_is_lost_and_comes_back() -> None:
    made = policy(2)
    parsed = chain(1)
    load = begin(made, 0, parsed)
    made.update({"r1": (1, 4)})
    assert made.order(parsed) == ["r1"]
    assert made.begin("r0", chain(1)) is None
    made.update({"new": (0, 4), "r1": (1, 4)})  # its cache is empty, and nothing runs there
    assert made.loads["new"].n_cached(parsed.hint.keys) == 0
    load.end(parsed)
    assert made.loads["new"].n_sequences == 0


@settings(max_examples=n_examples(300), deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            hints,
            st.tuples(st.just("end"), st.integers(0, 50)),
            st.tuples(st.sampled_from(("add", "remove")), st.integers(0, 3)),
        ),
        max_size=60,
    ),
    slots=st.integers(1, 5),
    max_remembered=st.integers(1, 12),
)
def test_whatever_happens(
    steps: list[RoutingHint | tuple[str, int]], slots: int, max_remembered: int
) -> None:
    """Only running replicas are chosen; none gets more than its slots beyond the least busy one;
    memory is bounded; counts are right."""
    made, there = PrefixPolicy(max_remembered), set[int]()
    counts: dict[int, int] = {}
    open_requests: list[tuple[int, ReplicaLoad, ForwardedRequest]] = []
    for step in steps:
        if isinstance(step, RoutingHint):
            parsed = of(step)
            order = made.order(parsed)
            assert {made.loads[name].index for name in order} == there
            if not order:
                continue
            index = best(made, parsed)
            least = min(counts.values())
            assert counts[index] <= least + slots
            assert made.loads[f"r{index}"].n_cached(step.keys) or counts[index] == least
            open_requests.append((index, begin(made, index, parsed), parsed))
            counts[index] += step.n_sequences
            assert len(made.loads[f"r{index}"].keys) <= max_remembered
        elif step[0] == "end" and open_requests:
            index, load, parsed = open_requests.pop(step[1] % len(open_requests))
            load.end(parsed)
            counts[index] = counts.get(index, 0) - parsed.hint.n_sequences
        elif step[0] == "add" and step[1] not in there:
            there.add(step[1])
            counts[step[1]] = 0
        elif step[0] == "remove":
            there.discard(step[1])
            counts.pop(step[1], None)
            open_requests = [each for each in open_requests if each[0] != step[1]]
        made.update({f"r{index}": (index, slots) for index in there})
        for index in there:
            assert made.loads[f"r{index}"].n_sequences == counts[index] >= 0


def test_beginnings_are_forgotten_last() -> None:
    made = policy(1, max_remembered=4)
    begin(made, 0, chain(1, 2, 3, 4))
    begin(made, 0, chain(9, 8))
    load = made.loads["r0"]
    assert len(load.keys) == 4
    assert load.n_cached(chain(1, 2, 3, 4).hint.keys) == 2
