"""Which stored tensors become which tensors of the GGUF file. Only names and shapes are looked at.

Names are brought to one spelling first: `model.layers.N....`, whatever a multimodal model or a
bare trunk calls them. A tensor that has no place in the file is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from .matrix_rows import Change, MatrixRows, Order, OutputTensor, StoredMatrix
from .model_config import CheckpointFamily
from .model_sizes import ModelSizes

GLOBAL: Final = MappingProxyType(
    {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
)
# Of an MTP head, beside its block.
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
IN_BLOCK: Final = MappingProxyType(
    {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{k}_proj": f"attn_{k}" for k in "qkv"},
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_b": "ssm_beta",
        "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.in_proj_ba": "ssm_ba",
        "linear_attn.conv1d": "ssm_conv1d",
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
        **{f"mlp.{k}_proj": f"ffn_{k}" for k in ("gate", "up", "down")},
        "mlp.gate": "ffn_gate_inp",
        **{f"mlp.shared_expert.{k}_proj": f"ffn_{k}_shexp" for k in ("gate", "up", "down")},
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    }
)
_EXPERT: Final = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_STACKED: Final = re.compile(r"mlp\.experts\.(gate_up|gate|up|down)_proj(\.weight)?")
_LAYER: Final = re.compile(r"(mtp\.)?layers\.(\d+)\.(.+)")


@dataclass(slots=True)
class TensorMap:
    """Filled tensor by tensor."""

    family: CheckpointFamily
    sizes: ModelSizes
    label: str
    planned: dict[str, OutputTensor] = field(default_factory=dict)
    _experts: dict[str, dict[int, StoredMatrix]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, name: str, matrix: StoredMatrix) -> None:
        """`name` in the one spelling."""
        if name in GLOBAL:
            self._put(GLOBAL[name], matrix, is_norm="norm" in name)
        elif found := _LAYER.fullmatch(name):
            block = int(found[2]) + (self.sizes.n_layers if found[1] else 0)
            if block >= self.sizes.n_blocks or (not found[1] and block >= self.sizes.n_layers):
                raise self._error(matrix, "of a layer that config.json's count does not have")
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
                raise self._error(wrong[0], f"has shape {wrong[0].tensor.shape}, unlike the others")
            parts = tuple(MatrixRows.all(experts[i]) for i in range(n))
            self._take(OutputTensor(name, (n, first.n_rows, first.n_columns), parts))
        return self.planned

    def _add_nextn(self, name: str, matrix: StoredMatrix) -> None:
        stem, _, kind = name.rpartition(".")
        if stem not in NEXTN or kind != "weight":
            raise self._error(matrix, "is of an MTP head, but has no place in one")
        for block in range(self.sizes.n_layers, self.sizes.n_blocks):
            self._put(f"blk.{block}.{NEXTN[stem]}.weight", matrix, is_norm="norm" in stem)

    def _add_in_block(self, block: str, name: str, matrix: StoredMatrix) -> None:
        name = _mixtral(name)
        if found := _EXPERT.fullmatch(name):
            self._experts[f"{block}.ffn_{found[2]}_exps.weight"][int(found[1])] = matrix
        elif found := _STACKED.fullmatch(name):
            self._add_stacked(block, found[1], matrix)
        elif name == "linear_attn.A_log":
            self._put(f"{block}.ssm_a", matrix, self._tiled(1), change=Change.NEG_EXP)
        elif name == "linear_attn.dt_bias":
            self._put(f"{block}.ssm_dt.bias", matrix, self._tiled(1))
        elif name == "linear_attn.in_proj_qkvz.weight":
            self._check_rows(matrix, 2 * (self.sizes.n_key_rows + self.sizes.n_value_rows))
            qkv, z = split_qkvz(self.sizes)
            self._put(f"{block}.attn_qkv.weight", matrix, qkv)
            self._put(f"{block}.attn_gate.weight", matrix, z)
        else:
            self._add_plain(block, name, matrix)

    def _add_plain(self, block: str, name: str, matrix: StoredMatrix) -> None:
        stem, _, kind = name.rpartition(".")
        if stem not in IN_BLOCK or kind not in ("weight", "bias"):
            raise self._no_place(matrix)
        mapped = IN_BLOCK[stem]
        if mapped == "ffn_norm" and self.family.is_hybrid:
            mapped = "post_attention_norm"
        target = f"{block}.{mapped}.{kind}"
        if mapped == "ssm_out":
            self._put(target, matrix, columns=self._tiled(self.sizes.linear_dim))
        else:
            is_norm = mapped.endswith("norm") and mapped != "ssm_norm"
            self._put(target, matrix, self._row_order(mapped, matrix), is_norm=is_norm)

    def _row_order(self, mapped: str, matrix: StoredMatrix) -> Order | None:
        sizes = self.sizes
        if self.family.architecture == "llama" and mapped in ("attn_q", "attn_k"):
            if matrix.n_rows % sizes.head_dim or sizes.head_dim % 2:
                self._check_rows(matrix, sizes.n_heads * sizes.head_dim)
            return neighbours(matrix.n_rows, sizes.head_dim)
        if not self.family.is_tiled:
            return None
        if mapped in ("attn_qkv", "ssm_conv1d"):  # (channels, 1, kernel) is (channels, kernel)
            order = tiled_behind_keys(sizes)
            self._check_rows(matrix, len(order))
            return order
        if mapped in ("attn_gate", "ssm_beta", "ssm_alpha"):
            return self._tiled(sizes.linear_dim if mapped == "attn_gate" else 1)
        return None

    def _add_stacked(self, block: str, kind: str, matrix: StoredMatrix) -> None:
        """All experts in one tensor (experts, out, in); gate and up may be one under the other."""
        shape = matrix.tensor.shape
        if len(shape) != 3 or (kind == "gate_up" and shape[1] % 2):
            raise self._error(matrix, f"has shape {shape}, which no stack of experts has")
        n, height, width = shape
        if kind != "gate_up":
            name = f"{block}.ffn_{kind}_exps.weight"
            self._take(OutputTensor(name, shape, (MatrixRows.all(matrix),)))
            return
        half = height // 2
        for offset, half_name in ((0, "gate"), (half, "up")):
            starts = [e * height + offset for e in range(n)]
            parts = tuple(MatrixRows(matrix, range(start, start + half)) for start in starts)
            name = f"{block}.ffn_{half_name}_exps.weight"
            self._take(OutputTensor(name, (n, half, width), parts))

    def _tiled(self, width: int) -> Order | None:
        return tiled(self.sizes, width) if self.family.is_tiled else None

    def _put(
        self,
        name: str,
        matrix: StoredMatrix,
        rows: Order | None = None,
        *,
        columns: Order | None = None,
        is_norm: bool = False,
        change: Change = Change.NONE,
    ) -> None:
        if rows is not None and len(rows) and matrix.n_rows <= int(rows.max()):
            raise self._error(matrix, f"has {matrix.n_rows} rows, expected {len(rows)}")
        if columns is not None and matrix.n_columns != len(columns):
            raise self._error(matrix, f"has {matrix.n_columns} columns, expected {len(columns)}")
        part = MatrixRows.all(matrix) if rows is None else MatrixRows(matrix, rows)
        if is_norm and self.family.is_hybrid:
            change = Change.PLUS_ONE
        shape: tuple[int, ...] = (len(part), matrix.n_columns)
        if len(matrix.tensor.shape) == 1:
            shape = (len(part),)
        elif name.endswith("ffn_gate_inp_shexp.weight"):  # one row
            shape = (matrix.n_columns,)
        self._take(OutputTensor(name, shape, (part,), change, columns))

    def _check_rows(self, matrix: StoredMatrix, expected: int) -> None:
        if matrix.n_rows != expected:
            raise self._error(matrix, f"has {matrix.n_rows} rows, expected {expected}")

    def _take(self, planned: OutputTensor) -> None:
        if planned.name in self.planned:
            raise ModelError(
                f"{self.label}: {planned.name} would come from two tensors, "
                f"{printable(self.planned[planned.name].source)} and {printable(planned.source)}"
            )
        self.planned[planned.name] = planned

    def _no_place(self, matrix: StoredMatrix) -> ModelError:
        return self._error(matrix, f"has no place in a GGUF file of {self.family.architecture}")

    def _error(self, matrix: StoredMatrix, what: str) -> ModelError:
        return ModelError(f"{self.label}: tensor {printable(matrix.tensor.name)} {what}")


def _mixtral(name: str) -> str:
    """`block_sparse_moe.experts.0.w1`: gate, down, up are w1, w2, w3."""
    if not name.startswith("block_sparse_moe."):
        return name
    name = "mlp." + name.removeprefix("block_sparse_moe.")
    for old, new in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        name = name.replace(f".{old}.", f".{new}.")
    return name


# Orders of rows (and of some columns) in GGUF, as indices into the checkpoint's.


def neighbours(n_rows: int, head_dim: int) -> Order:
    """The order that makes neighbours of each head's halves, for rope over (2i, 2i + 1)."""
    heads = np.arange(n_rows).reshape(-1, 2, head_dim // 2)
    return heads.swapaxes(1, 2).reshape(-1)


def tiled(sizes: ModelSizes, width: int) -> Order:
    """Value heads of `width` rows, from grouped by key head to one of each group in turn."""
    n_key, n_value = sizes.n_key_heads, sizes.n_value_heads
    heads = np.arange(n_value * width).reshape(n_key, n_value // n_key, width)
    return heads.swapaxes(0, 1).reshape(-1)


def tiled_behind_keys(sizes: ModelSizes) -> Order:
    """Queries and keys stay; the values behind them are tiled."""
    n = 2 * sizes.n_key_rows
    return np.concatenate([np.arange(n), n + tiled(sizes, sizes.linear_dim)])


def split_qkvz(sizes: ModelSizes) -> tuple[Order, Order]:
    """Rows per key head [q, k, v.., z..]: of all q, all k, all v; and of all z."""
    dim = sizes.linear_dim
    share = sizes.n_value_heads // sizes.n_key_heads * dim
    rows = np.arange(sizes.n_key_heads * (2 * dim + 2 * share)).reshape(sizes.n_key_heads, -1)
    q, k, v, z = np.split(rows, np.cumsum([dim, dim, share]), axis=1)
    return np.concatenate([part.reshape(-1) for part in (q, k, v)]), z.reshape(-1)
