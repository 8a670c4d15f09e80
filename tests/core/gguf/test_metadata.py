"""Typed getters: what they accept, what they refuse, and in which words."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import gguf_bytes as raw
from support.gguf_bytes import gguf, string_pair

from nextn.core.errors import ModelError
from nextn.core.gguf.metadata import Metadata
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType


def make(values: Mapping[str, Any]) -> Metadata:
    """Keys without a dot get the architecture's prefix."""
    full = {key if "." in key else f"llama.{key}": value for key, value in values.items()}
    return Metadata.of({"general.architecture": "llama", **full}, "m.gguf")


INTEGERS = [ValueType.U8, ValueType.I8, ValueType.U16, ValueType.I16, ValueType.U32]
INTEGERS += [ValueType.I32, ValueType.U64, ValueType.I64]


@pytest.mark.parametrize("kind", INTEGERS)
def test_any_integer_type_will_do(kind: ValueType) -> None:
    meta = make({"n": Typed(kind, 7), "a": Typed(ValueType.ARRAY, [1, 0], kind)})
    assert meta.int("n") == 7
    assert meta.float("n") == 7.0
    assert meta.ints("a") == (1, 0)
    assert meta.floats("a") == (1.0, 0.0)
    assert meta.bools("a") == (True, False)


def test_keys_are_relative_to_the_architecture() -> None:
    meta = make({"block_count": 3, "general.name": "x", "tokenizer.ggml.model": "gpt2"})
    assert meta.int("block_count") == 3
    assert meta.str("general.name") == "x"
    assert meta.str("tokenizer.ggml.model") == "gpt2"
    assert meta.full_key("rope.freq_base") == "llama.rope.freq_base"
    assert meta.has("block_count")
    assert not meta.has("llama.block_count")
    assert "llama.block_count" in meta
    assert "block_count" not in meta


def test_defaults_replace_only_what_is_missing() -> None:
    meta = make({"zero": 0, "no": False, "empty": ""})
    assert meta.int("zero", 5) == 0
    assert meta.bool("no", True) is False
    assert meta.str("empty", "x") == ""
    assert meta.int("absent", 5) == 5
    assert meta.int("absent", None) is None
    assert meta.float("absent", -1.0, low=0) == -1.0
    assert meta.ints("absent", ()) == ()
    assert meta.floats("absent", None) is None
    assert meta.bools("absent", None) is None
    assert meta.strs("absent", None) is None


Get = Callable[[Metadata], object]


