"""Towers of mmproj files against `transformers`, from the same patches; and broken files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gemma_towers import GEMMA_TOWERS
from support.other_towers import OTHER_TOWERS
from support.towers import TOWERS, TinyVisionModel, build_vision_model, picture, write_mmproj

from nextn.core.backend import create_backend
from nextn.core.backend.layers import Floats
from nextn.core.errors import NextnError
from nextn.core.gguf.reader import open_gguf
from nextn.core.state.embedded_rows import ImageRows
from nextn.core.vision.image_encoder import ImageEncoder, image_bytes
from nextn.core.vision.image_prompt import finish
from nextn.core.vision.load_images import budget_of, load_images
from nextn.core.vision.mmproj_options import MmprojOptions
from nextn.core.vision.pixels import PixelBudget

SIZES = [(224, 224), (64, 64), (300, 97), (90, 333), (517, 211), (31, 200)]  # width, height
TOLERANCE = {"torch": 1e-4, "cpu": 2e-3}


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyVisionModel]:
    made: dict[tuple[str, str], TinyVisionModel] = {}

    def build(name: str, kind: str = "F32") -> TinyVisionModel:
        if (name, kind) not in made:
            made[name, kind] = build_vision_model(name, tmp_path_factory.mktemp(name), kind=kind)
        return made[name, kind]

    return build


def encoder_of(found: TinyVisionModel, device: str, **options: Any) -> ImageEncoder:
    with open_gguf(found.text) as model:
        return load_images(MmprojOptions(found.mmproj, **options), model, create_backend(device, 1))


def plain_rows(run: Floats | ImageRows) -> Floats:
    return np.asarray(run.rows if isinstance(run, ImageRows) else run)


def error_of(found: TinyVisionModel, encoder: ImageEncoder, size: tuple[int, int]) -> float:
    data = image_bytes(picture(*size), "image", bytes)
    image = encoder.read(data)
    prepared = encoder.projector.prepare(np.asarray(picture(*size)), image.plan)
    want = found.features((prepared, image.plan))
    runs = finish(encoder.encode(image))
    assert [len(plain_rows(run)) for run in runs] == list(image.plan.runs)
    rows: Floats = np.concatenate([plain_rows(run) for run in runs])
    assert rows.shape == want.shape == (image.n_rows, encoder.width)
    return float(np.abs(rows - want).max() / max(1.0, want.std()))


@pytest.mark.parametrize("device", ["torch", "cpu"])
@pytest.mark.parametrize("name", TOWERS | OTHER_TOWERS | GEMMA_TOWERS)
def test_rows(name: str, device: str, vision: Callable[..., TinyVisionModel]) -> None:
    encoder = encoder_of(vision(name), device)
    assert max(error_of(vision(name), encoder, size) for size in SIZES) <= TOLERANCE[device]


@pytest.mark.parametrize(("kind", "most"), [("F16", 0.01), ("BF16", 0.08), ("Q8_0", 0.08)])
@pytest.mark.parametrize("name", ["qwen2.5vl", "qwen3vl"])
def test_rows_of_smaller_types(
    name: str, kind: str, most: float, vision: Callable[..., TinyVisionModel]
) -> None:
    found = vision(name, kind)
    for device in ("torch", "cpu"):
        assert error_of(found, encoder_of(found, device), (300, 97)) <= most


def double_ffn(tensors: dict[str, Any]) -> None:
    tensors["v.blk.0.ffn_up.weight"] = np.zeros((7, 32), np.float32)


def without_a_norm(tensors: dict[str, Any]) -> None:
    del tensors["v.blk.1.ln2.weight"]


def with_something_else(tensors: dict[str, Any]) -> None:
    tensors["v.class_embd"] = np.zeros(32, np.float32)


def without_a_square(tensors: dict[str, Any]) -> None:
    tensors["v.position_embd.weight"] = np.zeros((35, 32), np.float32)


def with_wider_rows(tensors: dict[str, Any]) -> None:
    tensors["mm.2.weight"] = np.zeros((96, 128), np.float32)
    tensors["mm.2.bias"] = np.zeros(96, np.float32)
    for layer in (0, 2):
        tensors[f"v.deepstack.{layer}.fc2.weight"] = np.zeros((96, 128), np.float32)
        tensors[f"v.deepstack.{layer}.fc2.bias"] = np.zeros(96, np.float32)


BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"projector_type": "gemma3nv"},
        r"clip.projector_type 'gemma3nv' cannot be run",
    ),
    ({"projector_type": None}, "clip.vision.projector_type"),
    ({"has_vision_encoder": False}, "clip.has_vision_encoder is false"),
    ({"use_gelu": True, "projector_type": 3}, "clip.projector_type"),
    ({"head_count": 3}, "clip.vision.embedding_length is 32, which clip.vision.attention.head_c"),
    ({"head_count": 0}, "clip.vision.attention.head_count"),
    ({"patch_size": 0}, "clip.vision.patch_size"),
    ({"patch_size": 14}, r"v.patch_embd.weight has shape \(32, 3, 16, 16\), expected"),
    ({"block_count": 9}, "missing tensors: v.blk.4.ln1.weight"),
    ({"block_count": 3}, "does not use tensors"),
    ({"image_std": [0.5, 0.0, 0.5]}, r"clip.vision.image_std"),
    ({"image_mean": [0.5, 0.5]}, "clip.vision.image_mean"),
    ({"layer_norm_epsilon": None}, "clip.vision.attention.layer_norm_epsilon"),
    ({"tensors": double_ffn}, r"v.blk.0.ffn_up.weight has shape \(7, 32\), expected \(48, 32\)"),
    ({"tensors": without_a_norm}, "missing tensors: v.blk.1.ln2.weight"),
    ({"tensors": with_something_else}, "does not use tensors v.class_embd"),
    ({"tensors": without_a_square}, "v.position_embd.weight has 35 positions"),
    (
        {"projection_dim": 96, "tensors": with_wider_rows},
        "rows of 288 numbers, and .* 192 for",
    ),
]


@pytest.mark.parametrize(("edits", "message"), BROKEN)
def test_a_broken_file_is_refused(
    edits: dict[str, Any], message: str, vision: Callable[..., TinyVisionModel], tmp_path: Path
) -> None:
    found, path = vision("qwen3vl"), tmp_path / "mmproj.gguf"
    write_mmproj(path, found.case, found.hf, **edits)
    with open_gguf(found.text) as model, pytest.raises(NextnError, match=message) as caught:
        load_images(MmprojOptions(path), model, create_backend("cpu", 1))
    assert "\n" not in str(caught.value)
    assert "mmproj.gguf" in str(caught.value)


def test_limits_of_rows() -> None:
    usual = PixelBudget(8, 4096)
    for least, most, want in [
        (None, None, (8, 4096)),
        (None, 4, (4, 4)),
        (5000, None, (5000, 5000)),
        (2, 3, (2, 3)),
    ]:
        made = budget_of(usual, MmprojOptions("x", least, most))
        assert (made.least, made.most) == want
