"""Which stored tensors become which tensors of the GGUF file. Only names and shapes are looked at.

Names are brought to one spelling first: `model.layers.N....`, whatever a multimodal model or a
bare trunk calls them. What stays over has no place, and that is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from . import orders
from .families import Family
from .matrix import Change, Matrix, Order, Planned, Rows
from .sizes import Sizes

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
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
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
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "mlp.gate": "ffn_gate_inp",
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    }
)
_EXPERT: Final = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_STACKED: Final = re.compile(r"mlp\.experts\.(gate_up|gate|up|down)_proj(\.weight)?")
_LAYER: Final = re.compile(r"(mtp\.)?layers\.(\d+)\.(.+)")


@dataclass(slots=True)
class TensorMap:
    """Filled tensor by tensor."""

    family: Family
    sizes: Sizes
    label: str
    planned: dict[str, Planned] = field(default_factory=dict)
    _experts: dict[str, dict[int, Matrix]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, name: str, matrix: Matrix) -> None:
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
            raise self._error(matrix, f"has no place in a GGUF file of {self.family.architecture}")

    def finish(self) -> dict[str, Planned]:
        for name, experts in self._experts.items():
            lacking = [n for n in range(self.sizes.n_experts) if n not in experts]
            if lacking or len(experts) > self.sizes.n_experts:
                raise ModelError(
                    f"{self.label}: {name} is to be made of {self.sizes.n_experts} experts, but "
                    + (
                        f"expert {lacking[0]} is missing"
                        if lacking
                        else f"{len(experts)} are there"
                    )
                )
            parts = tuple(Rows.all(experts[n]) for n in range(self.sizes.n_experts))
            first = experts[0]
            if wrong := [m for m in experts.values() if m.tensor.shape != first.tensor.shape]:
                raise self._error(wrong[0], f"has shape {wrong[0].tensor.shape}, unlike the others")
            shape = (len(parts), first.n_rows, first.n_columns)
            self._take(Planned(name, shape, parts))
        return self.planned

    def _add_nextn(self, name: str, matrix: Matrix) -> None:
        stem, _, kind = name.rpartition(".")
        if stem not in NEXTN or kind != "weight":
            raise self._error(matrix, "is of an MTP head, but has no place in one")
        for block in range(self.sizes.n_layers, self.sizes.n_blocks):
            target = f"blk.{block}.{NEXTN[stem]}.weight"
            self._put(target, matrix, is_norm="norm" in stem)

    def _add_in_block(self, block: str, name: str, matrix: Matrix) -> None:
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
            qkv, z = orders.split_qkvz(self.sizes)
            self._put(f"{block}.attn_qkv.weight", matrix, qkv)
            self._put(f"{block}.attn_gate.weight", matrix, z)
        else:
            self._add_plain(block, name, matrix)

    def _add_plain(self, block: str, name: str, matrix: Matrix) -> None:
        stem, _, kind = name.rpartition(".")
        if stem not in IN_BLOCK or kind not in ("weight", "bias"):
            raise self._error(matrix, f"has no place in a GGUF file of {self.family.architecture}")
        mapped = IN_BLOCK[stem]
        if mapped == "ffn_norm" and self.family.is_hybrid:
            mapped = "post_attention_norm"
        target = f"{block}.{mapped}.{kind}"
        if mapped == "ssm_out":
            self._put(target, matrix, columns=self._tiled(self.sizes.linear_dim))
        elif mapped == "ssm_conv1d":
            self._put_convolution(target, matrix)
        else:
            is_norm = mapped.endswith("norm") and mapped != "ssm_norm"
            self._put(target, matrix, self._row_order(mapped, matrix), is_norm=is_norm)

    def _row_order(self, mapped: str, matrix: Matrix) -> Order | None:
        sizes = self.sizes
        if self.family.architecture == "llama" and mapped in ("attn_q", "attn_k"):
            if matrix.n_rows % sizes.head_dim or sizes.head_dim % 2:
                self._check_rows(matrix, sizes.n_heads * sizes.head_dim)
            return orders.neighbours(matrix.n_rows, sizes.head_dim)
        if not self.family.is_tiled:
            return None
        if mapped == "attn_qkv":
            self._check_rows(matrix, 2 * sizes.n_key_rows + sizes.n_value_rows)
            return orders.tiled_behind_keys(sizes)
        if mapped in ("attn_gate", "ssm_beta", "ssm_alpha"):
            return self._tiled(sizes.linear_dim if mapped == "attn_gate" else 1)
        return None

    def _put_convolution(self, name: str, matrix: Matrix) -> None:
        """(channels, 1, kernel): the same bytes as (channels, kernel)."""
        order = orders.tiled_behind_keys(self.sizes) if self.family.is_tiled else None
        if order is not None:
            self._check_rows(matrix, len(order))
        self._put(name, matrix, order)

    def _add_stacked(self, block: str, kind: str, matrix: Matrix) -> None:
        """All experts in one tensor (experts, out, in); gate and up may be one under the other."""
        shape = matrix.tensor.shape
        if len(shape) != 3 or (kind == "gate_up" and shape[1] % 2):
            raise self._error(matrix, f"has shape {shape}, which no stack of experts has")
        n, height, width = shape
        if kind != "gate_up":
            name = f"{block}.ffn_{kind}_exps.weight"
            self._take(Planned(name, shape, (Rows.all(matrix),)))
            return
        half = height // 2
        for offset, half_name in ((0, "gate"), (half, "up")):
            starts = [e * height + offset for e in range(n)]
            parts = tuple(Rows(matrix, range(start, start + half)) for start in starts)
            self._take(Planned(f"{block}.ffn_{half_name}_exps.weight", (n, half, width), parts))

    def _tiled(self, width: int) -> Order | None:
        return orders.tiled(self.sizes, width) if self.family.is_tiled else None

    def _put(
        self,
        name: str,
        matrix: Matrix,
        rows: Order | None = None,
        *,
        columns: Order | None = None,
        is_norm: bool = False,
        change: Change = Change.NONE,
    ) -> None:
        if rows is not None and name.endswith(
            ("ssm_a", "bias", "alpha.weight", "beta.weight", "attn_gate.weight")
        ):
            self._check_enough(matrix, rows)
        if columns is not None and matrix.n_columns != len(columns):
            raise self._error(matrix, f"has {matrix.n_columns} columns, expected {len(columns)}")
        part = Rows.all(matrix) if rows is None else Rows(matrix, rows)
        if is_norm and self.family.is_hybrid:
            change = Change.PLUS_ONE
        shape: tuple[int, ...] = (len(part), matrix.n_columns)
        if len(matrix.tensor.shape) == 1:
            shape = (len(part),)
        elif name.endswith("ffn_gate_inp_shexp.weight"):  # one row
            shape = (matrix.n_columns,)
        self._take(Planned(name, shape, (part,), change, columns))

    def _check_enough(self, matrix: Matrix, rows: Order) -> None:
        if matrix.n_rows <= int(rows.max()):
            raise self._error(matrix, f"has {matrix.n_rows} rows, expected {len(rows)}")

    def _check_rows(self, matrix: Matrix, expected: int) -> None:
        if matrix.n_rows != expected:
            raise self._error(matrix, f"has {matrix.n_rows} rows, expected {expected}")

    def _take(self, planned: Planned) -> None:
        if planned.name in self.planned:
            raise ModelError(
                f"{self.label}: {planned.name} would come from two tensors, "
                f"{printable(self.planned[planned.name].source)} and {printable(planned.source)}"
            )
        self.planned[planned.name] = planned

    def _error(self, matrix: Matrix, what: str) -> ModelError:
        return ModelError(f"{self.label}: tensor {printable(matrix.tensor.name)} {what}")


def _mixtral(name: str) -> str:
    """`block_sparse_moe.experts.0.w1`: gate, down, up are w1, w2, w3."""
    if not name.startswith("block_sparse_moe."):
        return name
    name = "mlp." + name.removeprefix("block_sparse_moe.")
    for old, new in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        name = name.replace(f".{old}.", f".{new}.")
    return name
