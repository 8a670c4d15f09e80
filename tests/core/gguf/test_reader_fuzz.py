"""Thousands of damaged files: each is read or refused with a `NextnError`, and quickly.

Seeded, so a failure names the number that repeats it.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import gguf_bytes as raw
from support.gguf_bytes import array_pair, gguf, info, pair, string_pair, strings_pair

from nextn.core.errors import NextnError
from nextn.core.gguf.checks import check_vocabulary
from nextn.core.gguf.metadata import Metadata
from nextn.core.gguf.non_finite import find_non_finite
from nextn.core.gguf.quants import FORMATS
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.gguf.types import DTYPES, Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf

EXTREMES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 32, 33, 63, 64, 255, 256, 2**16, 2**31 - 1, 2**31]
EXTREMES += [2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1]


def vocabulary() -> bytes:
    tokens = ["<unk>", "<s>", "a", "\u00e9\u00e8", "\0", "x" * 300]
    pairs = [
        string_pair("general.architecture", "llama"),
        pair("general.alignment", raw.U32, raw.u32(32)),
        pair("llama.block_count", raw.U32, raw.u32(2)),
        pair("llama.rope.freq_base", raw.F32, struct.pack("<f", 1e4)),
        strings_pair("tokenizer.ggml.tokens", tokens),
        array_pair("tokenizer.ggml.scores", raw.F32, 6, bytes(24)),
        array_pair("tokenizer.ggml.token_type", raw.I32, 6, struct.pack("<6i", *[1] * 6)),
        strings_pair("tokenizer.ggml.merges", ["a b", "b c"]),
        pair("tokenizer.ggml.eos_token_id", raw.U32, raw.u32(1)),
        string_pair("tokenizer.chat_template", "{{ x }}"),
    ]
    return gguf(pairs, [info("token_embd.weight", (8, 6))], bytes(192))


def every_format() -> bytes:
    infos, data = [], b""
    for fmt in FORMATS.values():
        infos.append(info(f"t.{fmt.name}", (fmt.block_size, 2), fmt.type_id, len(data)))
        data += (bytes(range(256)) * 3)[: 2 * fmt.block_bytes]
        data += bytes(-len(data) % 32)
    return gguf([string_pair("general.architecture", "llama")], infos, data)


def every_type() -> bytes:
    pairs = []
    for kind, dtype in DTYPES.items():
        pairs.append(pair(f"s{kind}", kind, bytes(dtype.itemsize)))
        pairs.append(array_pair(f"a{kind}", kind, 3, bytes(3 * dtype.itemsize)))
    return gguf([*pairs, string_pair("s", "text"), strings_pair("a", [])])


def one_shard() -> bytes:
    pairs = [
        pair("split.no", raw.U16, b"\0\0"),
        pair("split.count", raw.U16, b"\1\0"),
        pair("split.tensors.count", raw.I32, raw.u32(1)),
    ]
    return gguf(pairs, [info()], bytes(32))


BASES = [vocabulary(), every_format(), every_type(), one_shard()]


def mutate(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(BASES))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(6)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 2:
            del data[at : at + rng.choice([1, 4, 8, 50, 10**6])]
        elif how == 3:  # a length, count or offset field, most often in the header
            at = min(at, rng.randrange(len(data) + 1))
            data[at : at + 8] = struct.pack("<Q", rng.choice(EXTREMES))
        elif how == 4:
            data[at : at + 4] = struct.pack("<I", rng.choice(EXTREMES) % 2**32)
        else:
            other = rng.choice(BASES)
            start = rng.randrange(len(other))
            data[at:at] = other[start : start + rng.choice([1, 8, 40, 400])]
    return bytes(data)


def use(file: GgufFile) -> None:
    """Everything a tool would look at."""
    for key in file.metadata:
        assert file.metadata[key] is not None
        file.metadata.typed(key)
    for tensor in file.tensors.values():
        assert tensor.floats().shape == tensor.shape
        find_non_finite(tensor)
    check_vocabulary(file)
    assert file.metadata.int("block_count", 1) >= 0


def refusal_of(action: Callable[[], object], seed: int) -> str | None:
    """What a `NextnError` says, None if there was none; any other exception is a failure."""
    try:
        action()
    except NextnError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return None


def fuzz_files(count: int, folder: Path) -> tuple[int, float]:
    """How many were read in full, and the slowest time."""
    path = folder / "fuzz.gguf"
    n_read, slowest = 0, 0.0

    def open_and_use() -> None:
        with open_gguf(path, mmap=bool(seed % 2)) as file:
            use(file)

    for seed in range(count):
        path.unlink(missing_ok=True)  # an old mapping keeps its old file
        path.write_bytes(mutate(random.Random(seed)))
        started = time.thread_time()
        refusal = refusal_of(open_and_use, seed)
        slowest = max(slowest, time.thread_time() - started)
        n_read += refusal is None
        assert refusal is None or refusal.isprintable(), f"seed {seed}"
    return n_read, slowest


def check_counts(count: int, n_read: int, slowest: float) -> None:
    """Both outcomes must be common, or the mutations are too wild or too tame."""
    assert count // 20 < n_read < count - count // 20
    assert slowest < 1


def test_damaged_files(tmp_path: Path) -> None:
    check_counts(2_000, *fuzz_files(2_000, tmp_path))


@pytest.mark.exhaustive
def test_many_damaged_files(tmp_path: Path) -> None:
    check_counts(20_000, *fuzz_files(20_000, tmp_path))


def random_entry(rng: random.Random) -> Any:
    """Mostly of the wrong type or range for any key."""
    kind = rng.choice(list(DTYPES))
    wide = rng.choice([Typed(ValueType.U64, 2**64 - 1), Typed(ValueType.I64, -(2**63))])
    array = Typed(ValueType.ARRAY, [0] * rng.randrange(4), kind)
    texts = [rng.choice(["", "a", "\0", "\x1b[2J", b"\xff"]) for _ in range(rng.randrange(4))]
    text_array = Typed(ValueType.ARRAY, texts, ValueType.STRING)
    number = rng.choice([float("nan"), float("inf"), -1.0, 1e30])
    plain = rng.choice(["", "llama", "\n", b"\xff\xfe", True, -1, 10**9, 0])
    return rng.choice([wide, array, text_array, number, plain, Typed(kind, 1)])


KEYS = ["general.architecture", "general.name", "llama.block_count", "llama.attention.head_count"]
KEYS += [f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges")]
KEYS += ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.x_token_ids", "tokenizer.chat_template"]
KEYS += ["split.no", "split.count", "split.tensors.count", "llama.rope.freq_base", "\x1b[2J"]


def questions(meta: Metadata, key: str) -> list[Callable[[], object]]:
    getters: list[Any] = [
        meta.int,
        meta.float,
        meta.bool,
        meta.str,
        meta.ints,
        meta.floats,
        meta.bools,
    ]
    calls: list[Callable[[], object]] = [partial(getter, key) for getter in getters]
    return [*calls, partial(meta.strs, key), partial(meta.per_layer_ints, key, 2)]


def fuzz_metadata(count: int, folder: Path) -> int:
    """How many questions were answered."""
    path = folder / "fuzz.gguf"
    tensor = TensorData("token_embd.weight", (2, 2), FORMATS[0], bytes(16))
    n_answered = 0

    def write_and_use() -> None:
        write_gguf(path, meta, [tensor], overwrite=True)
        with open_gguf(path) as file:
            use(file)

    for seed in range(count):
        rng = random.Random(seed)
        keys = rng.sample(KEYS, rng.randrange(len(KEYS)))
        meta = Metadata.of({key: random_entry(rng) for key in keys})
        calls = [question for key in KEYS for question in questions(meta, key)]
        if seed % 10 == 0:
            calls.append(write_and_use)
        refusals = [refusal_of(question, seed) for question in calls]
        n_answered += refusals.count(None)
        assert all(refusal is None or refusal.isprintable() for refusal in refusals), seed
    return n_answered


def test_absurd_metadata(tmp_path: Path) -> None:
    assert fuzz_metadata(500, tmp_path) > 1000


@pytest.mark.exhaustive
def test_much_absurd_metadata(tmp_path: Path) -> None:
    assert fuzz_metadata(20_000, tmp_path) > 40_000
