"""Named access to the tensors of a file, with every missing or misshapen one reported at once.

A model is built twice: first against an `Inventory`, which only takes notes, so that a broken file
is refused with the whole list before anything is repacked; then against a backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from ..backend.interface import Backend
from ..backend.layers import Floats, Matrix, MatrixPart, Norm, Vector, float_part
from ..errors import ModelError
from ..gguf.reader import GgufFile, Tensor
from ..gguf.tensors import without_ones

if TYPE_CHECKING:
    pass

SHOWN = 6  # names listed in an error
CLASSIFIER = "cls.output.weight"
_RANK = 4  # llama.cpp's number of the pooling of a reranker
INT_FORMATS = {"I32": "<i4", "I64": "<i8"}


class Preparer(Protocol):
    """What building a model needs of a backend."""

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix: ...

    def vector(self, values: Floats) -> Vector: ...


class Inventory:
    """Prepares nothing, and notes what there will be to prepare; `planner` may prepare it as far as
    that takes no memory."""

    def __init__(self, planner: Backend | None = None) -> None:
        self.planner = planner
        self.matrices: list[Sequence[MatrixPart]] = []
        self.vector_bytes = 0

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        self.matrices.append(parts)
        return None if self.planner is None else self.planner.matrix(parts)

    def vector(self, values: Floats) -> Vector:
        self.vector_bytes += values.nbytes
        return None if self.planner is None else self.planner.vector(values)


LOADING_WEIGHTS: Final = "loading weights"  # a stage


class Reporting:
    """Hands everything to a backend and reports progress."""

    def __init__(self, backend: Backend, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        """`matrices`: all that there will be."""
        self.backend = backend
        self.done, self.total = 0, sum(p.tensor.n_bytes for parts in matrices for p in parts) or 1

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        made = self.backend.matrix(parts)
        self.done += sum(part.tensor.n_bytes for part in parts)
        self.backend.report(LOADING_WEIGHTS, min(self.done / self.total, 1.0))
        return made

    def vector(self, values: Floats) -> Vector:
        return self.backend.vector(values)


class Findings(Struct):
    missing: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


class Weights:
    def __init__(
        self,
        file: GgufFile,
        backend: Preparer,
        prefix: str = "",
        findings: Findings | None = None,
    ) -> None:
        self.file, self.backend, self.prefix = file, backend, prefix
        self.findings = findings or Findings()

    def scope(self, name: str) -> Self:
        return type(self)(self.file, self.backend, f"{self.prefix}{name}.", self.findings)

    def has(self, stem: str) -> bool:
        return self.has_tensor(f"{stem}.weight")

    def has_tensor(self, name: str) -> bool:
        """`name` with its `.weight` or `.bias`."""
        return f"{self.prefix}{name}" in self.file.tensors

    def leave_out(self, prefix: str) -> None:
        """These tensors are not needed now; `check` does not mind them."""
        self.findings.used.update(name for name in self.file.tensors if name.startswith(prefix))

    def norm(
        self, stem: str, width: int, eps: float, *, centred: bool = False, scale: float = 1.0
    ) -> Norm:
        """`scale`: what the weight is multiplied by."""
        # Some converters leave `.weight` off.
        weight = self.floats(stem if self.has_tensor(stem) else f"{stem}.weight", width)
        if scale != 1.0:
            weight = weight * np.float32(scale)
        return Norm(self.backend.vector(weight), eps, centred)

    def biased_norm(self, stem: str, width: int, eps: float) -> Norm:
        """A LayerNorm as it is usual: with a bias."""
        weight, bias = self.vector(f"{stem}.weight", width), self.vector(f"{stem}.bias", width)
        return Norm(weight, eps, centred=True, bias=bias)

    def plain_norm(self, width: int, eps: float) -> Norm:
        """A norm without a weight of its own."""
        return Norm(self.backend.vector(np.ones(width, np.float32)), eps)

    def vector(self, name: str, *shape: int) -> Vector:
        """A float array; `name` is whole, with its `.weight` or `.bias` if it has one."""
        return self.backend.vector(self.floats(name, *shape))

    def floats(self, name: str, *shape: int) -> Floats:
        tensor = self._take(name, shape)
        return np.zeros(shape, np.float32) if tensor is None else tensor.floats()

    def ints(self, name: str) -> NDArray[np.int64]:
        """A list of whole numbers of any length; empty if it is not there."""
        tensor = self.file.tensors.get(self.prefix + name)
        if tensor is None:
            self.findings.missing.append(self.prefix + name)
            return np.zeros(0, np.int64)
        self.findings.used.add(self.prefix + name)
        if tensor.format.name not in INT_FORMATS or len(tensor.shape) != 1:
            self.findings.misshapen.append(
                f"{self.prefix}{name} is {tensor.format.name} of shape {tensor.shape}, expected a "
                "list of whole numbers"
            )
            return np.zeros(0, np.int64)
        return tensor.data.view(INT_FORMATS[tensor.format.name]).astype(np.int64)

    def matrix(
        self,
        n_in: int,
        n_out: Mapping[str, int],
        *,
        row_orders: Mapping[str, NDArray[np.intp]] | None = None,
        needs_bias: bool = False,
    ) -> Matrix:
        """Matrices by stem and height, one under the other; their biases come along."""
        parts, orders = [], row_orders or {}
        for stem, height in n_out.items():
            part = self.part(stem, height, n_in, needs_bias=needs_bias)
            if part is not None:
                parts.append(replace(part, row_order=orders.get(stem)))
        return self.backend.matrix(parts) if parts else None

    def columns(self, stem: str, n_out: int, widths: Sequence[int]) -> list[Matrix]:
        """Matrices that are stored side by side in one, of so many columns each."""
        part, first, made = self.part(stem, n_out, sum(widths)), 0, []
        for width in widths:
            if part is not None:
                made.append(self.backend.matrix([self._chosen_columns(part, first, width)]))
            first += width
        return made or [None] * len(widths)

    def transposed(self, stem: str, n_out: int, n_in: int) -> Matrix:
        """A matrix that is stored with a row for each number that goes in."""
        stored = self.floats(f"{stem}.weight", n_in, n_out)
        return self.backend.matrix([float_part(f"{self.prefix}{stem}.weight", stored.T)])

    def _chosen_columns(self, part: MatrixPart, first: int, width: int) -> MatrixPart:
        """A copy of some columns, their blocks as they are stored."""
        tensor, block = part.tensor, part.tensor.format
        n_out, n_in = tensor.shape
        if first % block.block_size or width % block.block_size:
            raise ModelError(
                f"{self.file.label}: {tensor.name} has {block.name} blocks of {block.block_size} "
                f"columns, which cannot be parted at {first or width}; quantize it to another type"
            )
        blocks = tensor.data.reshape(n_out, n_in // block.block_size, block.block_bytes)
        at, end = first // block.block_size, (first + width) // block.block_size
        data = blocks[:, at:end].reshape(-1)
        name = f"{tensor.name}[{first}:{first + width}]"
        chosen = replace(tensor, name=name, shape=(n_out, width), data=data)
        return MatrixPart(chosen, None if first else part.bias, part.scale)

    def part(
        self, stem: str, n_out: int, n_in: int, *, needs_bias: bool = False
    ) -> MatrixPart | None:
        """A stored matrix with what belongs to it."""
        tensor = self._take(f"{stem}.weight", (n_out, n_in))
        bias = self._optional(f"{stem}.bias", (n_out,), needed=needs_bias)
        return None if tensor is None else MatrixPart(tensor, bias, self._scale(stem, tensor, 1))

    def kernel(self, name: str, shape: tuple[int, ...], bias: Floats | None = None) -> Matrix:
        """A convolution's kernel (n_out, ...) as a matrix of n_out rows; `name` is whole."""
        tensor = self._take(name, shape)
        if tensor is None:
            return None
        flat = replace(tensor, shape=(shape[0], tensor.n_elements // shape[0]))
        return self.backend.matrix([MatrixPart(flat, bias)])

    def experts(
        self, n_expert: int, n_in: int, n_out: Mapping[str, int], *, needs_bias: bool = False
    ) -> Matrix:
        """Stacks of matrices, (n_expert, n_out, n_in); their biases come along."""
        parts = []
        for stem, height in n_out.items():
            tensor = self._take(f"{stem}.weight", (n_expert, height, n_in))
            bias = self._optional(f"{stem}.bias", (n_expert, height), needed=needs_bias)
            if tensor is not None:
                parts.append(MatrixPart(tensor, bias, self._scale(stem, tensor, n_expert)))
        return self.backend.matrix(parts) if parts else None

    def _scale(self, stem: str, tensor: Tensor, n: int) -> Floats | None:
        """The second-level scale that only NVFP4 tensors have; not what was read for itself."""
        if f"{self.prefix}{stem}.scale" in self.findings.used:
            return None
        scale = self._optional(f"{stem}.scale", (n,))
        if scale is not None and tensor.format.name != "NVFP4":
            self.findings.misshapen.append(
                f"{self.prefix}{stem}.scale belongs to a {tensor.format.name} tensor, "
                "which is only known of NVFP4"
            )
        return scale

    def _optional(self, name: str, shape: tuple[int, ...], needed: bool = False) -> Floats | None:
        if needed or f"{self.prefix}{name}" in self.file.tensors:
            return self.floats(name, *shape)
        return None

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        name = self.prefix + name
        tensor = self.file.tensors.get(name)
        if tensor is None:
            self.findings.missing.append(name)
            return None
        self.findings.used.add(name)
        if without_ones(tensor.shape) != without_ones(shape):
            self.findings.misshapen.append(f"{name} has shape {tensor.shape}, expected {shape}")
            return None
        # Element counts decide: a dimension of 1 may or may not be stored.
        return tensor if tensor.shape == shape else replace(tensor, shape=shape)

    def check(self) -> None:
        """Raise if the file cannot be computed exactly as it was meant."""
        path, findings = self.file.label, self.findings
        if findings.missing:
            raise ModelError(f"{path}: missing tensors: {_listing(findings.missing)}")
        if findings.misshapen:
            raise ModelError(f"{path}: {_listing(findings.misshapen)}")
        unused = [
            name
            for name in self.file.tensors
            if name not in findings.used and not is_no_part_of_text(name, self.file)
        ]
        if unused:
            raise ModelError(
                f"{path}: architecture {self.file.metadata.architecture} does not use tensors "
                f"{_listing(unused)}; leaving them out would change the text"
            )


def is_no_part_of_text(name: str, file: GgufFile) -> bool:
    """Whether a tensor may be left out without changing a text."""
    return name.endswith(".input_scale") or (name == CLASSIFIER and is_reranker(file))


def is_reranker(file: GgufFile) -> bool:
    """Whether the file is a decoder with a row for "yes" and one for "no", which no text needs."""
    classifier, meta = file.tensors.get(CLASSIFIER), file.metadata
    if classifier is None or meta.architecture != "qwen3":
        return False
    n_embd = meta.int("embedding_length", 0)
    return meta.int("pooling_type", 0) == _RANK and classifier.shape == (2, n_embd)


def choose_rows(part: MatrixPart, rows: NDArray[np.integer[Any]]) -> MatrixPart:
    """A copy of some rows of a matrix, their blocks as they are stored."""
    tensor = part.tensor
    n_out, n_in = tensor.shape
    data = tensor.data.reshape(n_out, -1)[rows].reshape(-1)
    tensor.release()
    bias = None if part.bias is None else part.bias[rows]
    return MatrixPart(replace(tensor, shape=(len(rows), n_in), data=data), bias, part.scale)


def _listing(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
