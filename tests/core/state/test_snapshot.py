"""Saved sequences as files: round trips, and files that an enemy wrote."""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.thoroughness import n_examples

from nextn.core.errors import FileFormatError, NextnError
from nextn.core.state.snapshot import SequenceSnapshot

SNAPSHOT = SequenceSnapshot(
    model="abc",
    backend="scripted",
    window=4,
    tokens=np.arange(9, dtype=np.int32),
    n_prompt=5,
    n_cells=8,
    n_pending_accepted=2,
    image={
        "kv.0.keys": np.arange(24, dtype=np.float32).reshape(8, 3),
        "empty": np.zeros((0, 4), np.uint16),
        "bytes": np.arange(7, dtype=np.uint8),
        "scalar": np.array(3.5),
    },
    blobs={"request": b"{}", "nothing": b"", "größe": bytes(range(100))},
)


def assert_same(a: SequenceSnapshot, b: SequenceSnapshot) -> None:
    assert np.array_equal(a.tokens, b.tokens)
    assert list(a.image) == list(b.image)
    for name, array in a.image.items():
        assert array.dtype == b.image[name].dtype
        assert array.shape == b.image[name].shape
        assert np.array_equal(array, b.image[name])
    bare = [replace(snapshot, tokens=np.zeros(0, np.int32), image={}) for snapshot in (a, b)]
    assert repr(bare[0]) == repr(bare[1])


def test_round_trip(tmp_path: Path) -> None:
    SNAPSHOT.save(tmp_path / "s")
    loaded = SequenceSnapshot.load(tmp_path / "s")
    assert_same(SNAPSHOT, loaded)
    assert all(array.flags.writeable for array in loaded.image.values())


def test_an_older_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"old")
    SNAPSHOT.save(path)
    assert_same(SequenceSnapshot.load(path), SNAPSHOT)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        replace(SNAPSHOT, blobs={"a": "text"}).save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot be read"):
        SequenceSnapshot.load(tmp_path / "missing")
    with pytest.raises(FileFormatError, match="cannot be read"):
        SequenceSnapshot.load(tmp_path)


def bytes_of(folder: Path) -> bytes:
    SNAPSHOT.save(folder / "whole")
    return (folder / "whole").read_bytes()


def seal(data: bytes) -> bytes:
    """With the checksum that belongs to it: an enemy can compute one too."""
    return data + blake2b(data, digest_size=32).digest()


def load(folder: Path, data: bytes) -> SequenceSnapshot:
    path = folder / "damaged"
    path.write_bytes(data)
    return SequenceSnapshot.load(path)


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    data = bytes_of(tmp_path)
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(FileFormatError):
            load(tmp_path, bytes(damaged))


def test_every_missing_end_is_noticed(tmp_path: Path) -> None:
    data = bytes_of(tmp_path)
    for n in range(0, len(data), 7):
        with pytest.raises(FileFormatError):
            load(tmp_path, data[:n])


@settings(
    max_examples=n_examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_sealed_damage_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever the bytes say, either it loads with consistent sizes or it is one kind of error."""
    whole = bytearray(bytes_of(tmp_path)[:-32])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    try:
        loaded = load(tmp_path, seal(bytes(whole)))
    except NextnError:
        return
    assert 1 <= loaded.n_prompt <= len(loaded.tokens)
    assert 0 <= loaded.n_cells < len(loaded.tokens)


def with_header(folder: Path, **changes: Any) -> bytes:
    data = bytes_of(folder)
    _, _, length = struct.unpack_from("<8sII", data)
    header = json.loads(data[16 : 16 + length]) | changes
    encoded = json.dumps(header).encode()
    start = struct.pack("<8sII", b"SPECSEQ\n", 1, len(encoded)) + encoded
    body = 16 + length + -(16 + length) % 64
    return seal(start + bytes(-len(start) % 64) + data[body:-32])


def test_the_header_can_be_rewritten(tmp_path: Path) -> None:
    assert_same(load(tmp_path, with_header(tmp_path)), SNAPSHOT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_prompt": 0}, "prompt of 0"),
        ({"n_prompt": 10}, "prompt of 10"),
        ({"n_cells": 9}, "saw 9 of 9"),
        ({"n_pending_accepted": 5}, "5 pending"),
        ({"n_pending_accepted": -1}, "not a count"),
        ({"n_pending_accepted": True}, "not a count"),
        ({"n_pending_accepted": 2.0}, "not a count"),
        ({"window": None}, "not a count"),
        ({"n_tokens": 1 << 47}, "are left"),
        ({"n_tokens": 1 << 99}, "not a count"),
        ({"model": 3}, "not a text"),
        ({"arrays": {}}, "no arrays"),
        ({"arrays": []}, "where zeros|are left|too many"),
        ({"arrays": [["a", "object", [1]]]}, "unknown type"),
        ({"arrays": [["a", "float32", [1 << 40, 1 << 40]]]}, "are left"),
        ({"arrays": [["a", "float32", [0, 1 << 47, 1 << 47]]]}, "impossible shape"),
        ({"arrays": [["a", "float32", [-1]]]}, "not a count"),
        ({"arrays": [["a", "uint8", [0]], ["a", "uint8", [0]]]}, "repeated name"),
        ({"arrays": [["a", "uint8"]]}, "malformed"),
        ({"blobs": [["a", 1 << 40]]}, "are left"),
        ({"blobs": [[1, 1]]}, "malformed"),
        ({"blobs": None}, "no blobs"),
    ],
)
def test_headers_that_lie(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=said) as caught:
        load(tmp_path, with_header(tmp_path, **changes))
    assert str(tmp_path / "damaged") in str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a saved sequence"),
        (b"GGUF" * 20, "not a saved sequence"),
        (b"SPECSEQ\n", "cut short"),
        (seal(struct.pack("<8sII", b"SPECSEQ\n", 2, 0)), "version 2"),
        (seal(struct.pack("<8sII", b"SPECSEQ\n", 1, 1 << 31)), "header length"),
        (seal(struct.pack("<8sII", b"SPECSEQ\n", 1, 2) + b"[]"), "not an object"),
        (seal(struct.pack("<8sII", b"SPECSEQ\n", 1, 9000) + b"[" * 9000), "not JSON"),
    ],
)
def test_files_that_are_something_else(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=said):
        load(tmp_path, data)
