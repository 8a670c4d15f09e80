"""What callers give as an image: a path, the bytes of a file, or an image of Pillow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from ..gguf.printable import printable_path
from ..gguf.read_bounded import read_bounded

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = Union[str, "os.PathLike[str]", bytes, "Image"]


def opened_image(source: ImageSource, number: int) -> tuple[bytes, str]:
    """Its bytes, and what messages call it. `number`: of the images of a prompt, from 1 on."""
    from ..vision.image_encoder import image_bytes
    from ..vision.image_file import MAX_BYTES

    is_path = isinstance(source, str | os.PathLike)
    name = printable_path(source) if is_path else f"image {number}"  # type: ignore[arg-type]
    return image_bytes(source, name, lambda path: read_bounded(Path(path), MAX_BYTES)), name
