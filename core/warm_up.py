"""Kernels of a file compiled for a GPU that need not be there: when an image is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .backend.cuda import architecture_of
from .backend.cuda.absent_device import (
    Compiled,
    absent_backend,
    check_architecture,
    compile_kernels,
)
from .backend.interface import Report
from .backend.layers import KvTypes
from .gguf.reader import open_gguf
from .models import survey_model
from .models.demand import Demand
from .ranks.devices import each_device
from .state.sizes import PREFILL_CHUNK, WINDOW, StateSizes

_LONGEST: Final = 8192  # cells: kernels do not depend on the context
_MOST_SEQUENCES: Final = 16  # of a step, at a time


def compile_for_gpus(
    path: Path, archs: Sequence[int], cache_types: tuple[str, str], report: Report
) -> Iterator[tuple[int, Compiled]]:
    """All that the steps of a file launch, for each of these compute capabilities times ten."""
    for arch in archs:
        check_architecture(arch)
    types = KvTypes.parse(*cache_types)
    with open_gguf(path) as file:
        for arch in archs:
            backend = absent_backend(arch, types)
            backend.begin_file(file)
            survey = survey_model(file, planner=backend)
            survey.weights.check()
            sizes = StateSizes(_LONGEST, n_slots=_MOST_SEQUENCES, window=WINDOW)
            Demand.of(survey.model, survey.inventory, backend).working(sizes, PREFILL_CHUNK)
            yield arch, compile_kernels(backend.planned_kernels(), arch, report)


def present_architectures(device: str) -> list[int]:
    """Of the GPUs that a `--device` names."""
    found = (architecture_of(each) for each in each_device(device))
    return list(dict.fromkeys(found))
