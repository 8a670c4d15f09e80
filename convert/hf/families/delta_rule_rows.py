"""Qwen's hybrids: tensors and keys of layers with the gated delta rule.

Value heads of some families are stored in turn ("tiled"), where checkpoints group them by key head.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....core.gguf.printable import printable
from ..checkpoint_family import Keys, Orderer, TensorMap
from ..matrix_rows import Change, Order, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import softmax_router_keys

STEMS: Final = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}


def read_delta_rule(config: ModelConfig, n_layers: int, n_mtp: int) -> Keys:
    key_dim = config.size("linear_key_head_dim", default=128)
    value_dim = config.size("linear_value_head_dim", default=128)
    if key_dim != value_dim:
        raise config.error(
            f"linear_key_head_dim {key_dim} and linear_value_head_dim {value_dim} differ; GGUF has "
            "one size for both"
        )
    n_key = config.size("linear_num_key_heads", default=16)
    n_value = config.size("linear_num_value_heads", default=32)
    if n_value % n_key:
        raise config.error(f"{n_value} value heads cannot share {n_key} key heads evenly")
    return {
        "n_key_heads": n_key,
        "n_value_heads": n_value,
        "linear_dim": key_dim,
        "n_conv": config.size("linear_conv_kernel_dim", default=4),
        "recurrent": (*_recurrent_layers(config, n_layers), *(False,) * n_mtp),
    }


def _recurrent_layers(config: ModelConfig, n_layers: int) -> list[bool]:
    """Which layers are recurrent: by `layer_types`, or by the interval alone in older files."""
    kinds = config.get("layer_types")
    if kinds is None:
        interval = config.size("full_attention_interval", default=4)
        return [(i + 1) % interval != 0 for i in range(n_layers)]
    known = ("linear_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) < n_layers:
        raise config.error(f"layer_types does not name the {n_layers} layers")
    if wrong := [kind for kind in kinds[:n_layers] if kind not in known]:
        found = printable(wrong[0])
        raise config.error(f"layer_types has {found}, expected one of {', '.join(known)}")
    return [kind == known[0] for kind in kinds[:n_layers]]


def hybrid_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return softmax_router_keys(config, sizes, rope) | {
        "ssm.conv_kernel": sizes.n_conv,
        "ssm.state_size": sizes.linear_dim,
        "ssm.group_count": sizes.n_key_heads,
        "ssm.time_step_rank": sizes.n_value_heads,
        "ssm.inner_size": sizes.linear_dim * sizes.n_value_heads,
        "attention.recurrent_layers": list(sizes.recurrent),
        "full_attention_interval": config.size("full_attention_interval", default=4),
        "rope.dimension_count": rope.n_rot,
    }


# Tensors -----------------------------------------------------------------------------------------


def put_decay(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    mapping.put(f"{block}.ssm_a", matrix, change=Change.NEG_EXP)


def put_tiled_decay(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    order = tiled(mapping.sizes, 1)
    mapping.put(f"{block}.ssm_a", matrix, order, change=Change.NEG_EXP)


def put_step(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    mapping.put(f"{block}.ssm_dt.bias", matrix)


def put_tiled_step(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    mapping.put(f"{block}.ssm_dt.bias", matrix, tiled(mapping.sizes, 1))


def put_qkvz(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """Two matrices that Qwen3-Next has in one."""
    mapping.check_rows(matrix, 2 * (mapping.sizes.n_key_rows + mapping.sizes.n_value_rows))
    qkv, z = split_qkvz(mapping.sizes)
    mapping.put(f"{block}.attn_qkv.weight", matrix, qkv)
    mapping.put(f"{block}.attn_gate.weight", matrix, z)


def _tiled_of(width_of: str) -> Orderer:
    def order(mapping: TensorMap, matrix: StoredMatrix) -> Order:
        return tiled(mapping.sizes, mapping.sizes.linear_dim if width_of == "head" else 1)

    return order


def _tiled_behind_keys(mapping: TensorMap, matrix: StoredMatrix) -> Order:
    order = tiled_behind_keys(mapping.sizes)
    mapping.check_rows(matrix, len(order))
    return order


TILED_ROWS: Final[dict[str, Orderer]] = {
    "attn_qkv": _tiled_behind_keys,
    "ssm_conv1d": _tiled_behind_keys,  # (channels, 1, kernel) is (channels, kernel)
    "attn_gate": _tiled_of("head"),
    "ssm_beta": _tiled_of("number"),
    "ssm_alpha": _tiled_of("number"),
}
TILED_COLUMNS: Final[dict[str, Orderer]] = {"ssm_out": _tiled_of("head")}


# Orders of rows (and of some columns) in GGUF, as indices into the checkpoint's.


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
