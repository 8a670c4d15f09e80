"""MiMo V2: windows with sinks, values narrower than keys, three MTP heads.

Float8 checkpoints have queries, keys and values in one matrix, as the ranks of a parallel run held
them: the share of each rank in turn.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ....core.gguf.types import ValueType
from ..checkpoint_family import Keys, TensorMap
from ..matrix_rows import OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import f32, per_layer, router_keys
from .layer_kinds import windowed_heads, windowed_layers

QKV = "self_attn.qkv_proj.weight"
_PARTS = ("attn_q", "attn_k", "attn_v")
_SAME = (("swa_head_dim", "head_dim"), ("swa_v_head_dim", "v_head_dim"),
         ("swa_num_attention_heads", "num_attention_heads"))  # fmt: skip


def mimo_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    for own, common in _SAME:
        if config.get(own) not in (None, config.get(common)):
            raise config.error(f"{own} is {config.get(own)}, unlike {common}; GGUF has one for all")
    is_windowed = _windows(config, sizes)
    n_kv = {False: sizes.n_kv_heads, True: _windowed_kv_heads(config, sizes)}
    value_scale = config.get("attention_value_scale")
    router = router_keys(config)
    # Its readers always make the weights' sum one, and scale nothing.
    return {k: v for k, v in router.items() if not k.startswith("expert_weights")} | {
        "attention.head_count_kv": per_layer([n_kv[is_w] for is_w in is_windowed], ValueType.I32),
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": per_layer(list(map(int, is_windowed)), ValueType.I32),
        "attention.key_length": sizes.head_dim,
        "attention.value_length": config.size("v_head_dim"),
        "expert_feed_forward_length": sizes.n_ff_expert,
        "rope.dimension_count": rope.n_rot,
        "attention.value_scale": None
        if value_scale is None
        else f32(config.number("attention_value_scale", value_scale)),
    }


def _windows(config: ModelConfig, sizes: ModelSizes) -> list[bool]:
    trunk = windowed_layers(config, sizes.n_layers)
    return trunk + windowed_heads(config, sizes.n_layers, sizes.n_mtp, default=True)


def _windowed_kv_heads(config: ModelConfig, sizes: ModelSizes) -> int:
    """`transformers` knows only twice as many, and does not save their number."""
    return config.size("swa_num_key_value_heads", default=2 * sizes.n_kv_heads)


def put_qkv(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    ranks = 1 if matrix.scales is None else matrix.n_rows // matrix.scales.n_rows
    if ranks == 1:
        mapping.put(f"{block}.attn_qkv.weight", matrix)
        return
    config, sizes = mapping.config, mapping.sizes
    is_windowed = _windows(config, sizes)[int(block.removeprefix("blk."))]
    n_kv = _windowed_kv_heads(config, sizes) if is_windowed else sizes.n_kv_heads
    heights = [sizes.n_heads * sizes.head_dim, n_kv * sizes.head_dim]
    heights.append(n_kv * config.size("v_head_dim"))
    mapping.check_rows(matrix, sum(heights))
    if any(height % ranks for height in heights):
        raise mapping.error(matrix, f"does not divide into the {ranks} ranks that its scales have")
    rows = np.arange(matrix.n_rows).reshape(ranks, -1)
    bounds = np.cumsum([0, *heights]) // ranks
    order = [rows[:, first:last].reshape(-1) for first, last in pairwise(bounds)]
    mapping.put(f"{block}.attn_qkv.weight", matrix, np.concatenate(order))


def fuse_heads(mapping: TensorMap) -> None:
    """In MTP blocks llama.cpp reads queries, keys and values from one matrix only."""
    for n in range(mapping.sizes.n_layers, mapping.sizes.n_blocks):
        for kind in ("weight", "bias"):
            names = [f"blk.{n}.{part}.{kind}" for part in _PARTS]
            if not all(name in mapping.planned for name in names):
                continue
            found = [mapping.planned.pop(name) for name in names]
            parts = tuple(part for tensor in found for part in tensor.parts)
            shape = (sum(tensor.shape[0] for tensor in found), *found[0].shape[1:])
            mapping.take(OutputTensor(f"blk.{n}.attn_qkv.{kind}", shape, parts))
