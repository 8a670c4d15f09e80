"""Work that is repeated: first as it comes, then as one piece; few pieces are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.host_device import HostDevice

from nextn.core.backend.cuda.graphs import Graphs, Repeated
from nextn.core.backend.cuda.step_sizes import context_bucket


class Noting(HostDevice):
    """A device that notes what is captured, replayed and waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def repeatable(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.noted.append("captured")
        made = work()

        def repeat() -> Any:
            self.noted.append("replayed")
            return made

        return repeat

    def wait(self) -> None:
        self.noted.append("waited")


def graphs_of(device: Noting, most: int) -> Callable[[int], int]:
    graphs: Graphs[int, int] = Graphs(device, most)

    def work(key: int) -> int:
        device.noted.append(f"worked on {key}")
        return key

    def run(key: int) -> int:
        return graphs.of(
            key, lambda: Repeated(device, key, lambda: work(key), repeats=key < 100)
        ).run()

    return run


def test_the_second_time_is_captured() -> None:
    device = Noting()
    run = graphs_of(device, 2)
    assert [run(7) for _ in range(3)] == [7] * 3
    assert device.noted == [
        "worked on 7", "captured", "worked on 7", "replayed", "replayed"
    ]  # fmt: skip


def test_long_work_is_done_each_time() -> None:
    device = Noting()
    run = graphs_of(device, 2)
    assert [run(100) for _ in range(3)] == [100] * 3
    assert device.noted == ["worked on 100"] * 3


def test_the_longest_unused_is_dropped_when_it_has_ended() -> None:
    device = Noting()
    run = graphs_of(device, 2)
    for key in (1, 1, 2, 2, 1, 3):
        run(key)
    assert device.noted[-2:] == ["waited", "worked on 3"]
    device.noted.clear()
    run(1)
    assert device.noted == ["replayed"]
    run(2)
    assert device.noted == ["replayed", "waited", "worked on 2"]


@pytest.mark.parametrize(
    ("cells", "bucket"), [(1, 1024), (1024, 1024), (1025, 8192), (8193, 65536), (70_000, 1 << 19)]
)
def test_contexts_come_in_few_sizes(cells: int, bucket: int) -> None:
    assert context_bucket(cells) == bucket
