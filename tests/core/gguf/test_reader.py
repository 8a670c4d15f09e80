"""SequenceStart files: where the bytes live, what outlives closing, what happens to a cut file."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import gguf_bytes as raw
from support.gguf_bytes import gguf, info, string_pair

from nextn.core.errors import FileFormatError
from nextn.core.gguf.reader import open_gguf

NUMBERS = [1.0, -2.5, 3.0, 0.0, 7.0, 8.0]


def write_small(path: Path) -> Path:
    pairs = [string_pair("general.architecture", "llama"), raw.strings_pair("words", ["a", "b"])]
    path.write_bytes(gguf(pairs, [info("m", (3, 2))], struct.pack("<6f", *NUMBERS)))
    return path


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
def test_tensor_is_in_numpy_order(mmap: bool, tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")
    with open_gguf(path, mmap=mmap) as file:
        tensor = file.tensors["m"]
        assert (tensor.shape, tensor.n_elements, tensor.n_bytes) == ((2, 3), 6, 24)
        assert tensor.format.name == "F32"
        assert tensor.floats().tolist() == [NUMBERS[:3], NUMBERS[3:]]
        assert file.paths == (file.path,) == (path,)
        assert file.alignment == 32


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
def test_data_cannot_be_written_to(mmap: bool, tmp_path: Path) -> None:
    with (
        open_gguf(write_small(tmp_path / "small.gguf"), mmap=mmap) as file,
        pytest.raises(ValueError, match="read-only"),
    ):
        file.tensors["m"].data[0] = 1


def test_views_outlive_close(tmp_path: Path) -> None:
    file = open_gguf(write_small(tmp_path / "small.gguf"))
    tensor, metadata = file.tensors["m"], file.metadata
    file.close()
    file.close()
    assert not file.tensors
    assert tensor.floats()[0, 1] == -2.5
    assert metadata["words"] == ["a", "b"]


def test_string_and_bytes_paths_and_odd_names(tmp_path: Path) -> None:
    path = write_small(tmp_path / "odd \n name.gguf")
    with open_gguf(os.fspath(path)) as file:
        assert file.metadata.architecture == "llama"
    path.write_bytes(b"oops")
    with pytest.raises(FileFormatError, match="not a GGUF file") as caught:
        open_gguf(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.gguf", "cannot be read: No such file"),
        (".", "is a folder"),
        ("pipe", "is not a file"),
        ("x\0y", "cannot be read: .*null"),
    ],
)
def test_what_cannot_be_opened(name: str, message: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match=message):
        open_gguf(tmp_path / name)


def test_metadata_never_point_into_the_mapping(tmp_path: Path) -> None:
    """Changing the mapped file in place must not change what was validated."""
    path = tmp_path / "small.gguf"
    path.write_bytes(
        gguf([raw.array_pair("n", raw.I32, 2, struct.pack("<2i", 5, 6)), string_pair("s", "abc")])
    )
    with open_gguf(path) as file:
        content = path.read_bytes()
        with path.open("r+b") as other:
            other.write(bytes(len(content)))
        assert np.array_equal(np.asarray(file.metadata["n"]), [5, 6])
        assert file.metadata["s"] == "abc"


CUT = """
import sys
from nextn.core.gguf.reader import open_gguf
file = open_gguf(sys.argv[1], mmap=sys.argv[2] == "mmap")
with open(sys.argv[1], "r+b") as other:
    other.truncate(1000)
assert file.metadata["words"] == ["a", "b"]
print(float(file.tensors["m"].floats().sum()), flush=True)
"""


@pytest.mark.parametrize("how", ["mmap", "read"])
def test_file_cut_while_open(how: str, tmp_path: Path) -> None:
    """A copy does not notice. A mapping kills the process, which the docstring announces."""
    path = tmp_path / "cut.gguf"
    pairs = [raw.strings_pair("words", ["a", "b"])]
    path.write_bytes(gguf(pairs, [info("m", (1 << 16,))], np.ones(1 << 16, "<f4").tobytes()))
    result = subprocess.run(
        [sys.executable, "-c", CUT, str(path), how], capture_output=True, text=True, timeout=60
    )
    if how == "read":
        assert (result.returncode, result.stdout) == (0, "65536.0\n"), result.stderr
    else:
        assert result.returncode < 0
        assert result.stdout == ""
