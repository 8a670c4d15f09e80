"""From an opened checkpoint to a GGUF file.

All that can go wrong is found before a byte is written, but for what only the numbers show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...core.errors import ModelError
from ...core.gguf.quants import BlockFormat
from ...core.gguf.shown import shown
from ...core.gguf.tensors import align
from ...core.gguf.types import Typed, ValueType
from ..checkpoint import Checkpoint
from ..files.output_file import OutputFile, Progress, write
from ..quantize.encode import prepare
from .config import Config
from .encoding import AUTO, choose_formats, choose_type, encoded, file_type
from .expected import check_complete
from .families import Family, find_family
from .general import general_keys
from .keys import model_keys
from .mapping import TensorMap
from .matrix import Planned
from .names import Sorted, sort_tensors
from .rope import RopeSetting, read_rope
from .sizes import Sizes, read_sizes
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
    sizes: Sizes
    metadata: dict[str, Any]
    planned: dict[str, Planned]
    formats: dict[str, BlockFormat]  # of `planned`
    notes: list[str] = field(default_factory=list)

    @property
    def n_params(self) -> int:
        return sum(tensor.n_elements for tensor in self.planned.values())

    @property
    def n_bytes(self) -> int:
        """Of the tensors as they will be written."""
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


def plan_conversion(checkpoint: Checkpoint, folder: Path, options: Options) -> Conversion:
    config = Config.of(checkpoint.label, checkpoint.config)
    family = find_family(config)
    found = sort_tensors(checkpoint.tensors, config)
    notes = _sorting_notes(found)
    n_mtp = _count_mtp(found, config, family, options, notes)
    sizes = read_sizes(config, family, n_mtp)
    rope = read_rope(config, family, sizes.head_dim)
    notes += rope.notes
    planned = _plan_tensors(found, config, family, sizes, rope, options, notes)
    check_complete(planned, family, sizes, config.label, mtp_only=options.mtp == ONLY)
    planned = dict(sorted(planned.items(), key=lambda item: _place(item[0])))
    kind = choose_type(options.kind, planned.values())
    general, more = general_keys(folder, family.architecture, planned, sizes)
    notes += more
    metadata = _metadata(config, family, sizes, rope, general, kind)
    n_rows = planned["token_embd.weight"].shape[0]
    keys, more = tokenizer_keys(checkpoint, family.architecture, n_rows, options.pre)
    metadata |= keys
    formats = choose_formats(planned, kind, metadata)
    notes += [*_window_notes(config), *more, *_fallback_notes(planned, formats, kind)]
    return Conversion(
        config.label, family.architecture, kind, sizes, metadata, planned, formats, notes
    )


def _count_mtp(
    found: Sorted, config: Config, family: Family, options: Options, notes: list[str]
) -> int:
    """Heads to be written; what is not wanted is taken out of `found`."""
    names = [name for name in found.matrices if name.startswith("mtp.")]
    if options.mtp == WITHOUT:
        for name in names:
            del found.matrices[name]
        return 0
    if not names:
        n_named = config.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
        if options.mtp == ONLY:
            raise ModelError(f"{config.label} has no MTP head: none of its tensors is named mtp.*")
        if n_named:
            notes.append(
                f"config.json names {n_named} MTP head(s), but the tensors are not there: written "
                "without"
            )
        return 0
    if not family.is_hybrid:
        raise ModelError(
            f"{config.label}: an MTP head ({shown(names[0])}) is not known of architecture "
            f"{family.architecture}; convert without it: --no-mtp"
        )
    numbers = {name.split(".")[2] for name in names if name.startswith("mtp.layers.")}
    return max(1, len(numbers))


def _plan_tensors(
    found: Sorted,
    config: Config,
    family: Family,
    sizes: Sizes,
    rope: RopeSetting,
    options: Options,
    notes: list[str],
) -> dict[str, Planned]:
    if config.get("tie_word_embeddings") is True and "lm_head.weight" in found.matrices:
        del found.matrices["lm_head.weight"]
        notes.append("lm_head is left out: config.json ties it to the embeddings")
    elif "lm_head.weight" not in found.matrices and config.get("tie_word_embeddings") is not True:
        notes.append("no lm_head in the checkpoint: the embeddings are the output as well")
    mapping = TensorMap(family, sizes, config.label)
    for name, matrix in found.matrices.items():
        if options.mtp != ONLY or name in _IN_MTP_ONLY or name.startswith("mtp."):
            mapping.add(name, matrix)
    planned = mapping.finish()
    if rope.factors is not None:
        name = "rope_freqs.weight"
        planned[name] = Planned(name, rope.factors.shape, (), constant=rope.factors)
    return planned


def _metadata(
    config: Config,
    family: Family,
    sizes: Sizes,
    rope: RopeSetting,
    general: dict[str, Any],
    kind: str,
) -> dict[str, Any]:
    return {
        **general,
        **model_keys(config, family, sizes, rope),
        "general.file_type": Typed(ValueType.U32, file_type(kind)),
        "general.quantization_version": Typed(ValueType.U32, 2),
    }


def _place(name: str) -> tuple[int, int]:
    """In the order in which a pass reads them; a sort keeps what stands equal."""
    if name.startswith("blk."):
        return 1, int(name.split(".")[1])
    return (0 if name in ("token_embd.weight", "rope_freqs.weight") else 2), 0


def _sorting_notes(found: Sorted) -> list[str]:
    if not found.other_senses:
        return []
    n = len(found.other_senses)
    return [f"{n} tensors of vision or audio are left out ({shown(found.other_senses[0])}, ...)"]


def _window_notes(config: Config) -> list[str]:
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return []
    if config.model_type.startswith("qwen") and config.get("use_sliding_window") is not True:
        return []
    return [
        f"sliding_window {shown(window)} has no key in this architecture: what is further back is "
        "seen as well, as in llama.cpp"
    ]


def _fallback_notes(
    planned: dict[str, Planned], formats: dict[str, BlockFormat], kind: str
) -> list[str]:
    if kind in ("f32", "f16", "bf16"):
        return []
    odd = [n for n, t in planned.items() if len(t.shape) > 1 and formats[n].name == "F16"]
    if not odd:
        return []
    return [f"{len(odd)} tensors become F16: their rows are no whole blocks ({odd[0]}, ...)"]
