"""Reading safetensors: what is sound as the format's own library reads it, what is not refused."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.thoroughness import n_examples

from nextn.convert.checkpoint.byte_source import LocalSource
from nextn.convert.checkpoint.safetensors import MAX_HEADER_BYTES, StoredTensor, read_tensors
from nextn.core.errors import FileFormatError


class Bytes:
    """A file in memory, as a `Source`."""

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.label, self._data = "x.safetensors", data
        self.size = len(data) if size is None else size

    def read(self, start: int, stop: int) -> bytes:
        assert 0 <= start <= stop <= self.size, "asked for what is not there"
        return self._data[start:stop]

    def close(self) -> None:
        pass


def pack(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    as_list = [list(x) if isinstance(x, tuple) else x for x in (shape, offsets)]
    return {"dtype": dtype, "shape": as_list[0], "data_offsets": as_list[1]}


def read(data: bytes) -> dict[str, StoredTensor]:
    return read_tensors(Bytes(data))[0]


# What is sound -----------------------------------------------------------------------------------

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


@given(
    kinds=st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, max_size=6),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=n_examples(60), deadline=None)
def test_as_the_formats_own_library(
    kinds: list[str], shapes: list[list[int]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    tensors = {}
    for i, kind in enumerate(kinds):
        n = int(np.prod(shapes[i], dtype=int)) * DTYPES[kind].itemsize
        most = 2 if kind == "BOOL" else 256
        raw = torch.from_numpy(rng.integers(0, most, n, dtype=np.uint8))
        empty = torch.zeros(0, dtype=DTYPES[kind])  # whose bytes torch does not view
        tensors[f"t{i}"] = (raw.view(DTYPES[kind]) if n else empty).reshape(shapes[i])
    path = tmp_path_factory.mktemp("st") / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    source = LocalSource(path)
    found, metadata = read_tensors(source)
    assert metadata == {"format": "pt"}
    with safetensors.safe_open(path, "pt") as theirs:
        assert set(found) == set(theirs.keys())
        for name, tensor in found.items():
            wanted = theirs.get_tensor(name)
            assert tensor.shape == tuple(wanted.shape)
            assert DTYPES[tensor.dtype] == wanted.dtype
            ours = tensor.floats()
            expected = wanted.to(torch.float32).numpy()
            assert np.array_equal(ours, expected, equal_nan=True)
            if tensor.shape and tensor.shape[0] > 1:
                assert tensor.raw(1, 2).tobytes() == tensor.raw()[1:2].tobytes()
                slabs = [tensor.floats(a, b) for a, b in tensor.slabs(16)]
                assert np.array_equal(np.concatenate(slabs), expected, equal_nan=True)


# What is not -------------------------------------------------------------------------------------

GOOD = pack({"a": entry()}, bytes(8))
BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "it has 0 bytes"),
    ("short", b"\1\0\0", "it has 3 bytes"),
    ("a header longer than the file", pack({}, length=1 << 40), "claims 1099511627776 of"),
    ("a length of -1", pack({}, length=2**64 - 1), "claims 18446744073709551615 of"),
    ("a huge header", pack({}, length=MAX_HEADER_BYTES + 1), "claims 100000001 of"),
    ("a length of 0", pack(b"", bytes(8)), "claims 0 of"),
    ("no JSON", pack(b"{nonsense}"), "its header is not JSON"),
    ("no UTF-8", pack(b'{"\xff": 1}'), "its header is not JSON"),
    ("a list", pack([1]), "its header is not an object"),
    ("deep", pack(b"[" * 200_000), "its header is not JSON"),
    ("deep in an entry", pack(b'{"a":' * 100_000), "its header is not JSON"),
    ("a name twice", pack(b'{"a":1,"a":2}'), "a name occurs twice"),
    ("a key twice", pack(b'{"a":{"dtype":"F32","dtype":"F16"}}'), "a name occurs twice"),
    ("no entry", pack({"a": 5}), "tensor 'a' has no dtype, shape and data_offsets"),
    ("no offsets", pack({"a": {"dtype": "F32", "shape": [2]}}), "has no dtype, shape and"),
    ("three offsets", pack({"a": entry(offsets=(0, 4, 8))}, bytes(8)), "has no dtype, shape"),
    ("an unknown dtype", pack({"a": entry("F33")}, bytes(8)), "unknown dtype 'F33'"),
    ("a float in a shape", pack({"a": entry(shape=(2.0,))}, bytes(8)), "impossible shape"),
    ("a bool in a shape", pack({"a": entry(shape=(True, 2))}, bytes(8)), "impossible shape"),
    ("a negative size", pack({"a": entry(shape=(-2,))}, bytes(8)), "impossible shape"),
    ("a huge size", pack({"a": entry(shape=(1 << 70,))}, bytes(8)), "impossible shape"),
    ("sizes that wrap", pack({"a": entry(shape=(1 << 61, 16))}, bytes(8)), "does not fit at 0..8"),
    ("too many sizes", pack({"a": entry(shape=(1,) * 9)}, bytes(8)), "impossible shape"),
    ("a number with 10,000 digits", pack(b'{"a":' + b"9" * 10_000 + b"}"), "is not JSON"),
    ("backwards", pack({"a": entry(offsets=(8, 0))}, bytes(8)), "does not fit at 8..0"),
    ("the wrong length", pack({"a": entry(shape=(3,))}, bytes(8)), "of 12 bytes does not fit"),
    ("beyond the end", pack({"a": entry()}, bytes(7)), "does not fit at 0..8"),
    (
        "overlapping",
        pack({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
        "tensor 'b' overlaps another or leaves a gap",
    ),
    (
        "the same bytes twice",
        pack({"a": entry(), "b": entry()}, bytes(8)),
        "overlaps another or leaves a gap",
    ),
    (
        "a gap",
        pack({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)),
        "tensor 'b' overlaps another or leaves a gap",
    ),
    ("bytes that belong to nobody", GOOD + b"12345", "5 bytes at its end belong to no tensor"),
    ("metadata of another kind", pack({"__metadata__": [1]}), "__metadata__ is not an object"),
    ("a name with escapes", pack({"\x1b[2J": 1}), r"tensor '\\x1b\[2J' has no dtype"),
]


@pytest.mark.parametrize(("data", "message"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD])
def test_what_is_wrong_is_said(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        read(data)
    text = str(caught.value)
    assert text.startswith("x.safetensors is not a sound safetensors file: ")
    assert text.isprintable()
    assert len(text) < 300
    assert is_refused_by_the_library(data), "or we are stricter than the format"


def is_refused_by_the_library(data: bytes) -> bool:
    deserialize: Any = safetensors.deserialize
    try:
        deserialize(data)
    except (safetensors.SafetensorError, ValueError, OverflowError):
        return True
    return False


def test_truncation_anywhere_is_noticed() -> None:
    whole = pack({"a": entry(), "b": entry("U8", (5,), (8, 13))}, bytes(13))
    assert set(read(whole)) == {"a", "b"}
    for n in range(len(whole)):
        with pytest.raises(FileFormatError):
            read(whole[:n])


@given(data=st.binary(max_size=64), at=st.integers(0, 200), byte=st.integers(0, 255))
@settings(max_examples=n_examples(300), deadline=None)
def test_any_damage_ends_in_one_line(data: bytes, at: int, byte: int) -> None:
    whole = bytearray(pack({"a": entry(), "b": entry("U8", (5,), (8, 13))}, bytes(13)))
    whole[at % len(whole)] = byte
    for damaged in (bytes(whole), bytes(whole[: at % len(whole)]) + data, pack(data), data):
        text = complaint(damaged)
        assert text.isprintable()


def complaint(data: bytes) -> str:
    try:
        for tensor in read(data).values():
            tensor.floats()
    except FileFormatError as error:
        return str(error)
    return ""


def test_a_claim_costs_no_memory() -> None:
    """A length, or a shape, is compared with what is there before anything is made for it."""
    tracemalloc.start()
    for header, length in (
        ({"a": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}, None),
        ({}, 9**9),
    ):
        with pytest.raises(FileFormatError):
            read(pack(header, bytes(8), length))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(GOOD)
    source = LocalSource(path)
    tensor = read_tensors(source)[0]["a"]
    assert tensor.floats().tolist() == [0, 0]
    with pytest.raises(FileFormatError, match="ends before byte 1000"):
        source.read(0, 1000)
    source.close()
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="is empty"):
        LocalSource(path)
