"""The mmproj file beside a model is found by what it says of itself."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.draft_dialects import rewrite
from support.towers import TinyVisionModel, build_vision_model

from nextn.core.gguf.folder_files import peek_architecture
from nextn.core.vision.find_mmproj import find_mmproj


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("qwen3vl", tmp_path_factory.mktemp("vision"))


@pytest.fixture
def model(vision: TinyVisionModel, tmp_path: Path) -> Path:
    """Alone in its folder."""
    return Path(shutil.copy(vision.text, tmp_path / "model.gguf"))


def typed(vision: TinyVisionModel, path: Path, file_type: int) -> Path:
    return rewrite(vision.mmproj, path, lambda keys: keys | {"general.file_type": file_type}, str)


def test_the_best_type_is_taken(vision: TinyVisionModel, model: Path) -> None:
    assert find_mmproj(model) is None
    for name, file_type in (("a", 0), ("b", 7), ("c", 32), ("d", 1)):
        path = typed(vision, model.parent / f"{name}.gguf", file_type)
        assert find_mmproj(model) == path
    typed(vision, model.parent / "e.gguf", 999)
    assert find_mmproj(model) == model.parent / "d.gguf"


def of_another_model(vision: TinyVisionModel, path: Path) -> None:
    rewrite(vision.mmproj, path, lambda keys: keys | {"clip.vision.projection_dim": 32}, str)


def of_an_unknown_kind(vision: TinyVisionModel, path: Path) -> None:
    rewrite(vision.mmproj, path, lambda keys: keys | {"clip.projector_type": "seer"}, str)


def cut_short(vision: TinyVisionModel, path: Path) -> None:
    path.write_bytes(vision.mmproj.read_bytes()[:2000])


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (of_another_model, "makes rows of 96 numbers, and "),
        (of_an_unknown_kind, "clip.projector_type 'seer' cannot be run"),
        (cut_short, "wrong.gguf beside the model is not used: "),
    ],
)
def test_one_that_does_not_fit(
    spoil: Callable[[TinyVisionModel, Path], None], text: str, vision: TinyVisionModel,
    model: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    spoil(vision, model.parent / "wrong.gguf")
    with caplog.at_level(logging.INFO, "nextn"):
        assert find_mmproj(model) is None
    assert text in caplog.text


def test_the_architecture_in_the_first_bytes(vision: TinyVisionModel, tmp_path: Path) -> None:
    assert peek_architecture(vision.mmproj) == "clip"
    assert peek_architecture(vision.text) == "qwen3vl"
    for name, data in (("empty", b""), ("text", b"no GGUF"), ("head", b"GGUF" + bytes(40))):
        path = tmp_path / name
        path.write_bytes(data)
        assert peek_architecture(path) == ""
    assert peek_architecture(tmp_path) == ""
    assert peek_architecture(tmp_path / "absent") == ""
