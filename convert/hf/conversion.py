"""From an opened checkpoint to a GGUF file.

Every fault is found before a byte is written, except those that only the numbers show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...core.errors import ModelError
from ...core.gguf.encode import exact_types
from ...core.gguf.metadata import Metadata
from ...core.gguf.printable import printable
from ...core.gguf.quants import BlockFormat
from ...core.gguf.tensors import align
from ...core.gguf.types import Typed, ValueType
from ..checkpoint import ModelCheckpoint
from ..files.output_file import OutputFile, Progress, write
from ..quantize.native_quantizer import prepare
from ..quantize.recipes import RECIPES
from .completeness import check_complete
from .matrix_rows import OutputTensor, StoredMatrix
from .metadata_keys import general_keys, model_keys
from .model_config import CheckpointFamily, ModelConfig, find_family
from .model_sizes import ModelSizes, read_sizes
from .output_types import AUTO, as_floats, choose_formats, choose_type, encoded
from .rope_setting import read_rope
from .stored_names import SortedTensors, sort_tensors
from .tensor_map import TensorMap
from .tokenizer import tokenizer_keys

WITH, WITHOUT, ONLY = "with", "without", "only"  # an MTP head
_IN_MTP_ONLY: Final = ("embed_tokens.weight", "norm.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class Options:
    kind: str = AUTO  # of matrices
    mtp: str = WITH
    pre: str | None = None  # tokenizer.ggml.pre, where it is not recognised


@dataclass(slots=True)
class Conversion:
    """Everything but the numbers."""

    label: str
    architecture: str
    kind: str
    sizes: ModelSizes
    metadata: dict[str, Any]
    planned: dict[str, OutputTensor]
    formats: dict[str, BlockFormat]  # of `planned`
    notes: list[str] = field(default_factory=list)

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


def plan_conversion(checkpoint: ModelCheckpoint, folder: Path, options: Options) -> Conversion:
    config = ModelConfig.of(checkpoint.label, checkpoint.config)
    family = find_family(config)
    architecture, notes = family.architecture, list[str]()
    found = sort_tensors(checkpoint.tensors, config)
    if senses := found.other_senses:
        first = printable(senses[0])
        notes.append(f"{len(senses)} tensors of vision or audio are left out ({first}, ...)")
    n_mtp = _count_mtp(found, config, family, options, notes)
    sizes = read_sizes(config, family, n_mtp)
    rope = read_rope(config, family, sizes.head_dim)
    notes += rope.notes
    mapping = TensorMap(family, sizes, config.label)
    for name, matrix in _wanted(found, config, options, notes).items():
        mapping.add(name, matrix)
    planned = mapping.finish()
    if rope.factors is not None:
        name = "rope_freqs.weight"
        planned[name] = OutputTensor(name, rope.factors.shape, (), constant=rope.factors)
    own_keys = model_keys(config, family, sizes, rope)
    keys = exact_types({"general.architecture": architecture, **own_keys})
    floats = as_floats(planned, Metadata(keys), config.label)
    check_complete(floats, planned, sizes, mtp_only=options.mtp == ONLY)
    planned = dict(sorted(planned.items(), key=lambda item: _place(item[0])))
    kind = choose_type(options.kind, planned.values())
    metadata, more = general_keys(folder, architecture, planned, sizes)
    notes += more
    metadata |= {
        **own_keys,
        "general.file_type": Typed(ValueType.U32, RECIPES[kind.upper()].file_type),
        "general.quantization_version": Typed(ValueType.U32, 2),
    }
    n_rows = planned["token_embd.weight"].shape[0]
    of_tokenizer, more = tokenizer_keys(checkpoint, architecture, n_rows, options.pre)
    metadata |= of_tokenizer
    formats = choose_formats(kind, floats)
    notes += [*_window_notes(config), *more, *_fallback_notes(planned, formats, kind)]
    return Conversion(config.label, architecture, kind, sizes, metadata, planned, formats, notes)


def _count_mtp(
    found: SortedTensors,
    config: ModelConfig,
    family: CheckpointFamily,
    options: Options,
    notes: list[str],
) -> int:
    """The number of heads to write."""
    names = [name for name in found.matrices if name.startswith("mtp.")]
    if options.mtp == WITHOUT:
        return 0
    if not names:
        if options.mtp == ONLY:
            raise ModelError(f"{config.label} has no MTP head: none of its tensors is named mtp.*")
        if n_named := config.count("mtp_num_hidden_layers", "num_nextn_predict_layers"):
            notes.append(
                f"config.json names {n_named} MTP head(s), but the tensors are not there: written "
                "without"
            )
        return 0
    if not family.is_hybrid:
        raise ModelError(
            f"{config.label}: an MTP head ({printable(names[0])}) is not known of architecture "
            f"{family.architecture}; convert without it: --no-mtp"
        )
    return max(1, len({name.split(".")[2] for name in names if name.startswith("mtp.layers.")}))


def _wanted(
    found: SortedTensors, config: ModelConfig, options: Options, notes: list[str]
) -> dict[str, StoredMatrix]:
    """The matrices to write."""
    matrices = dict(found.matrices)
    is_tied = config.get("tie_word_embeddings") is True
    if is_tied and "lm_head.weight" in matrices:
        del matrices["lm_head.weight"]
        notes.append("lm_head is left out: config.json ties it to the embeddings")
    elif not is_tied and "lm_head.weight" not in matrices:
        notes.append("no lm_head in the checkpoint: the embeddings are the output as well")
    if options.mtp == WITHOUT:
        return {name: m for name, m in matrices.items() if not name.startswith("mtp.")}
    is_part = options.mtp == WITH
    return {
        n: m for n, m in matrices.items() if is_part or n.startswith("mtp.") or n in _IN_MTP_ONLY
    }


def _place(name: str) -> tuple[int, int]:
    """Sorts tensors in the order in which a pass reads them."""
    if name.startswith("blk."):
        return 1, int(name.split(".")[1])
    return (0 if name in ("token_embd.weight", "rope_freqs.weight") else 2), 0


def _window_notes(config: ModelConfig) -> list[str]:
    window, uses = config.get("sliding_window"), config.get("use_sliding_window")
    is_qwen = config.model_type.startswith("qwen")
    if window is None or uses is False or (is_qwen and uses is not True):
        return []
    return [
        f"sliding_window {printable(window)} has no key in this architecture: what is further back "
        "is seen as well, as in llama.cpp"
    ]


def _fallback_notes(
    planned: dict[str, OutputTensor], formats: dict[str, BlockFormat], kind: str
) -> list[str]:
    odd = [n for n, t in planned.items() if len(t.shape) > 1 and formats[n].name == "F16"]
    if kind in ("f32", "f16", "bf16") or not odd:
        return []
    return [f"{len(odd)} tensors become F16: their rows are no whole blocks ({odd[0]}, ...)"]
