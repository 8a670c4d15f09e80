"""Files appear complete or not at all, whatever goes wrong while writing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextn.core.errors import ConfigError, NextnError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

F32 = find_format("F32")
ZEROS = [TensorData("a", (64,), F32, bytes(256)), TensorData("b", (64,), F32, bytes(256))]


def failing(error: BaseException) -> TensorData:
    def pieces() -> Iterator[bytes]:
        yield bytes(128)
        raise error

    return TensorData("c", (64,), F32, pieces)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), MemoryError()])
@pytest.mark.parametrize("most", [None, 256])
def test_failure_midway_leaves_nothing(
    error: BaseException, most: int | None, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        write_gguf(tmp_path / "m.gguf", {}, [*ZEROS, failing(error)], max_shard_bytes=most)
    assert not list(tmp_path.iterdir())


def test_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, {}, [failing(KeyboardInterrupt())], overwrite=True)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


def test_existing_file_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(ConfigError, match="exists already"):
        write_gguf(path, {}, ZEROS)
    assert path.read_bytes() == b"precious"
    write_gguf(path, {}, ZEROS, overwrite=True)
    with open_gguf(path) as file:
        assert list(file.tensors) == ["a", "b"]


def test_one_existing_shard_refuses_all(tmp_path: Path) -> None:
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(b"precious")
    with pytest.raises(ConfigError, match=second.name):
        write_gguf(tmp_path / "m.gguf", {}, ZEROS, max_shard_bytes=256)
    assert list(tmp_path.iterdir()) == [second]


def test_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"

    def pieces() -> Iterator[bytes]:
        path.write_bytes(b"precious")
        yield bytes(256)

    with pytest.raises(ConfigError, match="exists already"):
        write_gguf(path, {}, [TensorData("a", (64,), F32, pieces)])
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


def test_an_open_mapping_survives_overwriting_its_file(tmp_path: Path) -> None:
    """A new file takes the name; the old one stays as long as it is open."""
    path = tmp_path / "m.gguf"
    write_gguf(path, {}, [TensorData("a", (2,), F32, b"\1" * 8)])
    with open_gguf(path) as file:
        write_gguf(path, {}, map(TensorData.of, file.tensors.values()), overwrite=True)
        write_gguf(path, {}, [TensorData("a", (1,), F32, bytes(4))], overwrite=True)
        assert file.tensors["a"].data.tobytes() == b"\1" * 8


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_gguf(tmp_path / "m.gguf", {}, ZEROS)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("folder", ["absent", "file"])
def test_folder_that_cannot_be_written_to(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    target = tmp_path / folder / "m.gguf"
    with pytest.raises(NextnError, match="cannot be written: No") as caught:
        write_gguf(target, {}, ZEROS)
    assert "\n" not in str(caught.value)


FULL = """
import resource, sys
from nextn.core.errors import NextnError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.writer import TensorData, write_gguf
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
tensors = [TensorData("a", (1 << 16,), find_format("F32"), [bytes(1 << 14)] * 16)]
try:
    write_gguf(sys.argv[1], {}, tensors)
except NextnError as error:
    print(error)
"""


def test_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    """A limit on the file's size stands in for a full disk: both fail in `write`."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "m.gguf")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"{tmp_path}/m.gguf: cannot be written: File too large\n"
    assert result.stderr == ""
    assert not list(tmp_path.iterdir())


def test_error_while_flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files fail only when the buffer is flushed at the end."""

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NextnError, match="cannot be written: No space left on device"):
        write_gguf(tmp_path / "m.gguf", {}, ZEROS)
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import sys, time
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.writer import TensorData, write_gguf
def pieces():
    yield bytes(128)
    print("writing", flush=True)
    time.sleep(60)
write_gguf(sys.argv[1], {}, [TensorData("a", (64,), find_format("F32"), pieces)])
"""


def test_ctrl_c_removes_the_temporary_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "m.gguf")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) != 0
    assert not list(tmp_path.iterdir())
