"""Image files to patches: sizes and pixels against `transformers`, and files that are hostile."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.towers import CLIP_MEAN, CLIP_STD, picture

from nextn.core.errors import InputError
from nextn.core.vision.image_encoder import image_bytes
from nextn.core.vision.image_file import MAX_BYTES, ImageSize, decode, size_of
from nextn.core.vision.pixels import (
    PatchGrid,
    PixelBudget,
    fitting_size,
    normalised,
    patch_places,
    patches_of,
    resized,
)

BUDGET = PixelBudget(4, 60)


def stored(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def test_sizes_are_those_of_transformers() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    sides = [*range(1, 60, 3), *range(60, 700, 37), 1023, 2048]
    for factor in (28, 32):
        least, most = BUDGET.least * factor**2, BUDGET.most * factor**2
        for width in sides:
            for height in sides:
                if max(width, height) > 200 * min(width, height):
                    continue
                found = fitting_size(ImageSize(width, height), factor, BUDGET)
                want = smart_resize(height, width, factor, least, most)
                assert (found.height, found.width) == want


@pytest.mark.parametrize("size", [(640, 480), (100, 333), (57, 31), (112, 84), (900, 20)])
def test_patches_are_those_of_transformers(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image = picture(*size)
    limits = {"shortest_edge": BUDGET.least * 784, "longest_edge": BUDGET.most * 784}
    found = Qwen2VLImageProcessorPil(size=limits)(images=[image], return_tensors="np")
    want = np.asarray(found["pixel_values"]).reshape(-1, 3, 2, 196)
    pixels = resized(np.asarray(image), fitting_size(ImageSize(*size), 28, BUDGET))
    planes = normalised(pixels, tuple(CLIP_MEAN), tuple(CLIP_STD))
    patches, grid = patches_of(planes, 14, 2)
    assert [1, grid.height, grid.width] == np.asarray(found["image_grid_thw"])[0].tolist()
    for frame in (0, 1):
        error = np.abs(patches.reshape(-1, 3, 196) - want[:, :, frame]).max()
        assert error <= 1e-5


def test_places_of_patches() -> None:
    places = patch_places(PatchGrid(4, 6, 2)).tolist()
    assert places[:6] == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3]]
    assert places[12:16] == [[2, 0], [2, 1], [3, 0], [3, 1]]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats(kind: str) -> None:
    image = picture(40, 30)
    data = stored(image, kind)
    assert size_of(data, "x") == ImageSize(40, 30)
    assert decode(data, "x").shape == (30, 40, 3)
    if kind in ("PNG", "BMP"):
        assert (decode(data, "x") == np.asarray(image)).all()


def test_modes() -> None:
    image = picture(8, 6)
    see_through = image.convert("RGBA")
    see_through.putalpha(0)
    assert (decode(stored(see_through), "x") == np.asarray(image)).all()
    deep = Image.fromarray(np.arange(48, dtype=np.uint16).reshape(6, 8) * 257 * 5)
    assert (decode(stored(deep), "x")[:, :, 1] == np.arange(48).reshape(6, 8) * 5).all()
    for mode in ("1", "L", "LA", "P", "CMYK"):
        kind = "JPEG" if mode == "CMYK" else "PNG"
        assert decode(stored(image.convert(mode), kind), "x").shape == (6, 8, 3)
    film = stored(image, "GIF", save_all=True, append_images=[Image.new("RGB", (8, 6))] * 3)
    assert decode(film, "x").any()


def test_a_picture_is_read_as_it_is_shown() -> None:
    image = picture(40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # taken by a camera that was turned
    data = stored(image, "PNG", exif=exif)
    assert size_of(data, "x") == ImageSize(30, 40)
    assert (decode(data, "x") == np.asarray(image.transpose(Image.Transpose.ROTATE_270))).all()


def test_sources() -> None:
    image = picture(9, 7)
    data = stored(image)
    assert image_bytes(data, "x", bytes) == data
    assert image_bytes(bytearray(data), "x", bytes) == data
    assert (decode(image_bytes(image, "x", bytes), "x") == np.asarray(image)).all()

    def fail(path: Any) -> bytes:
        raise FileNotFoundError(2, "no such file")

    with pytest.raises(InputError, match=r"^x: cannot be read: no such file$"):
        image_bytes("missing.png", "x", fail)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


WHOLE = stored(picture(64, 64))
JPEG = stored(picture(64, 64), "JPEG")
TEXT_BOMB = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80 << 20)))
HOSTILE = {
    "empty": (b"", "not a PNG, JPEG"),
    "text": (b"<html>hello</html>", "not a PNG, JPEG"),
    "another format": (stored(picture(8, 8), "TIFF"), "not a PNG, JPEG"),
    "postscript": (stored(picture(8, 8), "EPS"), "not a PNG, JPEG"),
    "half a signature": (WHOLE[:6], "not a PNG, JPEG"),
    "half a header": (WHOLE[:20], "not a PNG, JPEG|damaged"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "the image is damaged"),
    "truncated photo": (JPEG[: len(JPEG) // 2], "the image is damaged"),
    "flipped bytes": (WHOLE[:60] + bytes(200) + WHOLE[260:], "the image is damaged"),
    "no data": (png(64, 64), "the image is damaged"),
    "a bomb": (png(60000, 60000), "more than 50 million pixels"),
    "just too large": (png(7072, 7072), "which is more than 50 million"),
    "a huge side": (png(2**31 - 1, 1), "pixels"),
    "a strip": (png(2010, 10), "at most 200 times the other"),
    "no pixels": (png(0, 10), "no pixels|not a PNG, JPEG|damaged"),
    "a text that unpacks": (png(8, 8, TEXT_BOMB), "damaged"),
    "too many bytes": (WHOLE + bytes(MAX_BYTES), "more than 32 MiB"),
}


def read(data: bytes) -> None:
    size_of(data, "it.png")
    decode(data, "it.png")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str) -> None:
    data, message = HOSTILE[name]
    with pytest.raises(InputError, match=message) as caught:
        read(data)
    text = str(caught.value)
    assert text.startswith("it.png: ")
    assert "\n" not in text
    assert len(text) < 200
