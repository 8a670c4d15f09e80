"""Flags of images, and the images themselves, read before the model is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from .flags import flag, flag_group

if TYPE_CHECKING:
    from ..core.runtime import Runtime
    from ..core.state.embedded_rows import ModelPrompt
    from ..core.vision.image_encoder import ReadImage


@flag_group("Model")
class ProjectorOptions:
    mmproj: Path | None = flag(
        "--mmproj -mm FILE", "The model's mmproj file, GGUF, for prompts with images."
    )
    image_min_tokens: int | None = flag(
        "--image-min-tokens N", "Least tokens of the context for an image; 8 if not given.", min=1
    )
    image_max_tokens: int | None = flag(
        "--image-max-tokens N", "Most tokens of the context for an image; 4096 if not given.", min=1
    )

    @property
    def given(self) -> dict[str, Any]:
        """What the model is loaded with."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value is not None}


@flag_group("Prompt")
class ImageOptions:
    image: list[Path] | None = flag(
        "--image FILE",
        "Image for the prompt, PNG, JPEG, WebP, GIF or BMP; needs --mmproj. May be given several "
        "times: each takes the place of the next <image> in the prompt, or stands before the text.",
    )

    def read(self, projector: ProjectorOptions) -> list[GivenImage]:
        if not self.image:
            return []
        if projector.mmproj is None:
            raise typer.BadParameter("--image needs --mmproj FILE, the model's mmproj file")
        return [read_image(path) for path in self.image]


class GivenImage(Struct, frozen=True):
    name: str
    data: bytes


def read_image(path: Path) -> GivenImage:
    """Checked as far as its header; an InputError says what is wrong."""
    from ..core.gguf.printable import printable_path
    from ..core.gguf.read_bounded import read_bounded
    from ..core.vision.image_encoder import image_bytes
    from ..core.vision.image_file import MAX_BYTES, size_of

    name = printable_path(path)
    data = image_bytes(path, name, lambda it: read_bounded(it, MAX_BYTES))
    size_of(data, name)
    return GivenImage(name, data)


def encodable(runtime: Runtime, images: Sequence[GivenImage]) -> list[ReadImage]:
    return [runtime.images.read(image.data, image.name) for image in images]


def with_images(runtime: Runtime, text: str, images: Sequence[GivenImage]) -> str | ModelPrompt:
    """The prompt of a text that is continued."""
    if not images:
        return text
    from ..core.vision.image_prompt import place_images, split_at_marks

    pieces = split_at_marks(text, len(images))
    encoder = runtime.images
    prompt = place_images(pieces, encodable(runtime, images), encoder.projector, runtime.tokenizer)
    return runtime.encode_images(prompt)
