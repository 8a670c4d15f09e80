"""An MTP head as it is written to files, wherever it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from ...core.gguf.quants import BlockFormat
from ...core.gguf.ranges import FileRange
from ..checkpoint import StoredTensor
from .lazy_values import Floats

EH_PROJ = "nextn.eh_proj.weight"
EMBED = "nextn.embed_tokens.weight"
OWN_HEAD = "nextn.shared_head_head.weight"


class HeadTensor(Struct, frozen=True):
    """`stem` is the name below `blk.N.`, with `.weight` or `.bias` where it has that."""

    stem: str
    shape: tuple[int, ...]
    kept: BlockFormat  # its type unless another is requested
    pieces: Callable[[], Iterator[Floats]]  # its numbers in order, some whole rows at a time
    place: FileRange | None = None  # its bytes, where a file has them in type `kept`


class TrunkRows(Protocol):
    """The model that a head was trained with, as far as its source has it."""

    def rows(self, name: str, wanted: Sequence[int]) -> Floats | None:
        """Some rows of a tensor by its GGUF name; all of a vector; None if it is not there."""
        ...


class StoredHead(Struct, frozen=True):
    label: str
    architecture: str
    n_trunk: int  # layers of the model that it belongs to
    blocks: list[list[HeadTensor]]
    trunk: TrunkRows
    # Per key (without the architecture) what a per-layer array says of these blocks.
    layer_keys: Mapping[str, list[Any]] = field(default_factory=dict)
    tokens: Any = None  # the vocabulary of its file, to be compared
    stored: tuple[StoredTensor, ...] = ()  # what of a checkpoint will be read
    fetch: Callable[[], None] = lambda: None  # called before that is read
    files: tuple[Path, ...] = ()  # of a checkpoint, which must not be replaced
    remarks: tuple[str, ...] = ()  # what the user should know of how it was read

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        return [{tensor.stem: tensor.shape for tensor in block} for block in self.blocks]
