"""`inspect` and `check` on the file of a vision tower, and on a model beside which one lies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draft_dialects import rewrite
from support.gemma_towers import GEMMA_TOWERS
from support.other_towers import OTHER_TOWERS
from support.towers import TOWERS, TinyVisionModel, build_vision_model

from nextn.cli.app import run
from nextn.convert.verify import FileReport, examine, open_anything
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("qwen3vl", tmp_path_factory.mktemp("vision"))


def verdict_on(path: Path) -> FileReport:
    return examine(open_anything(str(path)))


@pytest.mark.parametrize("name", TOWERS | OTHER_TOWERS | GEMMA_TOWERS)
def test_what_it_makes_of_images(name: str, tmp_path: Path) -> None:
    found = build_vision_model(name, tmp_path)
    report = verdict_on(found.mmproj)
    assert (report.kind, report.architecture) == ("mmproj", "clip")
    assert report.is_sound
    assert report.runs_here
    assert report.images is not None
    with open_gguf(found.text) as text:
        deep = text.metadata.int("n_deepstack_layers", 0)
        assert report.images.row == text.metadata.int("embedding_length")
    assert report.images.more_rows == deep
    assert verdict_on(found.text).mmproj == found.mmproj.name


def with_key(name: str, value: Any) -> Callable[[Path, Path], Path]:
    return lambda source, out: rewrite(source, out, lambda keys: keys | {name: value}, str)


def without(name: str) -> Callable[[Path, Path], Path]:
    def make(source: Path, out: Path) -> Path:
        with open_gguf(source) as file:
            keys = {key: file.metadata.typed(key) for key in file.metadata}
            kept = [TensorData.of(t) for each, t in file.tensors.items() if each != name]
            write_gguf(out, keys, kept)
        return out

    return make


def with_shape(name: str, *shape: int) -> Callable[[Path, Path], Path]:
    def make(source: Path, out: Path) -> Path:
        with open_gguf(source) as file:
            keys = {key: file.metadata.typed(key) for key in file.metadata}
            made = {each: TensorData.of(tensor) for each, tensor in file.tensors.items()}
            made[name] = TensorData(name, shape, find_format("F32"), np.ones(shape, np.float32))
            write_gguf(out, keys, list(made.values()))
        return out

    return make


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (without("mm.2.weight"), "tensors are missing: mm.2.weight"),
        (with_shape("v.blk.0.attn_out.weight", 3, 3), "v.blk.0.attn_out.weight has shape (3, 3)"),
        (with_key("clip.vision.patch_size", 0), "clip.vision.patch_size' is 0"),
        (with_key("clip.use_silu", True), "clip.use_gelu and clip.use_silu are both true"),
    ],
)
def test_what_is_wrong(
    spoil: Callable[[Path, Path], Path], text: str, vision: TinyVisionModel, tmp_path: Path
) -> None:
    report = verdict_on(spoil(vision.mmproj, tmp_path / "wrong.gguf"))
    assert not report.is_sound
    assert not report.runs_here
    assert any(text in found for found in report.broken), report.broken


def test_a_kind_that_is_unknown(vision: TinyVisionModel, tmp_path: Path) -> None:
    path = with_key("clip.projector_type", "seer")(vision.mmproj, tmp_path / "other.gguf")
    report = verdict_on(path)
    assert report.is_sound
    assert not report.runs_here
    assert report.mentions("clip.projector_type 'seer' cannot be run")


def test_the_commands(vision: TinyVisionModel, capsys: Capture) -> None:
    assert run(["convert", "inspect", str(vision.mmproj)]) == 0
    shown = capsys.readouterr().out
    assert "a vision tower (qwen3vl_merger), for --mmproj beside its model" in shown
    assert "tower      4 layers, 32 wide; patches of 16 pixels" in shown
    assert "of 64 numbers, and as many again for 2 layers: for embeddings of 64" in shown
    assert run(["convert", "inspect", str(vision.mmproj), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"]["projector"] == "qwen3vl_merger"
    assert run(["convert", "inspect", str(vision.text)]) == 0
    beside = f"images     {vision.mmproj.name} beside it makes rows for it (--mmproj)"
    assert beside in capsys.readouterr().out
    assert run(["convert", "check", str(vision.mmproj)]) == 0
    assert "only a vision tower; --mmproj takes it beside its model" in capsys.readouterr().out
