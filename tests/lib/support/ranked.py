"""Several ranks on the CPU: over the reference backend, or over the CUDA backend's shim."""

from __future__ import annotations

from pathlib import Path

import torch
from support.host_device import HostDevice

from specdec.core.backend import cuda
from specdec.core.gguf.reader import open_gguf
from specdec.core.models.base import Model
from specdec.core.ranks.backend import RankedBackend
from specdec.core.ranks.load import load_ranked
from specdec.core.state.sizes import StateSizes

SIZES = StateSizes(128)


def as_here() -> None:
    """What a rank's process calls first: it computes as this one does."""
    torch.set_num_threads(1)
    cuda.unavailable_reason = lambda index=0: None  # type: ignore[assignment]
    cuda.open_device = lambda index: HostDevice()  # type: ignore[assignment]


PREPARE = f"{__name__}:{as_here.__name__}"


def load(path: Path, backend: RankedBackend, *, with_nextn: bool = True) -> Model:
    return load_ranked(open_gguf(path), backend, lambda model: SIZES, with_nextn=with_nextn)
