"""An importance matrix: a text read by a model, chunk by chunk, as llama-imatrix does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from ...core.engine.sequence_reader import NO_ROW, SequenceReader
from ...core.errors import MissingDependencyError, ModelError, NonFiniteError
from ...core.gguf.printable import printable
from ...core.gguf.reader import GgufFile
from ...core.models import build_model

if TYPE_CHECKING:
    from .input_squares import InputSquares, ObservingBackend

Progress = Callable[[int, int], None]  # chunks that are done, of all
_OUTPUT: Final = "output.weight"


def observing_backend(device: str) -> ObservingBackend:
    """`device`: torch's name of one."""
    try:
        from .input_squares import ObservingBackend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            "spec convert imatrix needs torch, which is not installed; "
            "run: pip install 'nextn[torch]'"
        ) from None
    return ObservingBackend(device)


def read_squares(
    file: GgufFile,
    backend: ObservingBackend,
    chunks: Sequence[Sequence[int]],
    progress: Progress,
    *,
    with_output: bool = False,
) -> InputSquares:
    """Of the matrices of all blocks. `with_output`: of the output matrix as well, where the file
    has one of its own."""
    model = build_model(file, backend, with_nextn=False)
    n_ctx = len(chunks[0])
    reader = SequenceReader(model, backend, n_ctx, n_ctx)
    for n_done, chunk in enumerate(chunks):
        progress(n_done, len(chunks))
        for _ in reader.outputs(chunk, 0 if with_output else NO_ROW):
            pass
        _check_finite(backend.squares, n_done)
    progress(len(chunks), len(chunks))
    squares = backend.squares
    for name in list(squares.sums):
        if not (name.startswith("blk.") or (with_output and name == _OUTPUT)):
            del squares.sums[name], squares.counts[name]
    if not squares.sums:
        raise ModelError(f"{file.label}: has no matrices in blocks to count for")
    return squares


def _check_finite(squares: InputSquares, chunk: int) -> None:
    for name, sums in squares.sums.items():
        if not np.isfinite(sums).all():
            raise NonFiniteError(
                f"chunk {chunk + 1} of the text: what goes into {printable(name)} is NaN or "
                "infinite; the model's weights are broken, or too large for float32"
            )
