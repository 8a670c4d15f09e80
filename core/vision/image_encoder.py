"""`ImageEncoder`: an mmproj file that is ready, and the rows that it made lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from ..backend.layers import Floats
from ..errors import InputError
from ..state.embedded_rows import ImageRows
from .image_file import decode, rgb_pixels, size_of

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from .pixels import ImagePlan, PixelBudget
    from .projector import Projector
    from .tower import Steps

CACHE_BYTES: Final = 256 << 20


class ReadImage(Struct, frozen=True, eq=False):
    """An image whose size is known and checked, and whose pixels may still be damaged."""

    name: str  # what messages call it
    data: bytes
    key: str  # what the data and the settings determine
    plan: ImagePlan

    @property
    def n_rows(self) -> int:
        return self.plan.n_rows


class ImageEncoder:
    """Encoding is for one thread, that of the model. `read` may be called in any."""

    def __init__(
        self,
        projector: Projector,
        width: int,
        budget: PixelBudget,
        own_backend: Backend | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`width`: numbers of a row. `own_backend`: to be closed with this one."""
        self.projector, self.width, self.budget = projector, width, budget
        self.is_bidirectional = False  # rows of an image see each other in the model
        self._own_backend = own_backend
        self._rows: OrderedDict[str, Floats] = OrderedDict()  # the latest at the end
        self._n_bytes, self._cache_bytes = 0, cache_bytes
        # Of all images so far: tokens of the context, and what encoding took by itself.
        self.n_rows, self.ms = 0, 0.0

    @property
    def most_rows(self) -> int:
        """Of one image."""
        return self.projector.most_rows(self.budget)

    def read(self, data: bytes, name: str = "image") -> ReadImage:
        """From its header: how many rows it will have. InputError says what is wrong with it."""
        plan = self.projector.plan(size_of(data, name), self.budget)
        settings = f"{self.budget.least} {self.budget.most}".encode()
        return ReadImage(name, data, sha256(settings + b"\0" + data).hexdigest(), plan)

    def encode(self, image: ReadImage) -> Steps[list[Floats | ImageRows]]:
        """The runs of rows that stand in a prompt. Yields between pieces of work."""
        steps = self._encode(image)
        while True:
            began = perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                found: list[Floats | ImageRows] = end.value
                self.n_rows += image.n_rows
                return found
            finally:
                self.ms += 1000 * (perf_counter() - began)
            yield

    def _encode(self, image: ReadImage) -> Steps[list[Floats | ImageRows]]:
        rows = self._rows.get(image.key)
        if rows is None:
            prepared = self.projector.prepare(decode(image.data, image.name), image.plan)
            yield
            made = []
            for tile in prepared:
                made.append((yield from self.projector.encode(tile)))
            rows = np.concatenate(made)
            self._keep(image.key, rows)
        else:
            self._rows.move_to_end(image.key)
        runs = np.split(rows, np.cumsum(image.plan.runs)[:-1])
        if self.is_bidirectional:
            return [ImageRows(run) for run in runs]
        if not self.projector.has_axes:
            return list(runs)
        widths = (grid.row_width for grid in image.plan.grids)
        return [ImageRows.of_grid(*run) for run in zip(runs, widths, strict=True)]

    def close(self) -> None:
        self._rows.clear()
        self._n_bytes = 0
        if self._own_backend is not None:
            self._own_backend.close()

    def _keep(self, key: str, rows: Floats) -> None:
        if rows.nbytes > self._cache_bytes or key in self._rows:
            return
        self._rows[key] = rows
        self._n_bytes += rows.nbytes
        while self._n_bytes > self._cache_bytes:
            self._n_bytes -= self._rows.popitem(last=False)[1].nbytes


def image_bytes(source: Any, name: str, read_file: Callable[[Any], bytes]) -> bytes:
    """Of the bytes of an image file, an image of Pillow, or a path, which `read_file` reads."""
    from PIL import Image, ImageOps

    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, Image.Image):
        stored = BytesIO()
        pixels = rgb_pixels(ImageOps.exif_transpose(source))
        Image.fromarray(pixels).save(stored, "PNG", compress_level=1)
        return stored.getvalue()
    try:
        return read_file(source)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
