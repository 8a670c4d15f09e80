"""What is written comes back: types, bytes, order, shards; from us and from the `gguf` package."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import gguf_bytes as raw
from support.llama_cpp import LlamaCpp
from support.thoroughness import n_examples

from nextn.core.errors import ConfigError, FileFormatError, NextnError
from nextn.core.gguf.quants import FORMATS, find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import DTYPES, Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf

if TYPE_CHECKING:
    from support.tiny_models import TinyModel

F32 = find_format("F32")


def floats(name: str, *shape: int) -> TensorData:
    values = np.arange(math.prod(shape), dtype=np.float32) + len(name)
    return TensorData(name, shape, F32, values)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


EVERY_TYPE: dict[str, Any] = {
    "general.architecture": "llama",
    **{f"s.{kind.name}": Typed(kind, 1) for kind in DTYPES},
    **{f"a.{kind.name}": Typed(ValueType.ARRAY, [0, 1, 1], kind) for kind in DTYPES},
    **{f"e.{kind.name}": Typed(ValueType.ARRAY, [], kind) for kind in DTYPES},
    "text": "\u4e2d \U0001f600 \0 \n",
    "texts": ["a", "", "\u00e9\0"],
    "no texts": Typed(ValueType.ARRAY, [], ValueType.STRING),
    "broken": b"\xff\xfe",
    "broken list": ["fine", b"\xc3("],
    "largest": Typed(ValueType.U64, 2**64 - 1),
    "nan": math.nan,
}


def test_every_type_keeps_its_exact_value_and_type(tmp_path: Path) -> None:
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"
    write_gguf(first, EVERY_TYPE, [floats("t", 5)])
    with open_gguf(first) as file:
        assert list(file.metadata) == list(EVERY_TYPE)
        for key, value in EVERY_TYPE.items():
            typed = file.metadata.typed(key)
            wanted = value.value if isinstance(value, Typed) else value
            if key == "broken list":
                wanted = [b"fine", b"\xc3("]
            if key != "nan":
                assert plain(typed.value) == wanted
            if isinstance(value, Typed):
                assert (typed.type, typed.element) == (value.type, value.element)
        write_gguf(second, file.metadata, map(TensorData.of, file.tensors.values()))
        assert second.read_bytes() == first.read_bytes()
        as_dict = {key: file.metadata.typed(key) for key in file.metadata}
        write_gguf(second, as_dict, map(TensorData.of, file.tensors.values()), overwrite=True)
        assert second.read_bytes() == first.read_bytes()


def test_foreign_file_is_rewritten_byte_by_byte(tmp_path: Path) -> None:
    """From the package's writer, through our reader and writer, unchanged."""
    first, second = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    writer = oracle.GGUFWriter(str(first), "llama")
    writer.add_block_count(3)
    writer.add_float32("llama.eps", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "\u00e9"])
    writer.add_array("llama.pattern", [True, False])
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", np.zeros((3, 5), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(first) as file:
        write_gguf(second, file.metadata, map(TensorData.of, file.tensors.values()))
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("alignment", [1, 32, 256])
def test_package_reads_what_we_write(alignment: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [
        TensorData(
            f"blk.{fmt.type_id}.weight",
            (3, 2, fmt.block_size),
            fmt,
            rng.integers(0, 256, (6, fmt.block_bytes), dtype=np.uint8),
        )
        for fmt in FORMATS.values()
        if fmt.name not in {"Q8_1", "Q2_0"}  # whose sizes or ids the package does not have
    ]
    path = tmp_path / "ours.gguf"
    readable = {key: value for key, value in EVERY_TYPE.items() if "broken" not in key}
    write_gguf(path, readable, tensors, alignment=alignment)
    reader = oracle.GGUFReader(path)
    assert reader.alignment == alignment
    for key, value in readable.items():
        if isinstance(value, str | list):
            assert reader.fields[key].contents() == value
    assert reader.fields["a.I16"].contents() == [0, 1, 1]
    assert reader.fields["largest"].contents() == 2**64 - 1
    assert [tensor.name for tensor in reader.tensors] == [tensor.name for tensor in tensors]
    for theirs, ours in zip(reader.tensors, tensors, strict=True):
        assert tuple(theirs.shape)[::-1] == ours.shape
        assert theirs.tensor_type.value == ours.format.type_id
        assert isinstance(ours.data, np.ndarray)
        assert theirs.data.tobytes() == ours.data.tobytes()


def pieces_of(data: bytes) -> Iterator[bytes]:
    yield data[:7]
    yield b""
    yield data[7:]


@pytest.mark.parametrize(
    "data",
    [
        np.arange(6, dtype=np.float32),
        np.arange(12, dtype=np.float32).reshape(6, 2)[:, 0] / 2,
        np.arange(6, dtype=np.float32).tobytes(),
        bytearray(np.arange(6, dtype=np.float32).tobytes()),
        np.arange(6, dtype=np.float32).data,
        lambda: pieces_of(np.arange(6, dtype=np.float32).tobytes()),
        list(np.arange(6, dtype=np.float32)[:, None]),
        (np.float32(k).tobytes() for k in range(6)),
    ],
    ids=["array", "strided", "bytes", "bytearray", "view", "callable", "list", "iterator"],
)
def test_data_in_any_form(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, {}, [TensorData("t", (2, 3), F32, data)])
    with open_gguf(path) as file:
        assert file.tensors["t"].floats().tolist() == [[0, 1, 2], [3, 4, 5]]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
NUMBERS = [kind for kind in DTYPES if kind not in {ValueType.F32, ValueType.F64, ValueType.BOOL}]


def integers_of(kind: ValueType) -> st.SearchStrategy[int]:
    bounds = np.iinfo(DTYPES[kind])
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def typed_values(draw: st.DrawFn) -> Typed:
    kind = draw(st.sampled_from(NUMBERS))
    texts = st.text(max_size=9) | st.binary(max_size=9)
    return draw(
        st.builds(lambda n: Typed(kind, n), integers_of(kind))
        | st.builds(lambda n: Typed(ValueType.F64, n), st.floats(allow_nan=False))
        | st.builds(lambda n: Typed(ValueType.F32, n), st.floats(width=32, allow_nan=False))
        | st.builds(lambda b: Typed(ValueType.BOOL, b), st.booleans())
        | st.builds(lambda t: Typed(ValueType.STRING, t), texts)
        | st.builds(lambda a: Typed(ValueType.ARRAY, a, kind), st.lists(integers_of(kind)))
        | st.builds(lambda a: Typed(ValueType.ARRAY, a, ValueType.STRING), st.lists(texts))
    )


def as_bytes(value: Any) -> Any:
    """Text compared by its bytes: what is UTF-8 comes back as str, however it was given."""
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    return value.encode() if isinstance(value, str) else plain(value)


@st.composite
def tensor_data(draw: st.DrawFn) -> TensorData:
    name = draw(st.text("abc.0_\u00e9", min_size=1, max_size=20))
    fmt = draw(st.sampled_from(list(FORMATS.values())))
    outer = draw(st.lists(st.integers(0, 3), max_size=3))
    shape = (*outer, fmt.block_size * draw(st.integers(0, 2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return TensorData(name, shape, fmt, rng.bytes(fmt.n_bytes(math.prod(shape))))


@settings(max_examples=n_examples(150), deadline=None)
@given(
    metadata=st.dictionaries(NAMES.filter(lambda k: not k.startswith("split.")), typed_values()),
    tensors=st.lists(tensor_data(), max_size=6, unique_by=lambda tensor: tensor.name),
    alignment=st.sampled_from([1, 8, 32, 128]),
    most=st.none() | st.integers(1, 2000),
)
def test_anything_comes_back(
    metadata: dict[str, Typed],
    tensors: list[TensorData],
    alignment: int,
    most: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.gguf"
    metadata.pop("general.alignment", None)
    paths = write_gguf(path, metadata, tensors, alignment=alignment, max_shard_bytes=most)
    with open_gguf(paths[-1]) as file:
        assert list(file.paths) == paths
        for key, value in metadata.items():
            typed = file.metadata.typed(key)
            assert (typed.type, typed.element) == (value.type, value.element)
            assert as_bytes(plain(typed.value)) == as_bytes(value.value)
        assert list(file.tensors) == [tensor.name for tensor in tensors]
        for tensor in tensors:
            back = file.tensors[tensor.name]
            assert (back.shape, back.format) == (tensor.shape, tensor.format)
            assert back.data.tobytes() == tensor.data


def test_shards_are_cut_by_size(tmp_path: Path) -> None:
    tensors = [floats("a", 8), floats("b", 8), floats("c", 100), floats("d", 8), floats("e", 8)]
    meta: dict[str, Any] = {"general.architecture": "llama", "split.no": 7, "words": ["x"]}
    paths = write_gguf(tmp_path / "m.gguf", meta, tensors, max_shard_bytes=64)
    assert [path.name for path in paths] == [f"m-0000{k}-of-00003.gguf" for k in (1, 2, 3)]
    assert sorted(tmp_path.iterdir()) == paths
    content = [oracle.GGUFReader(path) for path in paths]
    assert [[t.name for t in one.tensors] for one in content] == [["a", "b"], ["c"], ["d", "e"]]
    assert "words" in content[0].fields
    assert "words" not in content[1].fields
    for number, one in enumerate(content):
        found = [one.fields[f"split.{key}"] for key in ("no", "count", "tensors.count")]
        assert [field.contents() for field in found] == [number, 3, 5]
        assert [int(field.types[0]) for field in found] == [raw.U16, raw.U16, raw.I32]
    with open_gguf(paths[0]) as file:
        joined = tmp_path / "joined.gguf"
        write_gguf(joined, file.metadata, map(TensorData.of, file.tensors.values()))
    with open_gguf(joined) as file:
        assert list(file.metadata) == ["general.architecture", "words"]
        assert file.tensors["e"].floats()[0] == 1


@pytest.mark.peer
@pytest.mark.parametrize("quantise", ["F32", "Q8_0"])
def test_llama_cpp_reads_what_we_write(
    quantise: str,
    tiny: Callable[..., TinyModel],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The same text from the original, from a copy with another alignment, and from shards."""
    original = tiny("qwen35", mtp=True, quantise=quantise).path
    with open_gguf(original) as file:
        tensors = [TensorData.of(tensor) for tensor in file.tensors.values()]
        copies = write_gguf(tmp_path / "copy.gguf", file.metadata, tensors, alignment=256)
        shards = write_gguf(
            tmp_path / "cut.gguf", file.metadata, tensors, alignment=64, max_shard_bytes=100_000
        )
    assert len(shards) > 2
    texts = []
    for path in (original, copies[0], shards[0]):
        with capfd.disabled(), LlamaCpp(path) as peer:
            texts.append(peer.greedy([1, 2, 3, 4], 16, n_probs=4))
    assert texts[0].tokens == texts[1].tokens == texts[2].tokens
    assert texts[0].logprobs == texts[1].logprobs == texts[2].logprobs


def test_alignment_key_follows_the_argument(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, {"general.alignment": 64, "z": 1}, [floats("a", 3), floats("b", 3)])
    with open_gguf(path) as file:
        assert dict(file.metadata) == {"general.alignment": 32, "z": 1}
        write_gguf(
            path,
            {"z": 1},
            map(TensorData.of, file.tensors.values()),
            alignment=512,
            overwrite=True,
        )
    with open_gguf(path) as file:
        assert dict(file.metadata) == {"z": 1, "general.alignment": 512}
        assert file.tensors["b"].floats().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("metadata", "tensors", "options", "message"),
    [
        ({"": 1}, [], {}, "metadata key '' cannot be written"),
        ({"a\0": 1}, [], {}, "cannot be written"),
        ({"k" * 65536: 1}, [], {}, "cannot be written"),
        ({"k": Typed(ValueType.U8, 256)}, [], {}, "'k' cannot be written as a u8"),
        ({"k": Typed(ValueType.U32, -1)}, [], {}, "'k' cannot be written as a u32"),
        ({"k": Typed(ValueType.U32, 1.5)}, [], {}, "'k' cannot be written as a u32"),
        ({"k": Typed(ValueType.BOOL, 2)}, [], {}, "'k' cannot be written as a bool"),
        ({"k": Typed(ValueType.F32, "x")}, [], {}, "'k' cannot be written as a f32"),
        ({"k": Typed(ValueType.ARRAY, [1])}, [], {}, "needs an element type"),
        ({"k": Typed(ValueType.ARRAY, [[1]], ValueType.ARRAY)}, [], {}, "element type"),
        ({"k": Typed(ValueType.ARRAY, [[1]], ValueType.I8)}, [], {}, "not a flat array"),
        ({"k": Typed(ValueType.ARRAY, [300], ValueType.I8)}, [], {}, "'k' cannot be written"),
        ({"k": "\ud800"}, [], {}, "'k' cannot be written as a string"),
        ({}, [floats("", 1)], {}, "tensor '' cannot be written: the name"),
        ({}, [floats("n" * 64, 1)], {}, "cannot be written: the name must"),
        ({}, [floats("a\n", 1)], {}, "cannot be written: the name must"),
        ({}, [floats("a", 1, 1, 1, 1, 1)], {}, "shape .* is not possible"),
        ({}, [floats("a")], {}, "shape .* is not possible"),
        ({}, [TensorData("a", (33,), find_format("Q8_0"), b"")], {}, "rows of 33"),
        ({}, [floats("a", 1), floats("a", 2)], {}, "tensor 'a' is to be written twice"),
        ({}, [TensorData("a", (2,), F32, bytes(7))], {}, "was given 7 bytes, expected 8"),
        ({}, [TensorData("a", (2,), F32, [bytes(8), b"x"])], {}, "was given 9 bytes"),
        ({}, [], {"alignment": 48}, "alignment 48 is not a power of two"),
        ({}, [], {"alignment": 1 << 17}, "alignment 131072"),
    ],
)
def test_refusals_leave_nothing_behind(
    metadata: Any, tensors: list[TensorData], options: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises((FileFormatError, ConfigError), match=message) as caught:
        write_gguf(tmp_path / "x.gguf", metadata, tensors, **options)
    assert isinstance(caught.value, NextnError)
    assert str(caught.value).isprintable()
    assert not list(tmp_path.iterdir())
