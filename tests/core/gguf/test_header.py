"""Damaged and hostile headers: refused with one clear line, quickly and in little memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from support import gguf_bytes as raw
from support.gguf_bytes import gguf, info, pair, string_pair, u32, u64

from nextn.core.errors import FileFormatError
from nextn.core.gguf.reader import open_gguf

ARCH = string_pair("general.architecture", "llama")
FLOATS_8 = bytes(32)
VALID = gguf([ARCH], [info()], FLOATS_8)
NESTED = pair("x", raw.ARRAY, (u32(raw.ARRAY) + u64(1)) * 3000 + u32(raw.U8) + u64(1) + b"\0")


def aligned(payload: bytes, kind: int = raw.U32) -> bytes:
    return gguf([pair("general.alignment", kind, payload)], [info()], FLOATS_8)


def tensors(*infos: bytes, data: bytes = FLOATS_8) -> bytes:
    return gguf([ARCH], infos, data)


def big_endian() -> bytes:
    return b"GGUF" + struct.pack(">IQQ", 3, 0, 0)


# (name, file, what the message must say); numbers are rows of the fault table
HEADERS = [
    ("1 empty file", b"", "is empty, not a GGUF file"),
    ("1 half a magic", b"GG", r"begins with b'GG'"),
    ("1 bad magic", gguf(magic=b"FUGU"), "not a GGUF file: it begins with b'FUGU'"),
    ("1 safetensors", u64(50) + b'{"a":1}', "not a GGUF file"),
    ("1 version 0", gguf(version=0), "GGUF version 0"),
    ("1 version 1", gguf(version=1), "GGUF version 1; versions 2 and 3"),
    ("1 version 4", gguf(version=4), "GGUF version 4"),
    ("1 big-endian", big_endian(), "big-endian GGUF"),
    ("1 no version", b"GGUF", "version needs 4 bytes at offset 4, but only 0 are left"),
    ("1 cut in counts", gguf()[:20], "number of metadata keys needs 8 bytes"),
    ("2 n_tensors -1", gguf(n_tensors=-1), "claims 18446744073709551615 tensors"),
    ("2 n_kv -1", gguf(n_pairs=-1), "claims 18446744073709551615 metadata keys"),
    ("2 n_tensors 2^40", gguf(n_tensors=2**40), "1099511627776 tensors, more than the 10000000"),
    ("2 n_kv 2^40", gguf(n_pairs=2**40), "metadata keys, more than the 100000"),
    ("2 n_tensors over size", gguf([ARCH], n_tensors=9_000_000), "need at least .* bytes"),
    ("2 n_kv over size", gguf([ARCH], n_pairs=99_000), "claims 99000 metadata keys"),
    ("2 one key too many", gguf([ARCH], n_pairs=2), "metadata key 1 needs 8 bytes|need at least"),
]
PAIRS = [
    ("3 key length -1", gguf([raw.text("x", -1) + bytes(20)]), "metadata key 0 has 1844674407"),
    ("3 key too long", gguf([string_pair("k" * 65536, "v")]), "65536 bytes, more than the 65535"),
    ("3 key over the end", gguf([raw.text("x", 99) + bytes(20)]), "needs 99 bytes .* only 21"),
    (
        "3 string length -1",
        gguf([pair("x", raw.STRING, u64(-1) + bytes(9))]),
        "metadata 'x' has 18446744073709551615 bytes, more than",
    ),
    (
        "3 string over the end",
        gguf([pair("x", raw.STRING, raw.text("abc", 20))]),
        "metadata 'x' needs 20 bytes at offset 45, but only 3 are left",
    ),
    (
        "3 array length 2^60",
        gguf([raw.array_pair("x", raw.U8, 2**60, bytes(9))]),
        "metadata 'x' has 1152921504606846976 elements",
    ),
    (
        "3 array over the end",
        gguf([raw.array_pair("x", raw.F64, 3, bytes(23))]),
        "metadata 'x' needs 24 bytes .* only 23",
    ),
    (
        "3 string array 2^60",
        gguf([raw.array_pair("x", raw.STRING, 2**60, bytes(9))]),
        "has 1152921504606846976 strings, more than",
    ),
    (
        "3 string array over the end",
        gguf([raw.array_pair("x", raw.STRING, 4, u64(0) * 3)]),
        "has 4 strings, but only 24 bytes are left",
    ),
    (
        "3 element over the end",
        gguf([raw.array_pair("x", raw.STRING, 3, raw.text("a") + raw.text("b", 99) + bytes(30))]),
        "string 1 of 3 runs past the file's end",
    ),
    (
        "3 element length -1",
        gguf([raw.array_pair("x", raw.STRING, 2, raw.text("a") + raw.text("b", -1) + bytes(9))]),
        "string 1 of 2 runs past the file's end",
    ),
    (
        "3 last element over the end",
        gguf([raw.array_pair("x", raw.STRING, 2, raw.text("a") + raw.text("bcd", 4))]),
        "string 1 of 2 runs past",
    ),
    (
        "4 array of arrays",
        gguf([raw.array_pair("x", raw.ARRAY, 1, u32(0) + u64(1) + b"\0")]),
        "metadata 'x' is an array of arrays",
    ),
    ("4 nested 3000 deep", gguf([NESTED]), "metadata 'x' is an array of arrays"),
    ("5 value type 13", gguf([pair("x", 13, bytes(8))]), "type of metadata 'x' is 13"),
    (
        "5 element type 99",
        gguf([raw.array_pair("x", 99, 1, bytes(8))]),
        "element type of metadata 'x' is 99, which is not a known",
    ),
    ("5 empty key", gguf([string_pair("", "v")]), "metadata key 0 is empty"),
    ("5 duplicate key", gguf([ARCH, ARCH]), "'general.architecture' occurs twice"),
    ("5 key not UTF-8", gguf([string_pair(b"a\xff", "v")]), r"not valid UTF-8: b'a\\xff'"),
    ("5 NUL in key", gguf([string_pair("a\0b", "v")]), r"contains a NUL: 'a\\x00b'"),
    ("5 bool 2", gguf([pair("x", raw.BOOL, b"\2")]), "'x' is a bool, but holds a byte"),
    ("6 alignment 0", aligned(u32(0)), "general.alignment is 0, expected a power of two"),
    ("6 alignment 13", aligned(u32(13)), "general.alignment is 13"),
    ("6 alignment 2^31", aligned(u32(2**31)), "general.alignment is 2147483648"),
    ("6 alignment 2^17", aligned(u32(2**17)), "general.alignment is 131072"),
    ("6 alignment u64", aligned(u64(32), raw.U64), "general.alignment is a u64, expected a u32"),
    ("6 alignment i32", aligned(u32(32), raw.I32), "general.alignment is an i32"),
    ("6 alignment text", aligned(raw.text("32"), raw.STRING), "general.alignment is a string"),
    ("6 alignment unlike data", aligned(u32(1024)), "is incomplete"),
    (
        "6 alignment unlike offsets",
        gguf(
            [pair("general.alignment", raw.U32, u32(64))],
            [info("a"), info("b", offset=32)],
            bytes(64),
            alignment=64,
        ),
        "tensor 'b' is at offset 32, expected 64",
    ),
]
TENSORS = [
    ("7 n_dims 0", tensors(info(dims=()) + bytes(8)), "'a.weight' has 0 dimensions"),
    ("7 n_dims 5", tensors(info(dims=(1,) * 5)), "has 5 dimensions, expected 1 to 4"),
    ("7 n_dims 10^6", tensors(info(n_dims=10**6)), "has 1000000 dimensions"),
    ("7 dimension -1", tensors(info(dims=(-1, 2))), "has a negative dimension"),
    ("7 product wraps", tensors(info(dims=(4194305, 4194305, 211106198978564))), "too large"),
    ("7 product is 0 mod 2^64", tensors(info(dims=(2**32, 2**32))), "too large for any file"),
    ("7 too many elements", tensors(info(dims=(2**62, 2, 2))), "too large for any file"),
    ("7 too many bytes", tensors(info(dims=(2**62,))), "too large for any file"),
    ("7 padding wraps", tensors(info(dims=(4, 2**30 - 1, 2**30 + 1))), "too large|incomplete"),
    (
        "7 sum of sizes wraps",
        tensors(info("a", (2**60,)), info("b", (2**60,), offset=2**62)),
        "tensor 'a' ends at byte .*incomplete",
    ),
    ("8 unknown type", tensors(info(kind=99)), "'a.weight' has type 99, which is not known"),
    ("8 type -1", tensors(info(kind=-1)), "has type 4294967295"),
    ("8 removed type", tensors(info(kind=31)), "type Q4_0_4_4, which GGUF dropped"),
    ("8 removed Q4_2", tensors(info(kind=4)), "type Q4_2, which GGUF dropped"),
    ("8 row of 33", tensors(info(dims=(33,), kind=8)), "rows of 33 .* multiple of the 32 .* Q8_0"),
    ("8 row of 128", tensors(info(dims=(128, 2), kind=12)), "multiple of the 256 .* Q4_K"),
    ("9 offset -1", tensors(info(offset=-1)), "at offset 18446744073709551615, expected 0"),
    ("9 offset 7", tensors(info(offset=7)), "tensor 'a.weight' is at offset 7, expected 0"),
    ("9 offset beyond", tensors(info(offset=2**40)), "at offset 1099511627776, expected 0"),
    (
        "9 overlap",
        tensors(info("a"), info("b", offset=0), data=bytes(64)),
        "tensor 'b' is at offset 0, expected 32",
    ),
    (
        "9 gap",
        tensors(info("a"), info("b", offset=64), data=bytes(96)),
        "tensor 'b' is at offset 64, expected 32",
    ),
    (
        "9 not padded",
        tensors(info("a", (3,)), info("b", offset=12), data=bytes(96)),
        "tensor 'b' is at offset 12, expected 32",
    ),
    ("10 empty name", tensors(info("")), "name of tensor 0 is empty"),
    ("10 long name", tensors(info("n" * 64)), "has 64 bytes, more than the 63"),
    ("10 name length -1", tensors(raw.text("a", -1) + bytes(50)), "name of tensor 0 has 18446744"),
    ("10 duplicate name", tensors(info(), info(offset=32), data=bytes(64)), "occurs twice"),
    ("10 escape in name", tensors(info("a\x1b[2J")), r"control characters: 'a\\x1b\[2J'"),
    ("10 newline in name", tensors(info("a\nerror: b")), r"control characters: 'a\\nerror"),
    ("10 NUL in name", tensors(info("a\0")), "contains a NUL"),
    ("10 name not UTF-8", tensors(info(b"\xc3\x28")), "name of tensor 0 is not valid UTF-8"),
    ("11 one byte short", VALID[:-1], "ends at byte .* but the file has .*: it is incomplete"),
    ("11 no data", tensors(info(), data=b""), "it is incomplete"),
    ("11 cut in a record", VALID[:90], "needs 8 bytes|need at least"),
]
BAD = HEADERS + PAIRS + TENSORS


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
@pytest.mark.parametrize(("content", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_file_is_refused(content: bytes, message: str, mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.raises(FileFormatError, match=message) as caught:
            open_gguf(path, mmap=mmap)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.thread_time() - started < 1
    assert peak < 2_000_000
    line = str(caught.value)
    assert line.startswith(str(path))
    assert line.isprintable()
    assert len(line) < 500


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (gguf(), []),
        (gguf([ARCH]), []),
        (gguf([ARCH], [info()], FLOATS_8, version=2), ["a.weight"]),
        (tensors(info(dims=(0,)), info("b"), data=bytes(32)), ["a.weight", "b"]),
        (tensors(info("a", (1, 1, 1, 8))), ["a"]),
        (tensors(info("n" * 63)), ["n" * 63]),
        (aligned(u32(32)), ["a.weight"]),
        (VALID + b"trailing bytes", ["a.weight"]),
    ],
    ids=["empty", "no-tensors", "v2", "zero-dim", "4-dims", "name-63", "align-32", "trailing"],
)
def test_unusual_but_good_file_is_read(content: bytes, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(content)
    with open_gguf(path) as file:
        assert list(file.tensors) == names
        for tensor in file.tensors.values():
            assert tensor.floats().shape == tensor.shape


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096, 65536])
def test_other_alignments(alignment: int, tmp_path: Path) -> None:
    step = -(-12 // alignment) * alignment
    key = pair("general.alignment", raw.U32, u32(alignment))
    infos = [info("a", (3,)), info("b", (3,), offset=step)]
    data = bytes(12) + bytes(step - 12) + struct.pack("<3f", 1, 2, 3)
    path = tmp_path / "aligned.gguf"
    path.write_bytes(gguf([ARCH, key], infos, data, alignment=alignment))
    with open_gguf(path) as file:
        assert file.alignment == alignment
        assert file.tensors["b"].floats().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("record", "size", "message"),
    [
        (
            pair("tokenizer.chat_template", raw.STRING, u64(10**8)),
            2 * 10**8,
            "has 100000000 bytes, more than the 67108864 allowed",
        ),
        (raw.array_pair("x", raw.STRING, 2**23, b""), 2**27, "8388608 strings, more than"),
        (
            raw.array_pair("x", raw.STRING, 2, u64(0) + u64(2**28)),
            2**29,
            "has 268435472 bytes, more than 268435456 allowed",
        ),
        (raw.array_pair("x", raw.U8, 2**27, b""), 2**28, "134217728 elements, more than"),
    ],
    ids=["string", "strings", "text", "elements"],
)
def test_caps_hold_in_a_file_that_is_large_enough(
    record: bytes, size: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(gguf([record]))
    with path.open("r+b") as file:
        file.truncate(size)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message):
            open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """A valid file has no prefix that is valid."""
    whole = gguf(
        [ARCH, raw.strings_pair("t", ["a", "bc", ""]), raw.array_pair("n", raw.I16, 2, bytes(4))],
        [info("a"), info("b", (32, 2), 8, 32)],
        bytes(32 + 68),
    )
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    with open_gguf(path) as file:
        assert list(file.tensors) == ["a", "b"]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            open_gguf(path)