@pytest.mark.parametrize(
    ("value", "get", "message"),
    [
        (-1, lambda m: m.int("k"), "'llama.k' is -1, expected 0 to 2147483647"),
        (2**32 - 1, lambda m: m.int("k"), "'llama.k' is 4294967295, expected 0 to 2147483647"),
        (2**64 - 1, lambda m: m.int("k"), "is 18446744073709551615, expected"),
        (10**9, lambda m: m.int("k", low=1, high=512), "is 1000000000, expected 1 to 512"),
        (0, lambda m: m.int("k", low=1), "is 0, expected 1 to"),
        (1.0, lambda m: m.int("k"), "'llama.k' is a f32, expected an integer"),
        (True, lambda m: m.int("k"), "'llama.k' is a bool, expected an integer"),
        ("3", lambda m: m.int("k"), "'llama.k' is a string, expected an integer"),
        ([3], lambda m: m.int("k"), "'llama.k' is an array of i32, expected an integer"),
        (math.nan, lambda m: m.float("k"), "is nan, expected a finite number"),
        (math.inf, lambda m: m.float("k"), "is inf, expected a finite number"),
        (-1e-5, lambda m: m.float("k", low=0), "expected 0 to inf"),
        (0.0, lambda m: m.float("k", low=1e-12, high=1), "is 0.0, expected 1e-12 to 1"),
        (True, lambda m: m.float("k"), "is a bool, expected a number"),
        (1, lambda m: m.bool("k"), "is an u32, expected a bool|is a u32, expected a bool"),
        (1, lambda m: m.str("k"), "is a u32, expected a string"),
        ([1], lambda m: m.str("k"), "is an array of i32, expected a string"),
        (1, lambda m: m.ints("k"), "is a u32, expected an array of integers"),
        ([1.0], lambda m: m.ints("k"), "is an array of f32, expected an array of integers"),
        (["1"], lambda m: m.floats("k"), "is an array of string, expected an array of numbers"),
        ([1], lambda m: m.strs("k"), "is an array of i32, expected an array of strings"),
        ([0, 2], lambda m: m.bools("k"), r"'llama.k\[1\]' is 2, expected 0 to 1"),
        ([0.0], lambda m: m.bools("k"), "is an array of f32, expected an array of bools"),
        ([1, 2], lambda m: m.ints("k", length=3), "has 2 elements, expected 3"),
        ([True], lambda m: m.bools("k", length=2), "has 1 elements, expected 2"),
        ([1.0], lambda m: m.floats("k", length=2), "has 1 elements, expected 2"),
        (["a"], lambda m: m.strs("k", length=2), "has 1 elements, expected 2"),
        ([1, -5], lambda m: m.ints("k", low=0), r"'llama.k\[1\]' is -5, expected 0"),
        ([0.0, math.nan], lambda m: m.floats("k"), r"'llama.k\[1\]' is nan, expected a finite"),
        ([0.5, 2.5], lambda m: m.floats("k", high=1), r"'llama.k\[1\]' is 2.5, expected -inf to 1"),
        ([2**64 - 1], lambda m: m.ints("k"), r"'llama.k\[0\]' is 18446744073709551615"),
        ([1, 2], lambda m: m.per_layer_ints("k", 3), "has 2 elements, expected 3"),
        ([1, 2, 0], lambda m: m.per_layer_ints("k", 3, low=1), r"'llama.k\[2\]' is 0"),
        (0, lambda m: m.per_layer_ints("k", 3, low=1), "'llama.k' is 0, expected 1"),
        (["x"], lambda m: m.per_layer_ints("k", 3), "is an array of string"),
        (1, lambda m: m.int("absent"), "metadata key 'llama.absent' is missing"),
        (1, lambda m: m.ints("absent"), "metadata key 'llama.absent' is missing"),
        (1, lambda m: m.str("tokenizer.ggml.model"), "'tokenizer.ggml.model' is missing"),
        (1, lambda m: m.per_layer_ints("absent", 3), "'llama.absent' is missing"),
    ],
)
def test_refusals_name_file_key_found_and_expected(value: Any, get: Get, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        get(make({"k": value}))
    assert str(caught.value).startswith("m.gguf: ")
    assert str(caught.value).isprintable()


def test_per_layer_ints_from_scalar_array_and_default() -> None:
    meta = make({"one": 4, "each": [1, 2, 3]})
    assert meta.per_layer_ints("one", 3) == (4, 4, 4)
    assert meta.per_layer_ints("each", 3) == (1, 2, 3)
    assert meta.per_layer_ints("absent", 2, 9) == (9, 9)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "../x", "\x1b[2J"])
def test_architecture_must_be_a_name(name: str) -> None:
    meta = Metadata.of({"general.architecture": name})
    with pytest.raises(ModelError, match="which is not a name") as caught:
        meta.int("block_count")
    assert str(caught.value).isprintable()


def test_architecture_is_required() -> None:
    with pytest.raises(ModelError, match=r"'general\.architecture' is missing"):
        _ = Metadata.of({}).architecture


def test_hostile_keys_are_escaped_in_messages() -> None:
    meta = make({"tokenizer.\x1b[31m\n": 1})
    with pytest.raises(ModelError, match=r"\\x1b\[31m\\n' is a u32") as caught:
        meta.str("tokenizer.\x1b[31m\n")
    assert str(caught.value).isprintable()


def test_every_scalar_type_from_a_file(tmp_path: Path) -> None:
    values: list[tuple[int, str, Any]] = [
        (raw.U8, "<B", 200),
        (raw.I8, "<b", -100),
        (raw.U16, "<H", 60000),
        (raw.I16, "<h", -30000),
        (raw.U32, "<I", 4000000000),
        (raw.I32, "<i", -2000000000),
        (raw.F32, "<f", 0.25),
        (raw.BOOL, "<?", True),
        (raw.U64, "<Q", 2**64 - 1),
        (raw.I64, "<q", -(2**63)),
        (raw.F64, "<d", 0.1),
    ]
    pairs = [raw.pair(f"s{kind}", kind, struct.pack(form, v)) for kind, form, v in values]
    pairs += [
        raw.array_pair(f"a{kind}", kind, 2, 2 * struct.pack(form, v)) for kind, form, v in values
    ]
    path = tmp_path / "all.gguf"
    path.write_bytes(gguf(pairs))
    meta = open_gguf(path).metadata
    for kind, _, value in values:
        scalar, array = meta[f"s{kind}"], meta[f"a{kind}"]
        assert scalar == value
        assert type(scalar) is type(value)
        assert meta.typed(f"s{kind}") == Typed(ValueType(kind), value)
        assert isinstance(array, np.ndarray)
        assert array.tolist() == [value, value]
        assert not array.flags.writeable
        assert meta.typed(f"a{kind}").element is ValueType(kind)


