"""`WeightMemory`: a model's matrices and vectors, prepared for this backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from ...gguf.reader import GgufFile
from ..layers import Floats, Matrix, MatrixPart, Vector

Report = Callable[[str, float], None]  # what is being done, and the fraction that is done


def _silent(what: str, fraction: float) -> None:
    pass


class WeightMemory(ABC):
    prepared_bytes: int = 0
    mapped_bytes: int = 0  # of these, in files that are mapped and not copied
    repacked_path: Path | None = None  # the file that keeps them in this backend's layout
    reserved: int = 0  # bytes of the first rank's device that a draft model's state will take
    savings: tuple[str, ...] = ()  # flags that make a model fit, beside -c and -np
    report: Report = staticmethod(_silent)

    def begin_file(self, file: GgufFile) -> None:
        """The next calls are about matrices of this file."""

    @abstractmethod
    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        """What `matrix` of these parts will take in memory, from their shapes alone."""

    def expect(self, file: GgufFile, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        """All that `matrix` is going to be called with, in that order: for room in one piece."""

    def weights_ready(self, file: GgufFile) -> None:
        """All that was expected has been prepared."""

    @abstractmethod
    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        """Repack stored matrices, whose rows are put one under the other, for `matmul`."""

    @abstractmethod
    def vector(self, values: Floats) -> Vector:
        """Keep a small float32 array beside the matrices."""

    def free_device_bytes(self) -> int | None:
        """Memory of its own that is left; None: its arrays are the host's, or it is unknown."""
        return None

    def left_beside(self, state_bytes: int, available: int) -> int:
        """For another model, of what is `available` in all."""
        return max(0, available - state_bytes)

    def weight_bytes(self) -> int:
        """What all matrices and vectors prepared so far take in memory."""
        return self.prepared_bytes
