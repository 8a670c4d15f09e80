"""From planned tensors and keys to a GGUF file.

Every fault is found before a byte is written, except those that only the numbers show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field

from ...core.errors import ModelError
from ...core.gguf.encode import exact_types
from ...core.gguf.metadata import Metadata
from ...core.gguf.quants import BlockFormat
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import align
from ...core.gguf.types import Typed, ValueType
from ..files.output_file import OutputFile, Progress, write
from ..quantize.native_quantizer import prepare
from ..quantize.recipes import RECIPES
from .matrix_rows import OutputTensor
from .metadata_keys import general_keys
from .model_sizes import ModelSizes
from .output_types import AUTO, as_floats, choose_formats, choose_type, encoded, kept_formats

if TYPE_CHECKING:
    from .drafters.draft_target import DraftTarget

WITH, WITHOUT, ONLY = "with", "without", "only"  # an MTP head


class Options(Struct, frozen=True):
    kind: str = AUTO  # of matrices
    mtp: str = WITH
    pre: str | None = None  # tokenizer.ggml.pre, where it is not recognised
    target: DraftTarget | None = None  # of a drafter: the model that it drafts for
    mmproj: bool = False  # the vision tower alone


class Conversion(Struct):
    """Everything but the numbers."""

    label: str
    architecture: str
    kind: str
    sizes: ModelSizes
    metadata: dict[str, Any]
    planned: dict[str, OutputTensor]
    formats: dict[str, BlockFormat]  # of `planned`
    notes: list[str] = field(default_factory=list)
    drafter: str = ""  # what a drafter is, in words
    tower: str = ""  # of an mmproj file likewise

    @property
    def n_params(self) -> int:
        return sum(tensor.n_elements for tensor in self.planned.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of the tensors as they will be written."""
        return sum(
            align(self.formats[name].n_bytes(t.n_elements), 32) for name, t in self.planned.items()
        )

    def types(self) -> dict[str, int]:
        """How many tensors of each type."""
        return dict(Counter(fmt.name for fmt in self.formats.values()))

    def write(
        self,
        output: OutputFile,
        progress: Progress = lambda done, total: None,
        *,
        n_threads: int = 1,
        inputs: Iterable[Path] = (),
    ) -> list[Path]:
        """`inputs`: the checkpoint's files, which must not be replaced."""
        with ThreadPoolExecutor(n_threads, "convert") as pool:
            prepare({fmt.name for fmt in self.formats.values()})
            tensors = [
                encoded(tensor, self.formats[name], self.label, pool)
                for name, tensor in self.planned.items()
            ]
            return write(output, self.metadata, tensors, [], progress, inputs)


class PlannedFile(Struct, frozen=True):
    """Before types are chosen."""

    label: str
    architecture: str
    sizes: ModelSizes
    keys: dict[str, Any]  # of the architecture
    planned: dict[str, OutputTensor]
    floats: GgufFile  # as it would be without quantisation, and without its numbers

    @classmethod
    def of(
        cls,
        label: str,
        architecture: str,
        sizes: ModelSizes,
        keys: dict[str, Any],
        planned: dict[str, OutputTensor],
    ) -> Self:
        try:
            typed = exact_types({"general.architecture": architecture, **keys})
        except TypeError as error:
            raise ModelError(
                f"{label}: config.json: a value that no file can have: {error}"
            ) from None
        floats = as_floats(planned, Metadata(typed), label)
        return cls(label, architecture, sizes, keys, planned, floats)


def make_conversion(
    source: PlannedFile, of_tokenizer: dict[str, Any], kind: str, folder: Path, notes: list[str]
) -> Conversion:
    """What is planned, with types, and keys in llama.cpp's order."""
    sizes, floats = source.sizes, source.floats
    planned = dict(sorted(source.planned.items(), key=lambda item: _place(item[0])))
    kind = choose_type(kind, planned.values())
    metadata, more = general_keys(folder, source.architecture, planned, sizes)
    metadata |= {
        **source.keys,
        "general.file_type": Typed(ValueType.U32, RECIPES[kind.upper()].file_type),
        "general.quantization_version": Typed(ValueType.U32, 2),
        **of_tokenizer,
    }
    chosen = choose_formats(kind, floats)
    formats = chosen.by_name | kept_formats(planned)
    notes = [*notes, *more, *_fallback_notes(planned, formats, kind)]
    if chosen.remark:
        notes.append(chosen.remark)
    return Conversion(
        source.label, source.architecture, kind, sizes, metadata, planned, formats, notes
    )


def _place(name: str) -> tuple[int, int]:
    """Sorts tensors in the order in which a pass reads them."""
    if name.startswith("blk."):
        return 1, int(name.split(".")[1])
    return (0 if name in ("token_embd.weight", "rope_freqs.weight") else 2), 0


def _fallback_notes(
    planned: dict[str, OutputTensor], formats: dict[str, BlockFormat], kind: str
) -> list[str]:
    odd = [n for n, t in planned.items() if len(t.shape) > 1 and formats[n].name == "F16"]
    if kind in ("f32", "f16", "bf16") or not odd:
        return []
    return [f"{len(odd)} tensors become F16: their rows are no whole blocks ({odd[0]}, ...)"]
