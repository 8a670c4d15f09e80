"""Which replica a request goes to."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.core.server.replicas.prefixes import Wish
from nextn.core.server.replicas.router import Choice, Router

keys = st.lists(st.integers(0, 5), max_size=6).map(tuple)
wishes = st.builds(Wish, keys=keys, n_texts=st.integers(1, 4))


def router(n: int = 2, slack: int = 4, max_keys: int = 1000) -> Router:
    made = Router(max_keys)
    for index in range(n):
        made.add(index, slack)
    return made


def chain(*names: int) -> Wish:
    """As `keys_of` makes them: each key stands for all before it."""
    return Wish(tuple(hash(names[: i + 1]) for i in range(len(names))))


def ask(made: Router, wish: Wish) -> int:
    choice = made.choose(wish)
    assert choice is not None
    made.end(made.begin(choice.replica, wish), wish)
    return choice.replica


def test_what_begins_alike_goes_to_the_same_one() -> None:
    made = router(3)
    first = {name: ask(made, chain(name)) for name in range(30)}
    assert set(first.values()) == {0, 1, 2}
    for length in range(2, 6):  # chats whose history grows, in any order
        for name in random.Random(length).sample(range(30), 30):
            assert ask(made, chain(*[name] * length)) == first[name]


def test_the_longest_beginning_wins() -> None:
    made = router(2)
    made.begin(0, chain(1))
    made.begin(1, chain(1, 2, 3))
    assert made.choose(chain(1, 2, 3, 4)) == Choice(1, 3)
    assert made.choose(chain(1, 2, 9)) == Choice(1, 2)


def test_a_cache_is_worth_so_much_and_no_more() -> None:
    made = router(2, slack=3)
    wish = chain(1, 2)
    begun = [made.begin(0, wish) for _ in range(2)]
    assert made.choose(wish) == Choice(0, 2)
    begun.append(made.begin(0, wish))
    begun.append(made.begin(0, wish))
    assert made.choose(wish) == Choice(1, 0)
    for each in begun[:2]:
        made.end(each, wish)
    assert made.choose(wish) == Choice(0, 2)
    half = chain(1, 5)  # half of it is cached: half as much
    assert made.choose(half) == Choice(1, 0)


def test_without_prefixes_the_least_busy_one() -> None:
    made = router(4)
    found = []
    for _ in range(8):
        choice = made.choose(Wish())
        assert choice is not None
        made.begin(choice.replica, Wish())
        found.append(choice.replica)
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_several_texts_weigh_more() -> None:
    made = router(2)
    made.begin(0, Wish(n_texts=5))
    for _ in range(5):
        made.begin(1, Wish())
    assert (made.n_texts(0), made.n_texts(1)) == (5, 5)


def test_who_is_lost_and_comes_back() -> None:
    made = router(2)
    wish = chain(1)
    begun = made.begin(0, wish)
    made.remove(0)
    assert made.choose(wish) == Choice(1, 0)
    assert made.choose(wish, without=(1,)) is None
    made.add(0)  # its cache is empty, and nothing is under way there
    assert made.choose(wish, without=(1,)) == Choice(0, 0)
    made.end(begun, wish)
    assert made.n_texts(0) == 0


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            wishes,
            st.tuples(st.just("end"), st.integers(0, 50)),
            st.tuples(st.sampled_from(("add", "remove")), st.integers(0, 3)),
        ),
        max_size=60,
    ),
    slack=st.integers(1, 5),
    max_keys=st.integers(1, 12),
)
def test_whatever_happens(steps: list[Wish | tuple[str, int]], slack: int, max_keys: int) -> None:
    """Only those that are there are chosen; nobody gets more than `slack` texts beyond the least
    busy one; memory is bounded; counts are right."""
    made, there = Router(max_keys), set[int]()
    loads: dict[int, int] = {}
    under_way: list[tuple[int, object, Wish]] = []
    for step in steps:
        if isinstance(step, Wish):
            choice = made.choose(step)
            assert (choice is None) == (not there)
            if choice is None:
                continue
            assert choice.replica in there
            least = min(loads.values())
            assert loads[choice.replica] <= least + slack
            assert choice.n_cached or loads[choice.replica] == least
            under_way.append((choice.replica, made.begin(choice.replica, step), step))
            loads[choice.replica] += step.n_texts
            assert made.n_keys(choice.replica) <= max_keys
        elif step[0] == "end" and under_way:
            replica, begun, wish = under_way.pop(step[1] % len(under_way))
            made.end(begun, wish)
            loads[replica] = loads.get(replica, 0) - wish.n_texts
        elif step[0] == "add" and step[1] not in there:
            there.add(step[1])
            made.add(step[1], slack)
            loads[step[1]] = 0
        elif step[0] == "remove":
            there.discard(step[1])
            made.remove(step[1])
            loads.pop(step[1], None)
            under_way = [each for each in under_way if each[0] != step[1]]
        assert set(made.members) == there
        for replica in there:
            assert made.n_texts(replica) == loads[replica] >= 0


def test_beginnings_are_forgotten_last() -> None:
    made = router(1, max_keys=4)
    made.begin(0, chain(1, 2, 3, 4))
    made.begin(0, chain(9, 8))
    assert made.n_keys(0) == 4
    choice = made.choose(chain(1, 2, 3, 4))
    assert choice == Choice(0, 2)
