"""`spec convert hf --mmproj`: the file is that of the tests' own writer, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.converting import check_line, convert, plan
from support.gemma_towers import GEMMA_TOWERS
from support.other_towers import OTHER_TOWERS
from support.towers import TOWERS, TinyVisionModel

from nextn.cli.app import run
from nextn.core.backend import create_backend
from nextn.core.errors import ConfigError, ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.vision.load_images import load_images
from nextn.core.vision.mmproj_options import MmprojOptions

Capture = pytest.CaptureFixture[str]
Config = dict[str, Any]


@pytest.mark.parametrize("name", TOWERS | OTHER_TOWERS | GEMMA_TOWERS)
def test_a_file_is_that_of_the_tests(
    name: str, vision: Callable[[str], TinyVisionModel], tmp_path: Path
) -> None:
    found = vision(name)
    path = convert(found.folder, tmp_path / "mmproj.gguf", mmproj=True)
    with open_gguf(path) as ours, open_gguf(found.mmproj) as other:
        assert ours.tensors.keys() == other.tensors.keys()
        for tensor in ours.tensors.values():
            assert tensor.shape == other.tensors[tensor.name].shape, tensor.name
            assert np.array_equal(tensor.floats(), other.tensors[tensor.name].floats())
        for key in other.metadata:
            want, got = other.metadata[key], ours.metadata[key]
            assert np.array_equal(np.asarray(got), np.asarray(want)), key
        if name.startswith("qwen3vl"):
            marked = ours.metadata.bools("vision.is_deepstack_layers")
            layers = found.case.vision["deepstack_visual_indexes"]
            assert [i for i, is_deep in enumerate(marked) if is_deep] == layers
        assert ours.metadata.str("general.type") == "mmproj"


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_types(kind: str, vision: Callable[[str], TinyVisionModel], tmp_path: Path) -> None:
    found = vision("qwen3vl")
    path = convert(found.folder, tmp_path / "mmproj.gguf", mmproj=True, kind=kind)
    with open_gguf(path) as file:
        types = {name: tensor.format.name for name, tensor in file.tensors.items()}
    assert types["v.blk.0.attn_qkv.weight"] == kind.upper()
    assert types["v.blk.0.ffn_down.weight"] == ("F16" if kind == "q8_0" else kind.upper())
    assert types["v.patch_embd.weight"] == ("F16" if kind == "f16" else "F32")
    assert types["v.position_embd.weight"] == types["v.post_ln.weight"] == "F32"
    with open_gguf(found.text) as model:
        load_images(MmprojOptions(path), model, create_backend("cpu", 1))


def changed(found: TinyVisionModel, folder: Path, change: Callable[[Path, Config], None]) -> Path:
    """A copy whose `vision_config` and files are changed."""
    copy = folder / "copy"
    shutil.copytree(found.folder, copy)
    config = json.loads((copy / "config.json").read_text())
    change(copy, config)
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def edit(**values: Any) -> Callable[[Path, Config], None]:
    return lambda _folder, config: config["vision_config"].update(values)


def without_vision(_folder: Path, config: Config) -> None:
    del config["vision_config"]


def of_another_kind(_folder: Path, config: Config) -> None:
    config["model_type"] = "paligemma"


def without_colours(folder: Path, _config: Config) -> None:
    (folder / "preprocessor_config.json").unlink()


def with_two_colours(folder: Path, _config: Config) -> None:
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5]}')


def tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Config], None]:
    def run(folder: Path, _config: Config) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        change(found)
        save_file(found, path, {"format": "pt"})

    return run


def lose(found: dict[str, Any]) -> None:
    del found["model.visual.blocks.1.norm2.bias"]


def gain(found: dict[str, Any]) -> None:
    found["model.visual.class_embedding.weight"] = found["model.visual.pos_embed.weight"].clone()


def widen(found: dict[str, Any]) -> None:
    name = "model.visual.merger.linear_fc1.weight"
    found[name] = found[name][:, :-1].clone()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_vision, "config.json has no vision_config"),
        (of_another_kind, "the vision tower of a 'paligemma' cannot be converted"),
        (without_colours, "has no image_mean of three numbers"),
        (with_two_colours, "has no image_mean of three numbers"),
        (edit(hidden_act="relu"), "hidden_act is 'relu', expected gelu_pytorch_tanh"),
        (edit(num_position_embeddings=35), "is 35, which is no square"),
        (edit(deepstack_visual_indexes=[0, 9]), "not a list of layers"),
        (edit(deepstack_visual_indexes=[2, 0]), "not in order"),
        (edit(deepstack_visual_indexes=[0]), "of a layer that deepstack_visual_indexes has not"),
        (edit(depth="x"), "depth is 'x', not a size"),
        (edit(depth=5), "nothing in the checkpoint makes v.blk.4.ln1.weight"),
        (edit(depth=3), r"blocks\.3\..* has no place in an mmproj file"),
        (edit(num_heads=3), "does not divide into heads"),
        (edit(temporal_patch_size=1), "temporal_patch_size is not 2"),
        (edit(patch_size=14), r"patch_embed.proj.weight does not fit config.json"),
        (tensors(lose), "nothing in the checkpoint makes v.blk.1.ln2.bias"),
        (tensors(gain), "visual.class_embedding.weight' has no place in an mmproj file"),
        (tensors(widen), "merger.linear_fc1.weight does not fit config.json"),
    ],
)
def test_what_cannot_be_converted(
    change: Callable[[Path, Config], None], message: str,
    vision: Callable[[str], TinyVisionModel], tmp_path: Path,
) -> None:  # fmt: skip
    folder = changed(vision("qwen3vl"), tmp_path, change)
    with pytest.raises(ModelError, match=message) as caught:
        plan(folder, mmproj=True)
    check_line(caught.value)


def test_windows_that_have_no_word(
    vision: Callable[[str], TinyVisionModel], tmp_path: Path
) -> None:
    folder = changed(vision("qwen2.5vl"), tmp_path, edit(fullatt_block_indexes=[0, 3]))
    with pytest.raises(ModelError, match="which is not every n-th of 4 layers"):
        plan(folder, mmproj=True)
    with pytest.raises(ConfigError, match="an mmproj file is one of f32, f16, bf16, q8_0"):
        plan(vision("qwen2.5vl").folder, mmproj=True, kind="q4_k_m")


def test_the_command(
    vision: Callable[[str], TinyVisionModel], tmp_path: Path, capsys: Capture
) -> None:
    found = vision("qwen3vl")
    words = ["convert", "hf", str(found.folder), "--mmproj", "-o", str(tmp_path)]
    assert run([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "a vision tower of Qwen3-VL or Qwen 3.5 (clip), 4 layers" in shown
    assert "tokenizer" not in shown
    assert run(words) == 0
    said = capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    assert path.name == "mmproj-qwen3vl-F32.gguf"
    assert "a vision tower of Qwen3-VL or Qwen 3.5, F32" in said
    assert f"next: spec generate -m MODEL --mmproj {path} --image FILE" in said
    assert run([*words, "--mtp-only"]) == 2
    assert "--mmproj writes the vision tower alone" in capsys.readouterr().err
