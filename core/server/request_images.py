"""Images of a request: read from base64 to their headers, and encoded between steps of the engine.

Nothing is fetched: no remote address is opened for a client, and no file but those of a folder that
the operator names.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import unquote

from ..errors import InputError, NextnError
from ..gguf.read_bounded import read_bounded
from .api_errors import ApiError, api_error

if TYPE_CHECKING:
    from ..runtime import Runtime
    from ..state.embedded_rows import ModelPrompt
    from ..vision.image_encoder import ReadImage
    from ..vision.image_prompt import ImagePrompt
    from ..vision.tower import Steps
    from .service import Service

MAX_IMAGES: Final = 16  # of a request
MEDIA_MARKER: Final = "<__media__>"  # of an image in a prompt that is no chat
IMAGE_PARTS: Final = ("image_url", "input_image", "image")
NOT_SEEN: Final = (
    "images (image_url, input_image, image, multimodal_data) need the model's mmproj file: start "
    "the server with --mmproj FILE"
)
_ALPHABET: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_DATA_URI: Final = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:")
_FILE: Final = "file://"
_SPACE: Final = str.maketrans("", "", " \t\r\n")


class RequestImages:
    """The images of one prompt, in order."""

    def __init__(self, runtime: Runtime, folder: Path | None = None) -> None:
        """`folder`: whose files may be named, by file:// addresses."""
        from ..vision.image_prompt import new_mark

        self._runtime, self._folder = runtime, folder
        self.mark = new_mark()  # which stands for each in the text of a chat
        self.read: list[ReadImage] = []

    def add_part(self, part: Any, where: str) -> str:
        """A part of a message, in the words of OpenAI or Anthropic. Returns its mark."""
        match part.type:
            case "image":
                self.add(_of_source(part.source, f"{where}.source"), where)
            case "input_image" if part.image_url is None and part.file_id is not None:
                _refuse(f"{where}.file_id", "nothing is stored here: give the image as image_url")
            case _:
                url = part.image_url
                self.add(url.get("url") if isinstance(url, dict) else url, f"{where}.image_url")
        return self.mark

    def add(self, given: Any, where: str) -> None:
        """`given`: a data URI, base64 alone, or a file's address. `where`: the field."""
        encoder = encoder_of(self._runtime)
        if len(self.read) == MAX_IMAGES:
            _refuse(where, f"a request may have at most {MAX_IMAGES} images")
        try:
            is_file = isinstance(given, str) and given[: len(_FILE)].lower() == _FILE
            data = _of_file(given, self._folder, where) if is_file else decoded(given, where)
            self.read.append(encoder.read(data, where))
        except InputError as error:
            raise ApiError(400, str(error), param=where) from None

    def prompt(self, text: str) -> ImagePrompt:
        """Of a chat's text with marks."""
        from ..vision.image_prompt import split_rendered

        return self._runtime.image_prompt(
            split_rendered(text, self.mark, len(self.read)), self.read
        )

    def placed_in(self, text: str) -> ImagePrompt:
        """Of a text with the marks of clients."""
        from ..vision.image_prompt import split_at_marks

        return self._runtime.image_prompt(
            split_at_marks(text, len(self.read), [MEDIA_MARKER]), self.read
        )


def encoder_of(runtime: Runtime) -> Any:
    """The encoder; an `ApiError` if there is none."""
    if runtime.image_encoder is None:
        raise ApiError(400, NOT_SEEN)
    return runtime.image_encoder


def decoded(given: Any, where: str) -> bytes:
    """The bytes of strict base64, with spaces or line breaks."""
    from ..vision.image_file import MAX_BYTES

    if not isinstance(given, str) or not given:
        _refuse(where, "must be a data URI, such as data:image/png;base64,...")
    found = _DATA_URI.match(given)
    if found is None and _SCHEME.match(given):
        _refuse(
            where,
            "must be a data URI with base64, such as data:image/png;base64,...: other addresses "
            "are not fetched",
        )
    text = given[found.end() :] if found is not None else given
    if len(text) > 2 * MAX_BYTES:
        _refuse(where, f"has an image of more than {MAX_BYTES >> 20} MiB")
    text = text.translate(_SPACE)
    if not text or len(text) % 4 or _ALPHABET.fullmatch(text) is None:
        _refuse(where, "is not base64")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        _refuse(where, "is not base64")


def _of_file(address: str, folder: Path | None, where: str) -> bytes:
    """A file below the folder, whatever links there are."""
    from ..vision.image_file import MAX_BYTES

    if folder is None:
        _refuse(where, "names a file, which needs --media-path DIR of the server")
    root, name = folder.resolve(), unquote(address[len(_FILE) :]).lstrip("/")
    try:
        path = (root / name).resolve()
        is_there = path.is_relative_to(root) and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        is_there = False
    if not is_there:
        _refuse(where, "names no file below the server's --media-path")
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        _refuse(where, f"cannot be read: {error.strerror}")


def _of_source(source: Any, where: str) -> Any:
    """What Anthropic's `source` holds."""
    if not isinstance(source, dict):
        _refuse(where, "is missing")
    kind = source.get("type")
    if kind == "url":
        return source.get("url")
    if kind != "base64":
        _refuse(f"{where}.type", "must be base64")
    return source.get("data")


def _refuse(where: str, message: str) -> NoReturn:
    raise ApiError(400, f"{where} {message}", param=where)


# Encoding ----------------------------------------------------------------------------------------


async def encode_prompt_images(service: Service, prompt: ImagePrompt) -> tuple[ModelPrompt, float]:
    """The prompt with the rows of its images, and what encoding took by itself, in ms. One request
    at a time, step by step in the engine's thread: sequences that run have their turn in between.
    """
    from ..vision.image_prompt import encode_prompt

    async with service.encoding:
        encoder = service.runtime.images
        steps, before = encode_prompt(encoder, prompt), encoder.ms
        try:
            while True:
                ended = await service.worker.call(lambda _engine: _next_step(steps))
                if ended is not None:
                    return ended[0], encoder.ms - before
        except NextnError as error:
            raise api_error(error) from None


def _next_step(steps: Steps[ModelPrompt]) -> tuple[ModelPrompt] | None:
    """None, and at the end what came of all steps."""
    try:
        next(steps)
    except StopIteration as end:
        return (end.value,)
    return None
