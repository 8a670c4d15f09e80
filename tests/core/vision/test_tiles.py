"""Images that are cut into tiles: sizes, pixels and the texts between, against `transformers`.
Idefics3 by its own fixtures, InternVL at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.other_towers import planes_of
from support.towers import (
    TinyVisionModel,
    TowerCase,
    build_vision_model,
    picture,
    write_mmproj,
)

from nextn.core.backend import create_backend
from nextn.core.errors import ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.load_runtime import load_runtime
from nextn.core.vision.image_encoder import ImageEncoder, image_bytes
from nextn.core.vision.image_file import ImageSize
from nextn.core.vision.image_prompt import PlacedImage, place_images, split_at_marks
from nextn.core.vision.load_images import load_images
from nextn.core.vision.mmproj_options import MmprojOptions
from nextn.core.vision.pixels import PixelBudget
from nextn.core.vision.projectors.idefics3 import longest_size, whole_tiles
from nextn.core.vision.projectors.internvl import tiles_for

SIZES = [(640, 480), (101, 333), (57, 31), (32, 32), (900, 20), (20, 901), (64, 64), (1, 90)]
TILE = 32


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("idefics3", tmp_path_factory.mktemp("tiles"))


@pytest.fixture(scope="module")
def encoder(vision: TinyVisionModel) -> ImageEncoder:
    with open_gguf(vision.text) as model:
        return load_images(MmprojOptions(vision.mmproj), model, create_backend("cpu", 1))


def cut_by_transformers(size: tuple[int, int], longest: int) -> Any:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": longest}, max_image_size={"longest_edge": TILE}
    )
    return processor(images=[picture(*size)], return_row_col_info=True, return_tensors="np")


def test_sizes_are_those_of_transformers() -> None:
    from transformers.models.idefics3 import image_processing_pil_idefics3 as peer

    sides = [*range(1, 60, 3), *range(60, 700, 37), 1023, 4100]
    for longest, tile in ((1456, 364), (2048, 512), (1920, 384), (60, 16)):
        processor = peer.Idefics3ImageProcessorPil()
        for width in sides:
            for height in sides[:: 1 if longest == 60 else 7]:
                if max(width, height) > 200 * min(width, height):
                    continue
                image = np.broadcast_to(np.uint8(), (3, height, width))
                want = peer.get_resize_output_image_size(image, longest)
                first = longest_size(ImageSize(width, height), longest)
                assert (first.height, first.width) == want
                if longest > 60:
                    continue
                small = np.zeros((3, first.height, first.width), np.uint8)
                cut = whole_tiles(first, tile)
                found = processor.resize_for_vision_encoder(small, tile)
                assert found.shape[1:] == (cut.height, cut.width)


@pytest.mark.parametrize("longest", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(
    size: tuple[int, int], longest: int, encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder.projector, "_longest", longest * TILE)
    peer = cut_by_transformers(size, longest * TILE)
    plan = encoder.projector.plan(ImageSize(*size), PixelBudget(1, 4096))
    assert plan.tiles == (peer["rows"][0][0], peer["cols"][0][0])
    want = np.asarray(peer["pixel_values"])[0]
    prepared = encoder.projector.prepare(np.asarray(picture(*size)), plan)
    found = np.stack([planes_of(tile) for tile in prepared])
    assert found.shape == want.shape
    assert plan.n_rows == 4 * len(found)
    error = np.abs(found - want) / 2  # levels from -1 to 1
    assert error.max() <= 1 / 255 + 1e-6
    assert (error < 1e-6).mean() >= 0.99


def test_few_rows_mean_fewer_tiles(encoder: ImageEncoder) -> None:
    size = ImageSize(640, 480)
    for most, tiles in ((4096, (2, 2)), (20, (2, 2)), (19, (0, 0)), (1, (0, 0))):
        plan = encoder.projector.plan(size, PixelBudget(1, most))
        assert plan.tiles == tiles
        assert plan.n_rows == 4 * (tiles[0] * tiles[1] + 1)


@pytest.mark.parametrize("size", SIZES)
def test_texts_are_those_of_transformers(
    size: tuple[int, int], vision: TinyVisionModel, encoder: ImageEncoder
) -> None:
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    plan = encoder.projector.plan(ImageSize(*size), PixelBudget(1, 4096))
    words = SimpleNamespace(
        fake_image_token="<fake_token_around_image>", global_image_tag="<global-img>",
        image_token="<image>", image_seq_len=4,
    )  # fmt: skip
    lines, columns = plan.tiles
    cut: Any = {"rows": [[lines]], "cols": [[columns]]}
    peer: Any = Idefics3Processor
    want = peer.replace_image_token(words, cut, 0)
    assert ("<image>" * 4).join(plan.texts) == want

    with load_runtime(vision.text, "cpu", mmproj=vision.mmproj, threads=1) as runtime:
        image = runtime.images.read(image_bytes(picture(*size), "image", bytes))
        pieces = split_at_marks("look: <image>\nwhat is it", 1)
        prompt = place_images(pieces, [image], runtime.images.projector, runtime.tokenizer)
        tokens: list[int] = []
        for part in prompt.parts:
            is_image = isinstance(part, PlacedImage)
            tokens += vision.case.family.tokens_of(part) if is_image else part  # type: ignore[arg-type]
        assert len(prompt) == len(tokens)
        assert len(runtime.encode_images(prompt)) == len(prompt)
        assert runtime.tokenizer.encode(f"look: {want}\nwhat is it") == tokens


@pytest.fixture(scope="module")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> ImageEncoder:
    found = build_vision_model("internvl", tmp_path_factory.mktemp("internvl"))
    with open_gguf(found.text) as model:
        return load_images(MmprojOptions(found.mmproj), model, create_backend("cpu", 1))


def test_shapes_of_internvl_are_those_of_transformers() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    sides = [*range(1, 60, 3), *range(60, 700, 37), 1023, 4100]
    for width in sides:
        for height in sides:
            if max(width, height) > 200 * min(width, height):
                continue
            for least, most in ((1, 12), (2, 6), (1, 1)):
                want = get_optimal_tiled_canvas((height, width), (448, 448), least, most)
                found = tiles_for(ImageSize(width, height), 448, least, most)
                assert found[::-1] == want


@pytest.mark.parametrize("size", SIZES)
def test_pixels_of_internvl_are_those_of_transformers(
    size: tuple[int, int], internvl: ImageEncoder
) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    sizes = internvl.projector.sizes
    processor = GotOcr2ImageProcessorPil(
        size={"height": TILE, "width": TILE}, crop_to_patches=True,
        image_mean=list(sizes.mean), image_std=list(sizes.std),
    )  # fmt: skip
    want = np.asarray(processor(images=[picture(*size)], return_tensors="np")["pixel_values"])
    plan = internvl.projector.plan(ImageSize(*size), PixelBudget(1, 4096))
    prepared = internvl.projector.prepare(np.asarray(picture(*size)), plan)
    found = np.stack([planes_of(tile) for tile in prepared])
    assert found.shape == want.shape
    assert plan.n_rows == 4 * len(found)
    assert plan.texts == ("<img>", *[""] * (len(found) - 1), "</img>")
    error = np.abs(found - want) * np.array(sizes.std)[:, None, None]
    assert error.max() <= 1 / 255 + 1e-6
    assert (error < 1e-6).mean() >= 0.99


def test_internvl_keeps_to_a_budget(internvl: ImageEncoder) -> None:
    for most in (1, 4, 8, 12, 21, 52):
        plan = internvl.projector.plan(ImageSize(640, 480), PixelBudget(1, most))
        assert plan.n_rows <= max(4, most)


def test_files_that_cannot_be_read(vision: TinyVisionModel, tmp_path: Path) -> None:
    path, case = tmp_path / "mmproj.gguf", vision.case
    broken: list[tuple[TowerCase, dict[str, Any], str]] = [
        (case, {"image_size": 24}, "is 3 patches, which clip.vision.projector.scale_factor = 2"),
        (case, {"image_size": 2048}, "is 256 patches of clip.vision.patch_size = 8, more than 128"),
        (case, {"preproc_image_size": 5000}, "clip.vision.preproc_image_size"),
        (case, {"scale_factor": 1}, r"mm.model.fc.weight has shape \(64, 128\)"),
        (replace(case, keys={"clip.use_gelu": False, "clip.use_silu": True}), {}, "no gates for"),
    ]
    for changed, edits, message in broken:
        write_mmproj(path, changed, vision.hf, **edits)
        with (
            open_gguf(vision.text) as model,
            pytest.raises(ModelError, match=message) as caught,
        ):
            load_images(MmprojOptions(path), model, create_backend("cpu", 1))
        assert "\n" not in str(caught.value)
