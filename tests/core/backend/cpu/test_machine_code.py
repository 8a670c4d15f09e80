"""The kernel cache never runs old or damaged code, and instruction sets are checked first."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nextn.core.backend.cpu import machine_code as compiling
from nextn.core.backend.cpu.backend import choose_set
from nextn.core.backend.cpu.emit import Emitter
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.simd import SETS, Generic, Simd
from nextn.core.errors import ConfigError


def write_constant(value: int) -> object:
    def write(e: Emitter) -> None:
        e.store(e.index(value), e.parameters[0], 8)
        e.finish()

    return write


def result_of(kernels: Kernels, value: int, name: str = "test_constant") -> int:
    """What the kernel `name` stores; `value` is only used if it has to be compiled."""
    address = kernels.get({name: write_constant(value)})[name]  # type: ignore[dict-item]
    out = np.zeros(1, np.int64)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)(out.ctypes.data, 0, 1)
    return int(out[0])


def test_a_second_start_uses_the_cached_object(tmp_path: Path) -> None:
    assert result_of(Kernels(Generic(), tmp_path), 1) == 1
    compiled: list[int] = []
    again = Kernels(Generic(), tmp_path)
    again.get({"test_constant": write_constant(2)}, lambda *_: compiled.append(1))  # type: ignore[dict-item]
    assert result_of(again, 2) == 1
    assert not compiled


def test_changed_sources_compile_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert result_of(Kernels(Generic(), tmp_path / "cache"), 1) == 1
    source = tmp_path / "kernel.py"
    source.write_text("changed")
    monkeypatch.setattr(compiling, "_sources", lambda _: [source])
    assert result_of(Kernels(Generic(), tmp_path / "cache"), 2) == 2


def test_another_set_compiles_anew(tmp_path: Path) -> None:
    class Other(Generic):
        name = "other"

    assert result_of(Kernels(Generic(), tmp_path), 1) == 1
    assert result_of(Kernels(Other(), tmp_path), 2) == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_object_is_compiled_again(damage: str, tmp_path: Path) -> None:
    result_of(Kernels(Generic(), tmp_path), 1)
    (path,) = tmp_path.glob("*.o")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes({"cut": data[:-40], "flip": data, "empty": b""}[damage]))
    assert result_of(Kernels(Generic(), tmp_path), 2) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert result_of(Kernels(Generic(), blocked / "below"), 3) == 3


def test_sets_that_this_cpu_lacks_are_refused() -> None:
    class Future(Simd):
        name, features = "future", ("a-feature-of-tomorrow",)

    assert not Future.is_available()
    assert Generic.is_available()
    with pytest.raises(
        ConfigError,
        match="choose one of avx512-vnni, avx-vnni, avx2, ssse3, neon-dotprod, generic",
    ):
        choose_set("avx1024")


@pytest.mark.parametrize("name", [n for n, made in SETS.items() if made.is_available()])
def test_each_set_runs_in_a_process_of_its_own(name: str) -> None:
    """A wrong instruction ends the process rather than raising."""
    code = "from nextn.core.backend import create_backend\nprint(create_backend('cpu').details)\n"
    import os

    environment = {**os.environ, "SPEC_CPU_SET": name}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert name in done.stdout
