"""Opens an mmproj file beside the model that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend import create_backend
from ..errors import ModelError
from ..gguf.reader import open_gguf
from ..models.hparams import Hparams
from ..models.model_weights import Inventory, Weights
from .image_encoder import ImageEncoder
from .pixels import PixelBudget
from .projectors import find_projector
from .tower_sizes import TowerSizes, projector_type

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..gguf.reader import GgufFile
    from .mmproj_options import MmprojOptions


def load_images(
    options: MmprojOptions, model: GgufFile, backend: Backend, threads: int | None = None
) -> ImageEncoder:
    """An encoder of images for a model, checked against it before weights are read. Where the
    model's backend runs no towers, the CPU's does, with so many `threads`."""
    with open_gguf(options.path) as file:
        projector = find_projector(projector_type(file), file.label)
        sizes = TowerSizes.from_gguf(file, projector.merge_key)
        budget = budget_of(projector.usual_budget, options)
        surveyed = Weights(file, Inventory())
        for prefix in ("a.", "mm.a."):  # the audio tower of a model that has both
            surveyed.leave_out(prefix)
        projector(sizes, surveyed, backend)
        surveyed.check()
        width = projector.width_of(sizes, surveyed)
        check_pair(file, width, model)
        own = None
        if not backend.runs_towers or backend.n_ranks > 1:
            own = backend = create_backend("cpu", threads)
        made = projector(sizes, Weights(file, backend), backend)
    return ImageEncoder(made, width, budget, own)


def check_pair(file: GgufFile, width: int, model: GgufFile) -> None:
    """Rows have to be as wide as the model's."""
    h = Hparams.from_gguf(model)
    if width == h.row_width:
        return
    layers = f" for the input and {h.n_deepstack} layers" if h.n_deepstack else ""
    raise ModelError(
        f"{file.label}: makes rows of {width} numbers, and {model.label} takes rows of "
        f"{h.row_width}{layers}: the two files are of different models"
    )


def budget_of(usual: PixelBudget, options: MmprojOptions) -> PixelBudget:
    """What the options say, else what is usual; a limit beyond the other one moves that."""
    least, most = options.least, options.most
    if least is None:
        least = usual.least if most is None else min(usual.least, most)
    return PixelBudget(least, max(usual.most, least) if most is None else most)
