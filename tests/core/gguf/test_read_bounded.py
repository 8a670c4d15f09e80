"""Files of any kind and size, read up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.core.gguf.read_bounded import read_bounded

MIB = 1 << 20


@pytest.mark.parametrize("n", [0, 1, MIB])
def test_all_of_it(n: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(n))
    assert read_bounded(tmp_path / "file", MIB) == bytes(n)


def test_a_byte_too_many(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB + 1))
    with pytest.raises(OSError, match="more than 1 MiB") as caught:
        read_bounded(path, MIB)
    assert caught.value.filename == str(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_what_never_ends() -> None:
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_bounded(Path("/dev/zero"), MIB)
