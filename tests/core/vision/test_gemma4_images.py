"""Images for Gemma 4: sizes and pixels against `transformers`, and broken files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.towers import (
    TinyVisionModel,
    build_vision_model,
    cpu_encoder,
    picture,
    write_mmproj,
)

from nextn.core.errors import ModelError
from nextn.core.vision.image_encoder import ImageEncoder
from nextn.core.vision.image_file import ImageSize
from nextn.core.vision.pixels import PixelBudget

PATCH, POOL = 8, 3
SIZES = [(640, 480), (101, 333), (57, 31), (480, 336), (1, 3)]


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("gemma4-inputs", tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def encoder(vision: TinyVisionModel) -> ImageEncoder:
    return cpu_encoder(vision, vision.mmproj)


@pytest.mark.parametrize("most", [70, 280, 1120])
def test_sizes_are_those_of_transformers(most: int, encoder: ImageEncoder) -> None:
    from transformers.models.gemma4 import image_processing_pil_gemma4 as peer

    longest = 96 // POOL * POOL * PATCH  # the table of the tests has 96 positions
    for width in (*range(1, 60, 7), 480, 555, 1023, 4100):
        for height in (*range(1, 60, 7), 336, 480, 700, 3000):
            if max(width, height) > 200 * min(width, height):
                continue
            want = peer.get_aspect_ratio_preserving_size(height, width, PATCH, most * POOL**2, POOL)
            found = encoder.projector.fitting_size(ImageSize(width, height), PixelBudget(1, most))
            assert (found.height, found.width) == tuple(min(side, longest) for side in want)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(
    size: tuple[int, int], encoder: ImageEncoder, vision: TinyVisionModel
) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    processor = Gemma4ImageProcessorPil(patch_size=PATCH)
    peer = processor(images=[picture(*size)], return_tensors="np")
    plan = encoder.projector.plan(ImageSize(*size), encoder.projector.usual_budget)
    prepared = encoder.projector.prepare(np.asarray(picture(*size)), plan)
    found = vision.case.family.inputs([(prepared, plan)])
    n = len(found["pixel_values"][0])
    error = np.abs(found["pixel_values"][0].numpy() - np.asarray(peer["pixel_values"])[0][:n])
    assert error.max() <= 1 / 255 + 1e-6
    assert (error < 1e-6).mean() >= 0.99
    places = np.asarray(peer["image_position_ids"])[0]
    assert (found["image_position_ids"][0].numpy() == places[:n]).all()
    assert (places[n:] == -1).all()
    assert plan.texts == ("<|image>", "<image|>")


def test_the_smallest_budget(encoder: ImageEncoder) -> None:
    for size in ((640, 480), (480, 640), (500, 500), (3, 3), (200, 1)):
        assert encoder.projector.plan(ImageSize(*size), PixelBudget(1, 1)).n_rows == 1


def without_a_norm(tensors: dict[str, Any]) -> None:
    del tensors["v.blk.1.attn_post_norm.weight"]


def with_a_flat_table(tensors: dict[str, Any]) -> None:
    table = tensors["v.position_embd.weight"]
    tensors["v.position_embd.weight"] = table.reshape(-1, table.shape[2])


def without_scale(tensors: dict[str, Any]) -> None:
    del tensors["v.std_scale"]


def with_limits_of_each_row(tensors: dict[str, Any]) -> None:
    tensors["v.blk.0.attn_q.input_max"] = np.zeros(32, np.float32)


SCALE = "clip.vision.projector.scale_factor"  # which llama.cpp's files leave out


def test_a_broken_file_is_refused(vision: TinyVisionModel, tmp_path: Path) -> None:
    broken: list[tuple[dict[str, Any], str]] = [
        ({"tensors": without_a_norm}, "missing tensors: v.blk.1.attn_post_norm.weight"),
        ({"tensors": with_a_flat_table}, r"v.position_embd.weight has shape \(192, 32\), expected"),
        ({"tensors": without_scale}, "missing tensors: v.std_scale"),
        ({"tensors": with_limits_of_each_row}, r"attn_q.input_max has shape \(32,\), expected"),
        ({SCALE: 0}, SCALE),
    ]
    write: Callable[..., None] = write_mmproj
    for edits, message in broken:
        write(tmp_path / "mmproj.gguf", vision.case, vision.hf, **edits)
        with pytest.raises(ModelError, match=message) as caught:
            cpu_encoder(vision, tmp_path / "mmproj.gguf")
        assert "\n" not in str(caught.value)
