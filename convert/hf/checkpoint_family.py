"""What is known of one family of checkpoints, and how its tensors find their places in a GGUF file.

A family is a row of data, with functions for what a name, a number or a flag cannot say. The rows
are in `families`. Only names and shapes of tensors are looked at. Names are brought to one spelling
first: `layers.N....`, and `mtp.layers.N....` for MTP heads, whatever a multimodal model or a bare
trunk calls them. A tensor that has no place in the file is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ..checkpoint.safetensors import Floats
from ..heads.family_table import find_mtp_family
from ..heads.mtp_family import EXPERT, STACK
from .matrix_rows import Change, MatrixRows, Order, OutputTensor, StoredMatrix
from .model_config import ModelConfig
from .model_sizes import ModelSizes, SizeReader
from .rope_setting import RopeSetting, RopeTraits
from .tokenizer.tokenizer_traits import USUAL, TokenizerTraits

Keys = dict[str, Any]
KeyWriter = Callable[[ModelConfig, ModelSizes, RopeSetting], Keys]
Planner = Callable[["TensorMap", str, StoredMatrix], None]  # the block, `blk.0` for one
Orderer = Callable[["TensorMap", StoredMatrix], Order | None]
FactorMaker = Callable[[ModelConfig, ModelSizes, RopeSetting], Floats | None]
UNSHIFTED = "ssm_norm.weight"  # multiplies as it is, in families that shift all other norms


GLOBAL: Final = MappingProxyType(
    {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
)
# What all heads share, under `mtp.`.
NEXTN: Final = MappingProxyType(
    {
        "fc": "nextn.eh_proj",
        "pre_fc_norm_embedding": "nextn.enorm",
        "pre_fc_norm_hidden": "nextn.hnorm",
        "norm": "nextn.shared_head_norm",
        "embed_tokens": "nextn.embed_tokens",
        "lm_head": "nextn.shared_head_head",
    }
)
_LFM_EXPERT: Final = re.compile(r"feed_forward\.experts\.\d+\.w\d\.")
_LAYER: Final = re.compile(r"(mtp\.)?layers\.(\d+)\.(.+)")


class MtpPlace(Enum):
    """Where the blocks of MTP heads are."""

    NONE = "none"
    APART = "apart"  # `mtp.layers.N`; what is beside them under `mtp.` is shared by all heads
    BEHIND = "behind"  # `layers.N`, N from the number of layers on


class CheckpointFamily(Struct, frozen=True):
    """Tensors that no row names have the names that heads of this architecture have (`heads`)."""

    architecture: str  # GGUF's word
    rope_theta: float = 10000.0  # the default, as are the next two
    rms_eps: float = 1e-6
    head_dim: int = 0  # 0: width divided by heads
    defaults: Keys = field(default_factory=dict)  # of config.json
    activations: tuple[str, ...] = ("silu", "swish")
    is_tied: bool = False  # checkpoints have no output matrix
    rope: RopeTraits = RopeTraits()
    mtp: MtpPlace = MtpPlace.NONE
    # Of a tensor of MTP heads, where several layers of the checkpoint are one block.
    head_name: Callable[[str], str] = lambda name: name
    shifted_norms: bool = False  # x * (1 + w): checkpoints hold w, GGUF holds 1 + w
    stems: Mapping[str, str] = field(default_factory=dict)  # in a block, without `.weight`
    whole: Mapping[str, str] = field(default_factory=dict)  # in a block, with their endings
    outside: Mapping[str, str] = field(default_factory=dict)  # of no block
    planners: Mapping[str, Planner] = field(default_factory=dict)  # by whole name in a block
    orders: Mapping[str, Orderer] = field(default_factory=dict)  # of rows, by GGUF stem
    column_orders: Mapping[str, Orderer] = field(default_factory=dict)
    finish: Callable[[TensorMap], None] | None = None  # after all tensors are placed
    sizes: SizeReader = lambda config, n_layers, n_mtp: {}
    keys: KeyWriter = lambda config, sizes, rope: {}
    rope_factors: FactorMaker = lambda config, sizes, rope: rope.factors
    is_windowed: bool = False  # GGUF has keys for the window
    # The row that is meant, where one `model_type` stands for several architectures.
    variant: Callable[[ModelConfig], str | None] = lambda config: None
    tokenizer: TokenizerTraits = USUAL

    def stem(self, inner: str) -> str | None:
        """The GGUF name below `blk.N.`; None if it has none."""
        if found := self.whole.get(inner):
            return found
        name, _, kind = inner.rpartition(".")
        if kind in ("weight", "bias") and (found := self.stems.get(name)):
            return f"{found}.{kind}"
        return find_mtp_family(self.architecture).stem(inner)


class TensorMap(Struct):
    """Filled tensor by tensor."""

    family: CheckpointFamily
    config: ModelConfig
    sizes: ModelSizes
    planned: dict[str, OutputTensor] = field(default_factory=dict)
    _experts: dict[str, dict[int, StoredMatrix]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def label(self) -> str:
        return self.config.label

    def add(self, name: str, matrix: StoredMatrix) -> None:
        """`name` in the one spelling."""
        if target := GLOBAL.get(name) or self.family.outside.get(name):
            self.put(target, matrix)
        elif found := _LAYER.fullmatch(name):
            for block in self._blocks(int(found[2]), matrix, is_head=bool(found[1])):
                self._add_in_block(f"blk.{block}", found[3], matrix)
        elif name.startswith("mtp."):
            self._add_nextn(name.removeprefix("mtp."), matrix)
        else:
            raise self._no_place(matrix)

    def finish(self) -> dict[str, OutputTensor]:
        n = self.sizes.n_experts
        for name, experts in self._experts.items():
            lacking = [i for i in range(n) if i not in experts]
            if lacking or len(experts) > n:
                found = (
                    f"expert {lacking[0]} is missing" if lacking else f"{len(experts)} are there"
                )
                raise ModelError(f"{self.label}: {name} is to be made of {n} experts, but {found}")
            first = experts[0]
            if wrong := [m for m in experts.values() if m.tensor.shape != first.tensor.shape]:
                raise self.error(wrong[0], f"has shape {wrong[0].tensor.shape}, unlike the others")
            parts = tuple(MatrixRows.all(experts[i]) for i in range(n))
            self.take(OutputTensor(name, (n, first.n_rows, first.n_columns), parts))
        if self.family.finish is not None:
            self.family.finish(self)
        return self.planned

    def _blocks(self, layer: int, matrix: StoredMatrix, *, is_head: bool) -> range:
        """The blocks that a layer becomes: one, or all heads that share it."""
        sizes = self.sizes
        if is_head and self.config.get("mtp_share_layers") is True:
            return range(sizes.n_layers, sizes.n_blocks)
        block = layer + (sizes.n_layers if is_head else 0)
        if block >= (sizes.n_blocks if is_head else sizes.n_layers):
            raise self.error(matrix, "of a layer that config.json's count does not have")
        return range(block, block + 1)

    def _add_nextn(self, name: str, matrix: StoredMatrix) -> None:
        stem, _, kind = name.rpartition(".")
        if stem not in NEXTN or kind != "weight":
            raise self.error(matrix, "is of an MTP head, but has no place in one")
        for block in range(self.sizes.n_layers, self.sizes.n_blocks):
            self.put(f"blk.{block}.{NEXTN[stem]}.weight", matrix)

    def _add_in_block(self, block: str, name: str, matrix: StoredMatrix) -> None:
        name = _mixtral(name)
        if planner := self.family.planners.get(name):
            planner(self, block, matrix)
        elif found := EXPERT.fullmatch(name):
            self._experts[f"{block}.ffn_{found[2]}_exps.weight"][int(found[1])] = matrix
        elif found := STACK.fullmatch(name):
            self.add_stacked(block, found[1], matrix)
        elif stem := self.family.stem(name):
            self._add_plain(f"{block}.{stem}", stem, matrix)
        else:
            raise self._no_place(matrix)

    def _add_plain(self, target: str, stem: str, matrix: StoredMatrix) -> None:
        name = stem.rpartition(".")[0]
        order, columns = self.family.orders.get(name), self.family.column_orders.get(name)
        self.put(
            target,
            matrix,
            order and order(self, matrix),
            columns=columns and columns(self, matrix),
        )

    def add_stacked(self, block: str, kind: str, matrix: StoredMatrix) -> None:
        """All experts in one tensor (experts, out, in); gate and up may be one under the other."""
        shape = matrix.tensor.shape
        if len(shape) != 3 or (kind == "gate_up" and shape[1] % 2):
            raise self.error(matrix, f"has shape {shape}, which no stack of experts has")
        n, height, width = shape
        if kind != "gate_up":
            name = f"{block}.ffn_{kind}_exps.weight"
            self.take(OutputTensor(name, shape, (MatrixRows.all(matrix),)))
            return
        half = height // 2
        for offset, half_name in ((0, "gate"), (half, "up")):
            starts = [e * height + offset for e in range(n)]
            parts = tuple(MatrixRows(matrix, range(start, start + half)) for start in starts)
            name = f"{block}.ffn_{half_name}_exps.weight"
            self.take(OutputTensor(name, (n, half, width), parts))

    def put(
        self,
        name: str,
        matrix: StoredMatrix,
        rows: Order | None = None,
        *,
        columns: Order | None = None,
        change: Change = Change.NONE,
    ) -> None:
        if rows is not None and len(rows) and matrix.n_rows <= int(rows.max()):
            raise self.error(matrix, f"has {matrix.n_rows} rows, expected {len(rows)}")
        if columns is not None and matrix.n_columns != len(columns):
            raise self.error(matrix, f"has {matrix.n_columns} columns, expected {len(columns)}")
        part = MatrixRows.all(matrix) if rows is None else MatrixRows(matrix, rows)
        is_norm = name.endswith("norm.weight") and not name.endswith(UNSHIFTED)
        if is_norm and self.family.shifted_norms:
            change = Change.PLUS_ONE
        self.take(OutputTensor(name, _shape(name, matrix, len(part)), (part,), change, columns))

    def check_rows(self, matrix: StoredMatrix, expected: int) -> None:
        if matrix.n_rows != expected:
            raise self.error(matrix, f"has {matrix.n_rows} rows, expected {expected}")

    def take(self, planned: OutputTensor) -> None:
        if planned.name in self.planned:
            raise ModelError(
                f"{self.label}: {planned.name} would come from two tensors, "
                f"{printable(self.planned[planned.name].source)} and {printable(planned.source)}"
            )
        self.planned[planned.name] = planned

    def _no_place(self, matrix: StoredMatrix) -> ModelError:
        return self.error(matrix, f"has no place in a GGUF file of {self.family.architecture}")

    def error(self, matrix: StoredMatrix, what: str) -> ModelError:
        return ModelError(f"{self.label}: tensor {printable(matrix.tensor.name)} {what}")


def heads_apart(
    matrices: dict[str, StoredMatrix], family: CheckpointFamily, n_layers: int
) -> dict[str, StoredMatrix]:
    """Heads that lie behind the trunk under the names of those that lie apart."""
    if family.mtp is not MtpPlace.BEHIND:
        return {_head_name(name, family): matrix for name, matrix in matrices.items()}
    out: dict[str, StoredMatrix] = {}
    for name, matrix in matrices.items():
        found = _LAYER.fullmatch(name)
        if found is not None and not found[1] and int(found[2]) >= n_layers:
            inner = found[3].removeprefix("transformer.")
            name = f"mtp.layers.{int(found[2]) - n_layers}.{inner}"
        out[name] = matrix
    return out


def _head_name(name: str, family: CheckpointFamily) -> str:
    return family.head_name(name) if name.startswith("mtp.") else name


def _shape(name: str, matrix: StoredMatrix, n_rows: int) -> tuple[int, ...]:
    stored = matrix.tensor.shape
    if len(stored) == 1:
        return (n_rows,)
    if name.endswith("ffn_gate_inp_shexp.weight"):  # one row
        return (matrix.n_columns,)
    is_stack = len(stored) == 3 and name.endswith("_exps.weight")
    return stored if is_stack else (n_rows, matrix.n_columns)


def _mixtral(name: str) -> str:
    """`block_sparse_moe.experts.0.w1`: gate, down, up are w1, w2, w3. LFM2 has them in
    `feed_forward`."""
    is_lfm = _LFM_EXPERT.match(name) is not None
    if not is_lfm and not name.startswith("block_sparse_moe."):
        return name
    name = "mlp." + name.partition(".")[2]
    for old, new in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        name = name.replace(f".{old}.", f".{new}.")
    return name
