"""Flags of images, and the images themselves, read before the model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from .console import Console
from .flags import flag, flag_group

if TYPE_CHECKING:
    from ..core.runtime import Runtime
    from ..core.state.embedded_rows import ModelPrompt
    from ..core.vision.image_encoder import ReadImage


@flag_group("Model")
class ProjectorOptions:
    mmproj: Path | None = flag(
        "--mmproj -mm FILE",
        "The model's mmproj file, GGUF, for prompts with images. Without it, one beside the model "
        "is used.",
    )
    no_mmproj: bool = flag("--no-mmproj", "No mmproj file, even if one lies beside the model.")
    image_min_tokens: int | None = flag(
        "--image-min-tokens N",
        "Least tokens of the context for an image; 8 for Qwen's models if not given.",
        min=1,
    )
    image_max_tokens: int | None = flag(
        "--image-max-tokens N",
        "Most tokens of the context for an image, without texts in it; 4096 if not given.",
        min=1,
    )

    @property
    def is_looked_for(self) -> bool:
        """Whether a file beside the model is to be used."""
        return self.mmproj is None and not self.no_mmproj

    def beside(self, model: Path, output: Console) -> ProjectorOptions:
        """With the file that lies beside the model, if none is given and there is one."""
        if not self.is_looked_for:
            return self
        from ..core.vision.find_mmproj import find_mmproj

        found = find_mmproj(model)
        if found is None:
            return self
        output.remark(f"mmproj     {found} (found beside the model; --no-mmproj leaves it out)")
        return replace(self, mmproj=found)

    @property
    def given(self) -> dict[str, Any]:
        """What the model is loaded with."""
        values = {
            "mmproj": self.mmproj,
            "image_min_tokens": self.image_min_tokens,
            "image_max_tokens": self.image_max_tokens,
        }
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
            raise typer.BadParameter(
                "--image needs the model's mmproj file: give it with --mmproj FILE"
            )
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
    from ..core.vision.image_prompt import split_at_marks

    pieces = split_at_marks(text, len(images))
    return runtime.encode_images(runtime.image_prompt(pieces, encodable(runtime, images)))
