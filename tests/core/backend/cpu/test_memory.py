"""Arenas: where arrays lie, that memory comes late and goes early, and what a load takes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_file import Sizes, write_random_qwen35

from nextn.core.backend.cpu import memory
from nextn.core.backend.cpu.memory import ALIGNMENT, HUGE_PAGE, Arena, padded

MIB = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SIZES = Sizes(n_layers=8, n_embd=1024, n_ff=3584, n_vocab=4096)


def of_this_process(field: str, file: str = "smaps_rollup") -> int:
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@given(st.lists(st.integers(0, 5000), max_size=20))
def test_arrays_lie_side_by_side(sizes: list[int]) -> None:
    arena = Arena(sum(map(padded, sizes)))
    arrays = [arena.take(size) for size in sizes]
    for value, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
        assert len(array) == size
        assert not size or array.ctypes.data % ALIGNMENT == 0
        array[:] = value
    assert all((array == value).all() for value, array in enumerate(arrays))
    assert len(arena.vocab_subset()) == sum(map(padded, sizes))
    addresses = [array.ctypes.data for array, size in zip(arrays, sizes, strict=True) if size]
    assert addresses == sorted(addresses)


def test_more_than_was_announced() -> None:
    arena = Arena(100)
    first, more = arena.take(100), arena.take(3000)
    first[:], more[:] = 1, 2
    assert (first == 1).all()
    assert len(more) == 3000
    assert more.ctypes.data % ALIGNMENT == 0


def test_the_mapping_goes_with_its_last_array() -> None:
    arena = Arena(2 * padded(1000))
    mapping = weakref.ref(arena._mapping)
    first, second = arena.take(1000), arena.take(1000)
    del arena, first
    gc.collect()
    assert mapping() is not None
    second[:] = 1
    del second
    gc.collect()
    assert mapping() is None


@on_linux
@pytest.mark.parametrize("used", [1, 3 * MIB, 40 * MIB])
def test_what_is_not_used_is_not_resident(used: int) -> None:
    before = of_this_process("Rss")
    arena = Arena(256 * MIB)
    arena.take(used)[:] = 1
    vocab_subset = of_this_process("Rss") - before
    assert used <= vocab_subset + MIB
    assert vocab_subset <= used + 2 * HUGE_PAGE + MIB


@on_linux
def test_huge_pages_where_the_system_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("no huge pages here")
    for patience, expected in ((60.0, 64 * MIB), (-1.0, HUGE_PAGE)):
        monkeypatch.setattr(memory, "SLOW_HUGE_PAGE_S", patience)
        before = of_this_process("AnonHugePages")
        arena = Arena(64 * MIB + 5)
        arena.take(64 * MIB)[:] = 1
        assert of_this_process("AnonHugePages") - before == expected
        del arena


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    arena = Arena(8 * MIB)
    array = arena.take(8 * MIB)
    array[:] = 3
    assert int(array.sum(dtype=np.int64)) == 24 * MIB


AGAIN_AND_AGAIN = """
import sys
import nextn.core
from nextn.core.generation import GenerateParams
def resident():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
def once():
    with nextn.core.load(sys.argv[1], "cpu", n_ctx=256, threads=2) as runtime:
        list(runtime.generate([5, 6, 7], GenerateParams(max_tokens=2)))
        return runtime.backend.weight_bytes()
for _ in range(4):  # malloc learns which sizes to keep
    weights = once()
settled = resident()
for _ in range(6):
    once()
print(weights, resident() - settled)
"""


@on_linux
@pytest.mark.slow
@pytest.mark.threads
def test_loading_again_and_again(tmp_path: Path) -> None:
    path = write_random_qwen35(tmp_path / "m.gguf", "Q4_0", SIZES)
    command = [sys.executable, "-c", AGAIN_AND_AGAIN, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    weights, growth = map(int, done.stdout.split())
    assert weights > 60 * MIB
    assert growth < weights / 4


PEAK = """
import sys
import nextn.core, nextn.core.runtime
def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
runtime = nextn.core.load(sys.argv[2], "cpu", n_ctx=256)
next(runtime.generate([5, 6, 7]))
runtime.close()
before = memory("VmRSS")
runtime = nextn.core.load(sys.argv[1], "cpu", n_ctx=4096)
next(runtime.generate([5, 6, 7]))
b = runtime.budget
print(memory("VmHWM") - before, b.weights + b.kv + b.recurrent)
"""


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["Q8_0", "Q4_K"])
def test_the_peak_of_a_load(recipe: str, tmp_path: Path) -> None:
    """Beside the interpreter and what a first load imports."""
    path = write_random_qwen35(tmp_path / "m.gguf", recipe, SIZES)
    tiny = Sizes(n_layers=4, n_embd=256, n_ff=512, n_vocab=1024, n_delta_heads=2)
    other = write_random_qwen35(tmp_path / "tiny.gguf", recipe, tiny)
    command = [sys.executable, "-c", PEAK, str(path), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    peak, planned = map(int, done.stdout.split())
    assert peak <= 1.15 * planned
