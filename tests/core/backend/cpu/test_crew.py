"""How many members run a step: on simulated machines, by the clock of the simulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nextn.core.backend.cpu.crew import Crew


class Machine:
    """`seconds(n)`: of a step that n members run; `late(n)`: how many waits in it block."""

    def __init__(
        self,
        n_threads: int,
        seconds: Callable[[int], float],
        late: Callable[[int], float] = lambda n: n - 1,
    ) -> None:
        self.now, self.n_steps, self.due = 0.0, 0, 0.0
        self.seconds, self.late = seconds, late
        self.crew = Crew(n_threads, lambda: self.now)
        self.used: list[int] = []

    def run(self, seconds: float, size: int | None = 1) -> list[int]:
        """The number of members of each step."""
        end, self.used = self.now + seconds, []
        while self.now < end:
            n, was_calm = self.crew.n_active, self.crew.is_calm
            work = 1 if size is None else size
            took = work * self.seconds(n)
            self.now += took
            self.due += self.late(n)
            if not was_calm:
                self.crew.note_step(None if size is None else size, took)
            elif self.due >= 1:
                self.crew.note_blocked(int(self.due))
            self.due -= int(self.due)
            self.used.append(n)
        return self.used


def ideal(n: int) -> float:
    return 0.001 / n


def beside(n_neighbours: int, n_cores: int) -> Callable[[int], float]:
    """A step ends when its last member does: members without a processor of their own are late."""
    return lambda n: ideal(n) * (1 if n + n_neighbours <= n_cores else 5)


def share(used: list[int], n: int) -> float:
    return used.count(n) / len(used)


def test_an_idle_machine_runs_all() -> None:
    machine = Machine(8, ideal, late=lambda n: 0)
    assert set(machine.run(20)) == {8}
    assert machine.crew.n_changes == 0


def test_rare_sleeps_change_nothing() -> None:
    machine = Machine(2, ideal, late=lambda n: 0.01)
    assert set(machine.run(20)) == {2}


def test_sleeps_that_mean_nothing_cost_little() -> None:
    """Fewer members are tried, ever more rarely."""
    machine = Machine(2, ideal, late=lambda n: 1)
    assert share(machine.run(30), 2) > 0.98


@pytest.mark.parametrize(("n_threads", "n_neighbours", "want"), [(2, 1, 1), (8, 1, 7), (16, 3, 13)])
def test_neighbours_get_their_processors(n_threads: int, n_neighbours: int, want: int) -> None:
    machine = Machine(n_threads, beside(n_neighbours, n_threads))
    machine.run(10)
    assert share(machine.run(10), want) > 0.85
    assert not machine.crew.is_calm
    machine.seconds = ideal  # they are gone
    machine.late = lambda n: 0
    machine.run(5)
    assert set(machine.run(5)) == {n_threads}
    assert machine.crew.is_calm


def test_a_small_gain_is_no_reason() -> None:
    machine = Machine(2, lambda n: 0.00095 if n == 1 else 0.001)
    assert share(machine.run(20), 2) > 0.95


def test_steps_that_cannot_be_compared_decide_nothing() -> None:
    machine = Machine(2, beside(1, 2))
    machine.run(10, size=None)
    assert machine.crew.n_active == 2
    machine.run(5)
    assert share(machine.run(5), 1) > 0.85
