"""Image files, which may be hostile, to pixels: of few formats, and of a size read beforehand."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import InputError

Pixels = NDArray[np.uint8]  # (height, width, 3)

# Others stay off: some of Pillow's readers start programs.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_BYTES: Final = 32 << 20
MAX_PIXELS: Final = 50_000_000
MAX_RATIO: Final = 200
_EXIF_ORIENTATION: Final = 0x0112
_TURNED: Final = (5, 6, 7, 8)  # orientations that exchange width and height
# What Pillow's readers raise on damaged data.
_DAMAGE: Final = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError,
    AttributeError, NotImplementedError, MemoryError, zlib.error,
)  # fmt: skip


class ImageSize(Struct, frozen=True):
    width: int
    height: int


def size_of(data: bytes, name: str) -> ImageSize:
    """From the header alone, as the picture is shown; InputError if it cannot be read. `name`: what
    messages call the image."""
    with _opened(data, name) as image:
        width, height = image.size
        orientation = image.getexif().get(_EXIF_ORIENTATION)
    return ImageSize(height, width) if orientation in _TURNED else ImageSize(width, height)


def decode(data: bytes, name: str) -> Pixels:
    """The picture as it is shown, of the first frame. What is transparent gets its own colour."""
    with _opened(data, name) as image:
        image.load()
        return rgb_pixels(ImageOps.exif_transpose(image))


def rgb_pixels(image: Image.Image) -> Pixels:
    if image.mode.startswith("I;16") or image.mode == "I":  # 16 bits, which Pillow would clip
        levels = np.asarray(image).astype(np.float64) / 257
        grey = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


def check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise InputError(f"{name}: the image has no pixels")
    if width * height > MAX_PIXELS:
        raise InputError(
            f"{name}: the image has {width} x {height} pixels, which is more than "
            f"{MAX_PIXELS // 1_000_000} million; make it smaller"
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InputError(
            f"{name}: the image has {width} x {height} pixels; its longer side may be at most "
            f"{MAX_RATIO} times the other"
        )


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[Any]:
    """An image whose size has been checked; all that goes wrong with it is an InputError."""
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: the image has more than {MAX_BYTES >> 20} MiB; make it smaller")
    try:
        with warnings.catch_warnings():
            # Sizes are checked here, and warnings of damaged metadata concern no pixel.
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                check_size(*image.size, name)
                yield image
    except Image.DecompressionBombError:  # Pillow's own limit is higher
        raise InputError(
            f"{name}: the image has more than {MAX_PIXELS // 1_000_000} million pixels; make it "
            "smaller"
        ) from None
    except UnidentifiedImageError:
        raise InputError(f"{name}: not a PNG, JPEG, WebP, GIF or BMP image") from None
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise InputError(f"{name}: the image is damaged: {reason}") from None
