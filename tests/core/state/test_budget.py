"""Memory: what is asked for, what is there, and the sentence when it is too little."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.backend.interface import Backend
from nextn.core.backend.layers import KvShape, RecurrentShape, StateShape
from nextn.core.errors import ConfigError, ModelError
from nextn.core.state import host_memory
from nextn.core.state.budget import MemoryBudget, check_weights, make_budget
from nextn.core.state.host_memory import available_memory
from nextn.core.state.sizes import StateSizes

MIB = 1 << 20
KV = StateShape((KvShape(1, 1, 1),))
HYBRID = StateShape((KvShape(1, 1, 1),), (RecurrentShape.of_heads(1, 1, 1, 1, 1),))
SIZES = StateSizes(1024, n_slots=2, n_checkpoints=4, page_len=64)


class Sizes:
    """A page takes 1 MiB, a slot 8."""

    savings = ()

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return MIB, 8 * MIB * len(shape.recurrent)

    def weight_bytes(self) -> int:
        return 512 * MIB


BACKEND = cast(Backend, Sizes())


def test_what_is_added_up() -> None:
    budget = make_budget(BACKEND, HYBRID, SIZES, 1024 * MIB)
    assert (budget.kv, budget.recurrent) == (33 * MIB, 48 * MIB)
    assert budget.describe() == (
        "weights 0.50 GiB + KV 0.03 GiB (2048 tokens) + recurrent 0.05 GiB (2 + 4 states) "
        "= 0.58 GiB, 1.00 GiB free for the state"
    )


def test_without_recurrent_layers() -> None:
    budget = make_budget(BACKEND, KV, SIZES, None)
    assert budget.sizes.n_checkpoints == 0
    assert "recurrent" not in budget.describe()
    assert "free" not in budget.describe()


@pytest.mark.parametrize(("mib", "kept"), [(81, 4), (80, 2), (65, 2), (64, 1), (56, 0), (49, 0)])
def test_checkpoints_go_first(mib: int, kept: int) -> None:
    assert make_budget(BACKEND, HYBRID, SIZES, mib * MIB).sizes.n_checkpoints == kept


def test_the_refusal_says_what_to_change() -> None:
    with pytest.raises(ConfigError) as caught:
        make_budget(BACKEND, HYBRID, SIZES, 48 * MIB)
    said = str(caught.value)
    assert "2 x 1024 tokens" in said
    assert "needs 0.05 GiB" in said
    assert "0.50 GiB of weights" in said
    assert "smaller -c (up to 960 for each would fit)" in said
    assert "fewer parallel sequences" in said
    assert "\n" not in said


@given(st.integers(0, 200), st.integers(1, 4), st.integers(1, 3000))
def test_the_context_it_names_is_the_longest(mib: int, n_slots: int, n_ctx: int) -> None:
    def budget(length: int) -> MemoryBudget:
        sizes = StateSizes(length, n_slots, page_len=64)
        return make_budget(BACKEND, HYBRID, sizes, mib * MIB)

    try:
        assert budget(n_ctx).fits
    except ConfigError as error:
        found = re.search(r"up to (\d+) (?:for each )?would fit", str(error))
        longest = int(found[1]) if found else 0
        assert longest < n_ctx
        if longest:
            assert budget(longest).fits
        with pytest.raises(ConfigError):
            budget(longest + 1)


def test_weights_that_are_still_to_come() -> None:
    budget = make_budget(BACKEND, KV, SIZES, 64 * MIB, weights=100 * MIB)
    assert (budget.weights, budget.available) == (100 * MIB, 64 * MIB)


@pytest.mark.parametrize(("available", "refused"), [(109, True), (110, False)])
def test_a_model_that_no_context_helps(available: int, refused: bool) -> None:
    """100 MiB of weights, a state of 8, a page and one to copy it."""
    expected = pytest.raises(ModelError, match=r"fewer bits") if refused else nullcontext()
    with expected:
        check_weights(BACKEND, HYBRID, 100 * MIB, 99 * MIB, available * MIB)


def test_the_context_it_names_does_fit() -> None:
    sizes = StateSizes(960, n_slots=2, n_checkpoints=0, page_len=64)
    assert make_budget(BACKEND, HYBRID, sizes, 48 * MIB).fits


@pytest.mark.parametrize("mib", [0, 7, 8, 9])
def test_when_no_context_fits(mib: int) -> None:
    with pytest.raises(ConfigError, match=r"smaller model$"):
        make_budget(BACKEND, HYBRID, StateSizes(1024), mib * MIB)


@pytest.mark.parametrize(
    "field", ["n_ctx", "n_slots", "page_len", "window", "n_checkpoints", "kv_pages"]
)
def test_impossible_sizes(field: str) -> None:
    values = {"n_ctx": 64} | {field: -1}
    with pytest.raises(ConfigError, match="at least"):
        StateSizes(**values)


def test_this_machine_says_something() -> None:
    available = available_memory()
    assert available is not None
    assert 0 < available < 1 << 50


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """64 GiB of memory, and no control groups yet."""
    (tmp_path / "meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable:   67108864 kB\n")
    (tmp_path / "groups").mkdir()
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path / "groups")
    monkeypatch.setattr(host_memory, "_OWN_CGROUPS", tmp_path / "own")
    return tmp_path


def limit(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_no_limit(machine: Path) -> None:
    limit(machine / "groups", {"memory.max": "max\n", "memory.current": "5\n"})
    assert available_memory() == 64 << 30


def test_a_limit_above_us(machine: Path) -> None:
    """Version 2: a parent's limit binds; file pages, which can go, do not count."""
    (machine / "own").write_text("0::/pod/box\n")
    limit(machine / "groups/pod/box", {"memory.max": "max\n", "memory.current": "1\n"})
    stat = "anon 1000\ninactive_file 300\nactive_file 200\n"
    limit(machine / "groups/pod", {"memory.max": "9000", "memory.current": "2000"})
    limit(machine / "groups/pod", {"memory.stat": stat})
    assert available_memory() == 7500


def test_version_1(machine: Path) -> None:
    (machine / "own").write_text("4:cpu,cpuacct:/\n3:memory:/docker/x\n")
    files = {"memory.limit_in_bytes": "4096", "memory.usage_in_bytes": "96"}
    limit(machine / "groups/memory/docker/x", files)
    assert available_memory() == 4000
    unlimited = {"memory.limit_in_bytes": str(0x7FFFFFFFFFFFF000), "memory.usage_in_bytes": "1"}
    limit(machine / "groups/memory/docker/x", unlimited)
    assert available_memory() == 64 << 30


def test_nothing_to_read(machine: Path) -> None:
    (machine / "meminfo").unlink()
    available = available_memory()
    assert available is None or available > 0
