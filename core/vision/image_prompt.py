"""Prompts with images: where they stand in a text, and the rows that take their place."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from ..errors import ConfigError, InputError, ModelError
from ..state.embedded_rows import ImageRows, ModelPrompt
from ..tokenizer.chat_template import prompt_tokens

if TYPE_CHECKING:
    from ..backend.layers import Floats
    from ..tokenizer import Tokenizer
    from .image_encoder import ImageEncoder, ReadImage
    from .projector import Projector
    from .tower import Steps

MARKS: Final = ("<image>", "<__media__>")  # what stands for an image in a text
T = TypeVar("T")


class PlacedImage(Struct, frozen=True, eq=False):
    """An image in a prompt."""

    image: ReadImage
    between: list[list[int]]  # tokens between each two runs of its rows

    def __len__(self) -> int:
        """Places that it takes."""
        return self.image.n_rows + sum(map(len, self.between))


class ImagePrompt(Struct, frozen=True, eq=False):
    """Tokens, and images that have not been encoded."""

    parts: tuple[list[int] | PlacedImage, ...]

    def __len__(self) -> int:
        """Places that it takes."""
        return sum(map(len, self.parts))

    def shown(self, decode: Callable[[list[int]], str]) -> str:
        """Its text, with a mark for each image."""
        return "".join(
            MARKS[-1] if isinstance(part, PlacedImage) else decode(part) for part in self.parts
        )

    @property
    def images(self) -> list[ReadImage]:
        return [part.image for part in self.parts if isinstance(part, PlacedImage)]


def new_mark() -> str:
    """One that no text of a user can hold."""
    return f"<__media_{secrets.token_hex(16)}__>"


def split_at_marks(text: str, n_images: int, marks: Sequence[str] = MARKS) -> list[str]:
    """The text around each of so many images; those without a mark stand in front of it."""
    pieces = re.split("|".join(map(re.escape, marks)), text) if n_images else [text]
    n_marks = len(pieces) - 1
    if n_marks > n_images:
        raise InputError(
            f"the prompt has {n_marks} marks of images ({' or '.join(marks)}), and there are "
            f"{n_images}"
        )
    return [""] * (n_images - n_marks) + pieces


def marked_messages(
    messages: Sequence[Mapping[str, Any]], mark: str
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Messages of a chat with a mark for each part {"type": "image", "image": ...}, and what these
    hold, in order."""
    found: list[Any] = []
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            pieces = [_piece(part, mark, found) for part in content]
            message = {**message, "content": "".join(pieces)}
        made.append(dict(message))
    return made, found


def _piece(part: Any, mark: str, found: list[Any]) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image" and "image" in part:
        found.append(part["image"])
        return mark
    raise ConfigError(
        'parts of a message are {"type": "text", "text": ...} and {"type": "image", "image": ...}'
    )


def split_rendered(text: str, mark: str, n_images: int) -> list[str]:
    """What a chat template has made of messages with marks."""
    pieces = text.split(mark)
    if len(pieces) != n_images + 1:
        raise ConfigError(
            f"the chat template shows {len(pieces) - 1} of the {n_images} images of the messages"
        )
    return pieces


def place_images(
    pieces: Sequence[str], images: Sequence[ReadImage], projector: Projector, tokenizer: Tokenizer
) -> ImagePrompt:
    """Pieces of text with an image between each two, and the model's tokens around it."""
    for text in filter(None, (projector.begin, projector.end)):
        _check_token(tokenizer, text)
    pieces = _without_own_marks(pieces, projector)
    parts: list[list[int] | PlacedImage] = [prompt_tokens(pieces[0], tokenizer)]
    for image, text in zip(images, pieces[1:], strict=True):
        before = parts[-1]
        assert isinstance(before, list), "a part of text is before each image"
        first, *between, last = (
            tokenizer.encode(own, add_special=False) if own else [] for own in image.plan.texts
        )
        before += first
        behind = [*last, *tokenizer.encode(text, add_special=False)]
        parts += [PlacedImage(image, between), behind]
    return ImagePrompt(tuple(parts))


def encode_prompt(encoder: ImageEncoder, prompt: ImagePrompt) -> Steps[ModelPrompt]:
    """Images become rows, one after the other. Yields between pieces of work."""
    parts: list[list[int] | Floats | ImageRows] = []
    for part in prompt.parts:
        if not isinstance(part, PlacedImage):
            parts.append(part)
            continue
        first, *others = yield from encoder.encode(part.image)
        parts.append(first)
        for tokens, run in zip(part.between, others, strict=True):
            parts += [tokens, run]
    return ModelPrompt.of(parts)


def finish(steps: Steps[T]) -> T:
    """What comes of steps that are all taken at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def _without_own_marks(pieces: Sequence[str], projector: Projector) -> list[str]:
    """A template, or a user, may have written the tokens around an image already."""
    made, last = list(pieces), len(pieces) - 1
    for i, text in enumerate(made):
        if i < last and text.endswith(projector.begin) and made[i + 1].startswith(projector.end):
            made[i] = text.removesuffix(projector.begin)
            made[i + 1] = made[i + 1].removeprefix(projector.end)
    return made


def _check_token(tokenizer: Tokenizer, text: str) -> None:
    if tokenizer.find_token(text) is None:
        raise ModelError(
            f"the model's vocabulary has no token {text}, which stands beside images: it was not "
            "trained to see, or the file of --mmproj belongs to another one"
        )
