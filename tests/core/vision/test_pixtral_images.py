"""Images for Pixtral and Mistral 3: sizes, pixels and rows behind lines, against `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.other_towers import planes_of
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
from nextn.core.vision.projectors.pixtral import PixtralProjector

LONGEST = 240  # of the files of the tests
SIZES = [(640, 480), (101, 333), (57, 31), (240, 240), (900, 20), (20, 901), (1, 90), (241, 3)]
USUAL = PixtralProjector.usual_budget


@pytest.fixture(scope="module", params=["pixtral", "mistral3"])
def vision(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TinyVisionModel:
    return build_vision_model(request.param, tmp_path_factory.mktemp("lines"))


@pytest.fixture(scope="module")
def encoder(vision: TinyVisionModel) -> ImageEncoder:
    return cpu_encoder(vision, vision.mmproj)


def test_sizes_are_those_of_transformers(encoder: ImageEncoder) -> None:
    from transformers.models.pixtral import image_processing_pil_pixtral as peer

    factor = encoder.projector.sizes.factor
    sides = [*range(1, 60, 3), *range(60, 700, 37), 1023, 4100]
    for width in sides:
        for height in sides:
            if max(width, height) > 200 * min(width, height):
                continue
            image = np.broadcast_to(np.uint8(), (3, height, width))
            want = peer.get_resize_output_image_size(image, LONGEST, factor, "channels_first")
            found = encoder.projector.fitting_size(ImageSize(width, height), USUAL)
            assert (found.height, found.width) == want


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(size: tuple[int, int], encoder: ImageEncoder) -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    sizes = encoder.projector.sizes
    processor = PixtralImageProcessorPil(
        size={"longest_edge": LONGEST}, patch_size={"height": sizes.factor, "width": sizes.factor}
    )
    peer = processor(images=[picture(*size)], return_tensors="np")
    plan = encoder.projector.plan(ImageSize(*size), USUAL)
    (prepared,) = encoder.projector.prepare(np.asarray(picture(*size)), plan)
    found, want = planes_of(prepared), np.asarray(peer["pixel_values"])[0]
    assert found.shape == want.shape
    error = np.abs(found - want) * np.array(sizes.std)[:, None, None]
    assert error.max() <= 1 / 255 + 1e-6
    assert (error < 1e-6).mean() >= 0.99
    lines, width = want.shape[1] // sizes.factor, want.shape[2] // sizes.factor
    assert plan.n_rows == lines * width + lines - 1
    assert plan.texts == ("", "[IMG_END]")


def test_a_budget_counts_the_rows_behind_lines(encoder: ImageEncoder) -> None:
    for size in ((640, 480), (90, 300), (2000, 100)):
        for most in (4, 11, 30, 60):
            plan = encoder.projector.plan(ImageSize(*size), PixelBudget(1, most))
            assert plan.n_rows <= most
    assert encoder.projector.plan(ImageSize(20, 20), PixelBudget(30, 60)).n_rows >= 30


def without_the_row(tensors: dict[str, Any]) -> None:
    del tensors["v.token_embd.img_break"]


def test_a_broken_file_is_refused(vision: TinyVisionModel, tmp_path: Path) -> None:
    broken: list[tuple[dict[str, Any], str]] = [
        ({"use_silu": False}, "clip.use_silu is not true"),
        ({"image_size": 1}, "clip.vision.image_size"),
        ({"tensors": without_the_row}, "missing tensors: v.token_embd.img_break"),
    ]
    write: Callable[..., None] = write_mmproj
    for edits, message in broken:
        write(tmp_path / "mmproj.gguf", vision.case, vision.hf, **edits)
        with pytest.raises(ModelError, match=message) as caught:
            cpu_encoder(vision, tmp_path / "mmproj.gguf")
        assert "\n" not in str(caught.value)
