"""The cache of repacked weights: the same bits as without, and never those of another file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.running import random_tokens
from support.tiny_models import TinyModel

import nextn.core
from nextn.core.backend.cpu import repacked
from nextn.core.backend.cpu.repacked import (
    ABANDONED_S,
    ENTRY,
    NOTE,
    list_entries,
    remove_entries,
)
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.tile_matrix import Repacker
from nextn.core.backend.layers import Floats
from nextn.core.errors import ConfigError
from nextn.core.gguf.atomic_write import UNFINISHED
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.runtime import Runtime

Tiny = Callable[..., TinyModel]
TOKENS = random_tokens(9, seed=5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compiled kernels stay where they are: only what is tested gets a folder of its own."""
    monkeypatch.setattr(repacked, "repack_folder", lambda: tmp_path / "repacked")
    return tmp_path / "repacked"


@pytest.fixture
def model(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy that may be changed, and was written some time ago."""
    path = tmp_path / "model.gguf"
    shutil.copy(tiny("qwen35", quantise="Q8_0").path, path)
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged for long: a test cannot set when a file was last touched."""
    monkeypatch.setattr(repacked, "SETTLED_NS", -(10**12))


def load(path: Path, *, cache: bool = True) -> Runtime:
    return nextn.core.load(path, "cpu", n_ctx=64, repack_cache=cache)


def logits(path: Path, *, cache: bool = True) -> tuple[Floats, int]:
    """And how many bytes of weights came from the cache."""
    with load(path, cache=cache) as runtime:
        return runtime.logits(TOKENS), runtime.backend.mapped_bytes


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{kind}"))


@pytest.mark.parametrize(
    ("family", "quantise"), [("qwen35", "Q8_0"), ("qwen3moe", "F32"), ("llama", "Q4_0")]
)
@pytest.mark.usefixtures("settled")
def test_the_second_start_repacks_nothing(
    family: str, quantise: str, folder: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny(family, quantise=quantise).path
    want, none = logits(path, cache=False)
    assert not folder.exists()
    first, written = logits(path)
    monkeypatch.setattr(Repacker, "_fill", None)
    monkeypatch.setattr(repacked, "_hash_tensors", None)
    second, mapped = logits(path)
    assert none == written == 0
    assert np.array_equal(want, first)
    assert np.array_equal(want, second)
    (entry,) = list_entries(folder)
    assert 0 < mapped <= entry[1]
    assert (len(names(folder, NOTE)), names(folder, UNFINISHED)) == (1, [])


def test_a_file_changed_a_moment_ago_is_hashed_again(folder: Path, model: Path) -> None:
    """Its times may not tell the next change from this one."""
    logits(model)
    assert (len(names(folder, ENTRY)), names(folder, NOTE)) == (1, [])
    assert logits(model)[1] > 0


@pytest.mark.usefixtures("settled")
def test_one_changed_byte(folder: Path, model: Path) -> None:
    """Same size, and the time of writing put back: the numbers are still the file's own."""
    before = model.stat()
    old, _ = logits(model)
    data = bytearray(model.read_bytes())
    with open_gguf(model) as file:
        tensor = file.tensors["output.weight"].data.tobytes()
    at = data.find(tensor) + 5
    data[at] ^= 1
    model.write_bytes(data)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    want, _ = logits(model, cache=False)
    got, mapped = logits(model)
    assert mapped == 0
    assert np.array_equal(got, want)
    assert not np.array_equal(got, old)
    assert logits(model)[1] > 0
    assert len(names(folder, ENTRY)) == 2


@pytest.mark.usefixtures("settled")
def test_another_file_under_the_same_name(folder: Path, model: Path, tiny: Tiny) -> None:
    logits(model)
    other = tiny("qwen35", quantise="Q4_0").path
    shutil.copy(other, model.with_suffix(".new"))
    model.with_suffix(".new").replace(model)
    got, mapped = logits(model)
    assert mapped == 0
    assert np.array_equal(got, logits(other, cache=False)[0])


def test_a_copy_shares_the_entry(folder: Path, model: Path) -> None:
    logits(model)
    copy = shutil.copy(model, model.with_name("copy.gguf"))
    assert logits(Path(copy))[1] > 0
    assert len(names(folder, ENTRY)) == 1


def cut(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + b"\0"


def without_head(data: bytes) -> bytes:
    return bytes(len(data))


@pytest.mark.parametrize("damage", [cut, longer, without_head, lambda _: b""])
def test_a_damaged_entry_is_replaced(
    damage: Callable[[bytes], bytes], folder: Path, model: Path
) -> None:
    want, _ = logits(model)
    ((path, _),) = list_entries(folder)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    got, mapped = logits(model)
    assert mapped == 0
    assert np.array_equal(got, want)
    assert path.read_bytes() == whole
    assert logits(model)[1] > 0


@pytest.mark.parametrize("note", ["", "0" * 63, "\0" * 64, "z" * 64])
@pytest.mark.usefixtures("settled")
def test_a_damaged_note_is_not_believed(note: str, folder: Path, model: Path) -> None:
    want, _ = logits(model)
    (path,) = folder.glob(f"*{NOTE}")
    path.write_text(note)
    got, mapped = logits(model)
    assert mapped > 0
    assert np.array_equal(got, want)


def test_a_full_disk_is_said_in_one_line(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    got, _ = logits(model)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"repacked weights are not kept: {folder}: ")
    assert said.endswith("GiB are needed, 0.00 GiB are free")
    assert np.array_equal(got, logits(model, cache=False)[0])
    assert names(folder, ENTRY) == []


def test_a_disk_that_fills_up_meanwhile(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    logits(model)
    assert [r.getMessage() for r in caplog.records] == [
        f"repacked weights are not kept: {folder}: No space left on device"
    ]
    assert names(folder, ENTRY) + names(folder, UNFINISHED) + names(folder, NOTE) == []


def test_a_folder_that_cannot_be(
    folder: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file")
    logits(model)
    (record,) = caplog.records
    assert "repacked weights are not kept" in record.getMessage()


def test_a_file_that_changes_while_it_is_repacked(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill = Repacker._fill

    def change(self: Repacker, *args: Any) -> None:
        os.utime(model)
        fill(self, *args)

    monkeypatch.setattr(Repacker, "_fill", change)
    logits(model)
    assert "was changed meanwhile" in caplog.records[0].getMessage()
    assert names(folder, ENTRY) == []


@pytest.mark.parametrize("pattern", repacked.LAYOUT_SOURCES)
def test_every_source_of_the_layout_is_there(pattern: str) -> None:
    """Or tiles of an earlier layout would be taken for those of today."""
    assert list(Path(repacked.__file__).parent.glob(pattern))


def test_what_is_old_goes(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of another version, and what a killed process left; nobody else's."""
    logits(model)
    (first,) = names(folder, ENTRY)
    strange = folder / f"00-11{ENTRY}"
    dead, alive = folder / f"dead{UNFINISHED}", folder / f"alive{UNFINISHED}"
    for path in (strange, dead, alive):
        path.write_bytes(b"x")
    past = time.time() - ABANDONED_S - 60
    os.utime(dead, (past, past))
    monkeypatch.setattr(repacked, "_layout", lambda: "another version")
    assert logits(model)[1] == 0
    assert first not in names(folder, ENTRY)
    assert len(names(folder, ENTRY)) == 2
    assert strange.exists()
    assert names(folder, UNFINISHED) == [alive.name]


def test_removing_everything(folder: Path, model: Path) -> None:
    assert remove_entries(folder) == []
    logits(model)
    ((_, size),) = remove_entries(folder)
    assert size > 0
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_the_instruction_set_does_not_matter(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry's name says only whether the set looks up: tiles look the same whoever made them."""
    found = set()
    for name, made in SETS.items():
        if made.is_available():
            monkeypatch.setenv("SPEC_CPU_SET", name)
            logits(model)
            ((path, _),) = list_entries(folder)
            found.add((made.looks_up, path.name, path.read_bytes()))
            remove_entries(folder)
    assert len(found) == len({looks_up for looks_up, *_ in found}) == len({n for _, n, _ in found})


def test_the_order_of_rows_is_part_of_the_name(tiny: Tiny) -> None:
    """Equal tensors may be put together in different ways."""
    from nextn.core.backend.layers import MatrixPart

    with open_gguf(tiny("qwen3").path) as file:
        tensor = file.tensors["blk.0.attn_q.weight"]
        n = tensor.shape[0]
        orders = [None, np.arange(n), np.arange(n)[::-1]]
        parts = [MatrixPart(tensor, row_order=order) for order in orders]
        scaled = MatrixPart(tensor, scale=np.ones(1, np.float32))
        plans = [[[part]] for part in (*parts, scaled)] + [[parts[:2]], [parts[:1], parts[:1]]]
        assert len({repacked._plan(plan) for plan in plans}) == len(plans)
        del tensor, parts, scaled, plans


def test_only_the_cpu_repacks(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="--repack-cache is for --device cpu, not torch"):
        nextn.core.load(tiny("qwen3").path, "torch", repack_cache=True)


WRITER = """
import sys
import nextn.core
nextn.core.load(sys.argv[1], "cpu", n_ctx=64, repack_cache=True).close()
"""


@pytest.mark.slow
def test_writers_at_the_same_time(tmp_path: Path, tiny: Tiny) -> None:
    path = tiny("qwen35", quantise="Q8_0").path
    command = [sys.executable, "-c", WRITER, str(path)]
    environment = os.environ | {"SPEC_CACHE_DIR": str(tmp_path)}
    running = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    folder = tmp_path / "repacked"
    assert (len(names(folder, ENTRY)), names(folder, UNFINISHED)) == (1, [])


def test_the_identity_of_a_file(model: Path) -> None:
    def is_unchanged(file: GgufFile) -> bool:
        return file.is_unchanged()

    with open_gguf(model) as file:
        assert is_unchanged(file)
        os.utime(model)
        assert not is_unchanged(file)
    with open_gguf(model) as file:
        model.unlink()
        assert not is_unchanged(file)