BROKEN = b"caf\xc3"


@pytest.mark.parametrize("others", [["a", "\u4e2d"], ["has\0nul", ""], []])
def test_text_that_is_not_utf8(others: list[str], tmp_path: Path) -> None:
    """Shown with U+FFFD, kept as bytes for writing."""
    path = tmp_path / "broken.gguf"
    pairs = [string_pair("s", BROKEN), raw.strings_pair("a", [*others, BROKEN])]
    path.write_bytes(gguf(pairs))
    meta = open_gguf(path).metadata
    assert meta["s"] == "caf\ufffd"
    assert meta["a"] == [*others, "caf\ufffd"]
    assert meta.raw("s") == BROKEN
    assert meta.raw("a") == [*(text.encode() for text in others), BROKEN]
    assert meta.typed("s").value == BROKEN
    assert meta.typed("a").value == meta.raw("a")


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["", "", ""],
        ["a", "", "\0", "\0\0"],
        ["x" * 255, "y" * 256, "z" * 70000, "\u00e9" * 300],
        ["\ud7ff\ue000\U0001f600", "\ufffd", "plain"],
    ],
)
def test_string_arrays_decode_exactly(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "strings.gguf"
    path.write_bytes(gguf([raw.strings_pair("a", texts)]))
    meta = open_gguf(path).metadata
    assert len(meta.entry("a").value) == len(texts)
    assert meta["a"] == texts
    assert meta["a"] is meta["a"]  # decoded once
    assert meta.raw("a") == [text.encode() for text in texts]
    assert meta.typed("a").value == texts


def test_raw_is_for_text_only() -> None:
    with pytest.raises(ModelError, match="is a u32, expected a string or an array of strings"):
        make({"n": 1}).raw("llama.n")


def test_looking_for_a_key_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "strings.gguf"
    path.write_bytes(gguf([raw.strings_pair("a", ["x"])]))
    meta = open_gguf(path).metadata

    def fail(self: Metadata, key: str) -> None:
        raise AssertionError(f"decoded {key}")

    monkeypatch.setattr(Metadata, "__getitem__", fail)
    assert "a" in meta
    assert list(meta) == ["a"]


@pytest.mark.parametrize(
    ("value", "kind", "element"),
    [
        (True, ValueType.BOOL, None),
        (7, ValueType.U32, None),
        (-7, ValueType.I32, None),
        (2**32, ValueType.U64, None),
        (-(2**40), ValueType.I64, None),
        (np.float32(0.5), ValueType.F32, None),
        (np.int64(5), ValueType.U32, None),
        ("x", ValueType.STRING, None),
        (b"\xff", ValueType.STRING, None),
        ([1, -2], ValueType.ARRAY, ValueType.I32),
        ([2**31], ValueType.ARRAY, ValueType.U32),
        ([2**63], ValueType.ARRAY, ValueType.U64),
        ([-1, 2**31], ValueType.ARRAY, ValueType.I64),
        ([1, 0.5], ValueType.ARRAY, ValueType.F32),
        ((True, False), ValueType.ARRAY, ValueType.BOOL),
        (["a", b"\xff"], ValueType.ARRAY, ValueType.STRING),
        (np.zeros(3, np.int16), ValueType.ARRAY, ValueType.I16),
        (np.zeros(3, ">f8"), ValueType.ARRAY, ValueType.F64),
    ],
)
def test_plain_values_get_a_type(value: Any, kind: ValueType, element: ValueType | None) -> None:
    typed = Metadata.of({"k": value}).entry("k")
    assert (typed.type, typed.element) == (kind, element)


@pytest.mark.parametrize(
    "value", [None, [], [1, "a"], [[1]], {}, 2**64, np.zeros((2, 2)), np.zeros(2, complex)]
)
def test_values_without_a_type(value: Any) -> None:
    with pytest.raises(TypeError):
        Metadata.of({"k": value})
