"""Sets of shards: opened from any part, refused when a part is missing, moved or foreign."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import gguf_bytes as raw
from support.gguf_bytes import gguf, info, pair, string_pair, strings_pair

from nextn.core.errors import FileFormatError, ModelError
from nextn.core.gguf.reader import open_gguf

COUNT = 3


def part(
    number: int,
    *,
    names: Sequence[str] | None = None,
    count: int = COUNT,
    total: int | None = COUNT,
    extra: Sequence[bytes] = (),
) -> bytes:
    """Part `number`, from 0, with one tensor that holds eight times its number."""
    pairs = [
        pair("split.no", raw.U16, struct.pack("<H", number)),
        pair("split.count", raw.U16, struct.pack("<H", count)),
    ]
    if total is not None:
        pairs.append(pair("split.tensors.count", raw.I32, struct.pack("<i", total)))
    if number == 0:
        pairs.append(string_pair("general.architecture", "llama"))
        pairs.append(strings_pair("words", ["only", "in", "part", "one"]))
    names = [f"t{number}"] if names is None else names
    infos = [info(name, offset=32 * k) for k, name in enumerate(names)]
    return gguf([*pairs, *extra], infos, struct.pack("<8f", *[number] * 8) * len(names))


def name_of(number: int, count: int = COUNT, stem: str = "m") -> str:
    return f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(COUNT):
        (tmp_path / name_of(number)).write_bytes(part(number))
    return tmp_path


@pytest.mark.parametrize("number", range(COUNT))
def test_any_part_opens_the_set(number: int, folder: Path) -> None:
    with open_gguf(folder / name_of(number)) as file:
        assert file.path == folder / name_of(number)
        assert [path.name for path in file.paths] == [name_of(k) for k in range(COUNT)]
        assert list(file.tensors) == ["t0", "t1", "t2"]
        assert [tensor.floats()[0] for tensor in file.tensors.values()] == [0, 1, 2]
        assert file.metadata["words"] == ["only", "in", "part", "one"]
        assert file.metadata.architecture == "llama"


def test_total_may_be_absent(folder: Path) -> None:
    for number in range(COUNT):
        (folder / name_of(number)).write_bytes(part(number, total=None))
    with open_gguf(folder / name_of(0)) as file:
        assert len(file.tensors) == COUNT


def test_count_of_one_is_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "any name"
    path.write_bytes(part(0, count=1, total=1))
    with open_gguf(path) as file:
        assert file.paths == (path,)


@pytest.mark.parametrize("number", range(COUNT))
def test_missing_part(number: int, folder: Path) -> None:
    (folder / name_of(number)).unlink()
    with pytest.raises(FileFormatError, match=rf"{name_of(number)}: cannot be read: No such file"):
        open_gguf(folder / name_of(0 if number else 1))


def test_reordered_parts(folder: Path) -> None:
    second, third = folder / name_of(1), folder / name_of(2)
    second.rename(folder / "x")
    third.rename(second)
    (folder / "x").rename(third)
    with pytest.raises(FileFormatError, match="holds part 3 of 3, expected part 2 of 3"):
        open_gguf(folder / name_of(0))


def test_renamed_part(folder: Path) -> None:
    shutil.copy(folder / name_of(0), folder / "model.gguf")
    with pytest.raises(FileFormatError, match="part 1 of 3 and must be called NAME-00001-of-00003"):
        open_gguf(folder / "model.gguf")


@pytest.mark.parametrize(
    ("number", "content", "message"),
    [
        (1, part(1, count=4), "holds part 2 of 4, expected part 2 of 3"),
        (1, part(1, total=9), "split.tensors.count is 9, but part 1 says 3"),
        (1, part(1, names=["t0"]), "tensor 't0' is also in m-00001-of-00003.gguf"),
        (2, part(2, names=[]), "split.tensors.count is 3, but the parts hold 2"),
        (2, part(2, names=["t2", "t3"]), "split.tensors.count is 3, but the parts hold 4"),
        (
            2,
            part(2, extra=[string_pair("general.architecture", "qwen3")]),
            "architecture is 'qwen3', but part 1 says 'llama': the parts belong to different",
        ),
        (1, gguf([], [info("t1")], bytes(32)), "'split.count' is missing"),
        (1, part(1)[:-1], "m-00002-of-00003.gguf: tensor 't1' ends at"),
        (1, b"GGUF", "m-00002-of-00003.gguf: version needs"),
        (0, part(0, count=65535), "part 1 of 65535 and must be called NAME-00001-of-65535"),
    ],
)
def test_bad_part(number: int, content: bytes, message: str, folder: Path) -> None:
    (folder / name_of(number)).write_bytes(content)
    with pytest.raises((FileFormatError, ModelError), match=message):
        open_gguf(folder / name_of(0))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([pair("split.count", raw.I32, raw.u32(-1))], "'split.count' is -1, expected 0"),
        ([pair("split.count", raw.U32, raw.u32(10**6))], "'split.count' is 1000000"),
        ([string_pair("split.count", "../../x")], "'split.count' is a string"),
        ([pair("split.count", raw.U16, b"\3\0")], "'split.no' is missing"),
        (
            [pair("split.count", raw.U16, b"\3\0"), pair("split.no", raw.U16, b"\3\0")],
            "'split.no' is 3, expected 0 to 2",
        ),
    ],
)
def test_bad_split_keys(pairs: list[bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / name_of(0)
    path.write_bytes(gguf(pairs))
    with pytest.raises((FileFormatError, ModelError), match=message):
        open_gguf(path)


def test_names_are_computed_never_read(folder: Path) -> None:
    """Whatever a file says, its companions are looked for beside it."""
    for number in range(COUNT):
        evil = [string_pair("split.path", "../../etc/passwd"), string_pair("general.name", "../x")]
        (folder / name_of(number)).write_bytes(part(number, extra=evil))
    with open_gguf(folder / name_of(1)) as file:
        assert {path.parent for path in file.paths} == {folder}
