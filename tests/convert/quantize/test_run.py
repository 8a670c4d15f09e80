"""Files: what is copied, what is refused, and what is left behind when something goes wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from support.quantize_families import FAMILIES, write_importance

import nextn.convert.quantize.quantize_file as file_conversion
from nextn.convert.files.output_file import OutputFile
from nextn.convert.quantize.imatrix import Importance, read_importance
from nextn.convert.quantize.native_quantizer import NativeQuantizer
from nextn.convert.quantize.quantize_file import QuantizeResult, quantize_file, slabs_of
from nextn.convert.quantize.quantize_plan import QuantizeOptions, QuantizePlan, make_plan
from nextn.convert.quantize.recipes import find_recipe
from nextn.convert.quantize.type_rules import parse_rule
from nextn.core.errors import ConfigError, ModelError, NextnError
from nextn.core.gguf.quants import dequantize, find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Writable
from nextn.core.gguf.writer import TensorData, write_gguf

METADATA: dict[str, Writable] = {
    "general.architecture": "llama",
    "general.name": "a name",
    "general.file_type": 1,
    "llama.block_count": 1,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "\u00fc", ""],
    "own.numbers": [1, -2, 3],
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (40, 512),
    "output_norm.weight": (512,),
    "blk.0.attn_q.weight": (96, 512),
    "blk.0.ffn_gate_inp.weight": (3, 512),
    "blk.0.ffn_down_exps.weight": (3, 24, 256),
    "blk.0.ffn_up.weight": (16, 160),
    "output.weight": (40, 512),
}


def values_of(name: str) -> NDArray[np.float32]:
    rng = np.random.default_rng(len(name))
    return (rng.standard_normal(SHAPES[name]) * 0.05).astype(np.float16).astype(np.float32)


def write_model(
    path: Path,
    kind: str = "F16",
    change: Callable[[str, NDArray[np.float32]], None] | None = None,
    max_shard_bytes: int | None = None,
) -> Path:
    tensors = []
    for name, shape in SHAPES.items():
        values = values_of(name)
        if change is not None:
            change(name, values)
        is_float = len(shape) == 1 or "inp" in name
        data: NDArray[Any] = values
        if not is_float and kind == "F16":
            data = values.astype(np.float16)
        if not is_float and kind == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16)
        form = find_format("F32" if is_float else kind)
        tensors.append(TensorData(name, shape, form, data))
    write_gguf(path, METADATA, tensors, max_shard_bytes=max_shard_bytes, overwrite=True)
    return path


def convert(source: Path, target: Path, recipe: str = "Q4_K_M", **more: Any) -> QuantizeResult:
    given = {
        name: more.pop(name) for name in list(more) if name in QuantizeOptions.__struct_fields__
    }
    with open_gguf(source) as file:
        plan = make_plan(file, QuantizeOptions(find_recipe(recipe), **given))
        shard_bytes = more.pop("max_shard_bytes", None)
        return quantize_file(
            file, plan, OutputFile(target, max_bytes=shard_bytes), n_threads=2, **more
        )


def types_of(path: Path) -> dict[str, str]:
    with open_gguf(path) as file:
        return {name: tensor.format.name for name, tensor in file.tensors.items()}


def test_a_whole_file(tmp_path: Path) -> None:
    source, target = write_model(tmp_path / "in.gguf"), tmp_path / "out.gguf"
    result = convert(source, target)
    assert result.paths == [target]
    assert result.n_bytes == target.stat().st_size
    assert types_of(target) == {
        "token_embd.weight": "Q4_K",
        "output_norm.weight": "F32",
        "blk.0.attn_q.weight": "Q4_K",
        "blk.0.ffn_gate_inp.weight": "F32",
        "blk.0.ffn_down_exps.weight": "Q6_K",
        "blk.0.ffn_up.weight": "Q5_0",  # rows of 160
        "output.weight": "Q6_K",
    }
    with open_gguf(source) as old, open_gguf(target) as new:
        assert list(new.tensors) == list(old.tensors)
        for name, tensor in new.tensors.items():
            if tensor.format.name == "F32":
                assert np.array_equal(tensor.data, old.tensors[name].data)
            left = tensor.floats() - values_of(name)
            assert np.sqrt((left**2).mean()) < 0.08 * values_of(name).std()
        changed = {"general.file_type": 15, "general.quantization_version": 2}
        assert {key: new.metadata[key] for key in changed} == changed
        for key in old.metadata:
            if key not in changed:
                assert str(new.metadata.typed(key)) == str(old.metadata.typed(key))


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_other_sources_give_the_same(kind: str, tmp_path: Path) -> None:
    def shorten(_: str, values: NDArray[np.float32]) -> None:
        values.view(np.uint32)[...] &= 0xFFFF0000  # what all three hold exactly

    halves = write_model(tmp_path / "f16.gguf", "F16", shorten)
    convert(halves, tmp_path / "a.gguf")
    convert(write_model(tmp_path / "in.gguf", kind, shorten), tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("recipe", ["F32", "F16", "BF16"])
def test_floats_are_rounded_to_nearest(recipe: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf", "F32")
    convert(source, tmp_path / "out.gguf", recipe)
    with open_gguf(tmp_path / "out.gguf") as new:
        for name, tensor in new.tensors.items():
            unit = {"F32": 0, "F16": 2.0**-11, "BF16": 2.0**-8}[tensor.format.name]
            left = np.abs(tensor.floats() - values_of(name))
            assert (left <= unit * np.abs(values_of(name)) * 1.0001).all()


def test_the_number_of_threads_and_slabs_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_model(tmp_path / "in.gguf")
    convert(source, tmp_path / "a.gguf")
    monkeypatch.setattr(file_conversion, "SLAB_ELEMENTS", 1024)
    convert(source, tmp_path / "b.gguf")
    with open_gguf(source) as file:
        assert len(slabs_of(file.tensors["blk.0.ffn_down_exps.weight"])) == 3 * 6
        plan = make_plan(file, QuantizeOptions(find_recipe("Q4_K_M")))
        quantize_file(file, plan, OutputFile(tmp_path / "c.gguf"), n_threads=1)
    whole = (tmp_path / "a.gguf").read_bytes()
    assert whole == (tmp_path / "b.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()


def test_shards_in_and_out(tmp_path: Path) -> None:
    convert(write_model(tmp_path / "in.gguf"), tmp_path / "whole.gguf")
    write_model(tmp_path / "parts.gguf", max_shard_bytes=40_000)
    parts = sorted(tmp_path.glob("parts-*"))
    assert len(parts) > 2
    convert(parts[1], tmp_path / "joined.gguf")
    with pytest.raises(ConfigError, match="is one of its own shards"):
        convert(parts[1], tmp_path / "parts.gguf", max_shard_bytes=40_000)
    assert (tmp_path / "joined.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    result = convert(tmp_path / "in.gguf", tmp_path / "split.gguf", max_shard_bytes=20_000)
    assert len(result.paths) > 2
    with open_gguf(result.paths[0]) as split, open_gguf(tmp_path / "whole.gguf") as whole:
        for name, tensor in whole.tensors.items():
            assert np.array_equal(tensor.data, split.tensors[name].data)


def test_each_expert_has_its_own_importance(tmp_path: Path) -> None:
    """Its bytes are those that its own columns give."""
    source, name = write_model(tmp_path / "in.gguf"), "blk.0.ffn_down_exps.weight"
    rng = np.random.default_rng(5)
    columns = (rng.chisquare(1, (3, 256)) + 0.01).astype(np.float32)
    path = write_importance(tmp_path / "imatrix.gguf", SHAPES)
    importance = read_importance(path)
    values = {**importance.values, name: columns}
    convert(source, tmp_path / "out.gguf", importance=replace(importance, values=values))
    with open_gguf(tmp_path / "out.gguf") as new:
        tensor = new.tensors[name]
        native, form = NativeQuantizer([tensor.format.name]), tensor.format
        for expert, own in enumerate(tensor.data.reshape(3, -1)):
            out = np.zeros(own.size, np.uint8)
            native.quantize(form, values_of(name)[expert].copy(), columns[expert], out)
            assert np.array_equal(out, own)
        assert new.metadata["quantize.imatrix.dataset"] == "calibration.txt"
        assert new.metadata["quantize.imatrix.chunks_count"] == 3


def test_importance_of_another_model(tmp_path: Path) -> None:
    path = write_importance(tmp_path / "imatrix.gguf", {"blk.0.attn_q.weight": (4, 64)})
    with pytest.raises(NextnError, match="another model"):
        convert(
            write_model(tmp_path / "in.gguf"), tmp_path / "out.gguf",
            importance=read_importance(path),
        )  # fmt: skip


def test_what_importance_does_not_know_is_told(tmp_path: Path) -> None:
    with open_gguf(write_model(tmp_path / "in.gguf")) as file:
        importance = Importance(tmp_path, {}, 0)
        plan = make_plan(file, QuantizeOptions(find_recipe("Q4_0"), importance=importance))
    assert "blk.0.attn_q.weight" in plan.without_importance()
    assert "output_norm.weight" not in plan.without_importance()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["F16", "F32", "BF16"])
def test_what_is_no_number_is_named(bad: float, kind: str, tmp_path: Path) -> None:
    def spoil(name: str, values: NDArray[np.float32]) -> None:
        if name == "blk.0.ffn_down_exps.weight":
            values[2, 5, 17] = bad

    source = write_model(tmp_path / "in.gguf", kind, spoil)
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_down_exps\.weight' has \S+ at \[2, 5, 17]"):
        convert(source, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_what_half_floats_cannot_hold_is_named(tmp_path: Path) -> None:
    def enlarge(name: str, values: NDArray[np.float32]) -> None:
        if name == "blk.0.attn_q.weight":
            values[3, 4] = -1e6

    source = write_model(tmp_path / "in.gguf", "F32", enlarge)
    for recipe in ("Q4_K_M", "F16"):
        with pytest.raises(ModelError, match=r"-1e\+06 at \[3, 4].*=bf16"):
            convert(source, tmp_path / "out.gguf", recipe)
    rule = parse_rule("^blk.0.attn_q.weight$=bf16")
    convert(source, tmp_path / "out.gguf", rules=(rule,))
    with open_gguf(tmp_path / "out.gguf") as new:
        assert new.tensors["blk.0.attn_q.weight"].floats()[3, 4] == pytest.approx(-1e6, rel=0.01)


def test_tensors_without_elements_and_of_numbers(tmp_path: Path) -> None:
    names = ("blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight", "blk.0.ids.weight")
    shapes, kinds = ((0, 512), (3, 0, 256), (2, 256)), ("F16", "F32", "I32")
    tensors = [
        TensorData(name, shape, find_format(kind), np.zeros(shape, dtype))
        for name, shape, kind, dtype in zip(names, shapes, kinds, ("f2", "f4", "i4"), strict=True)
    ]
    write_gguf(tmp_path / "in.gguf", METADATA, tensors)
    convert(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_S", measures=True)
    with open_gguf(tmp_path / "out.gguf") as new:
        assert [tensor.shape for tensor in new.tensors.values()] == list(shapes)
        assert new.tensors[names[2]].format.name == "I32"


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")

    def interrupt(done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.gguf", progress=interrupt)
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_a_full_disk_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_model(tmp_path / "in.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    with pytest.raises(NextnError, match="MB free"):
        convert(source, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")
    (tmp_path / "there.gguf").write_text("mine")
    (tmp_path / "link.gguf").symlink_to(source)
    for name, reason in (
        ("there.gguf", "--force"),
        ("in.gguf", "is the input"),
        ("link.gguf", "is the input"),
        ("none/out.gguf", "there is no folder"),
        (".", "is a folder"),
    ):
        with pytest.raises(ConfigError, match=reason):
            convert(source, tmp_path / name)
    assert (tmp_path / "there.gguf").read_text() == "mine"


def test_quantised_sources(tmp_path: Path) -> None:
    convert(write_model(tmp_path / "in.gguf"), tmp_path / "q8.gguf", "Q8_0")
    with open_gguf(tmp_path / "q8.gguf") as file:
        plan = make_plan(file, QuantizeOptions(find_recipe("Q4_0")))
        assert {item.tensor.format.name for item in plan.items if item.is_requantised} == {"Q8_0"}
    convert(tmp_path / "q8.gguf", tmp_path / "back.gguf", "F32")
    convert(tmp_path / "q8.gguf", tmp_path / "again.gguf", "Q8_0")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "q8.gguf").read_bytes()
    with open_gguf(tmp_path / "q8.gguf") as q8, open_gguf(tmp_path / "back.gguf") as back:
        for name, tensor in q8.tensors.items():
            assert np.array_equal(tensor.floats(), back.tensors[name].floats())


def test_errors_are_measured(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")
    result = convert(source, tmp_path / "out.gguf", "Q4_0", is_pure=True, measures=True)
    squares = total = n = 0.0
    with open_gguf(tmp_path / "out.gguf") as new:
        for name, tensor in new.tensors.items():
            if tensor.format.name == "Q4_0":
                back = dequantize(tensor.data, tensor.format, tensor.shape).astype(np.float64)
                squares += float(((back - values_of(name)) ** 2).sum())
                total += float((values_of(name).astype(np.float64) ** 2).sum())
                n += tensor.n_elements
    found = result.errors["Q4_0"]
    assert found.n == n
    assert found.rms == pytest.approx((squares / n) ** 0.5)
    assert found.relative == pytest.approx((squares / total) ** 0.5)


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = convert(
        write_model(tmp_path / "in.gguf"),
        tmp_path / "out.gguf",
        progress=lambda *at: seen.append(at),
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] < made.n_bytes


def test_a_file_that_is_no_model_of_a_known_family(tmp_path: Path) -> None:
    """Neither head counts nor layers: the recipes do without."""
    metadata, shapes = {"general.architecture": "mystery"}, FAMILIES["llama tied"][1]
    tensors = [
        TensorData(name, shape, find_format("F32"), np.ones(shape, np.float32))
        for name, shape in shapes.items()
    ]
    write_gguf(tmp_path / "in.gguf", metadata, tensors)
    plan: QuantizePlan
    with open_gguf(tmp_path / "in.gguf") as file:
        plan = make_plan(file, QuantizeOptions(find_recipe("Q4_K_M")))
    assert "Q4_K" in plan.formats
