"""The tower of Gemma 4: names of tensors, limits of its products, and keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....core.gguf.types import Typed, ValueType
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from .tower_layout import TowerLayout, TowerSource

if TYPE_CHECKING:
    from ...checkpoint import StoredTensor
    from .tower_layout import TowerTensors

_LIMITS: Final = ("input_min", "input_max", "output_min", "output_max")
_MERGE: Final = 3  # where a file says nothing
_ANY_SIZE: Final = 224  # llama.cpp's, where any will do


def _keys(source: TowerSource) -> dict[str, Any]:
    vision = source.vision
    eps = vision.number("rms_norm_eps", vision.get("rms_norm_eps"), 1e-6)
    keys: dict[str, Any] = {
        "vision.projector_type": "gemma4v",  # beside that of sounds, which files of both have
        "use_gelu": True,
        "vision.feed_forward_length": vision.size("intermediate_size"),
        "vision.attention.layer_norm_epsilon": Typed(ValueType.F32, eps),
        "vision.image_size": _ANY_SIZE,
        "vision.projection_dim": source.whole.size("hidden_size"),
    }
    merge = vision.size("pooling_kernel_size", default=_MERGE)
    if merge != _MERGE:
        keys["vision.projector.scale_factor"] = merge
    return keys


def _change(tensors: TowerTensors, name: str, tensor: StoredTensor) -> bool:
    stem, _, kind = name.rpartition(".")
    if name == "patch_embedder.input_proj.weight":
        _add_patches(tensors, tensor)
    elif name == "patch_embedder.position_embedding_table":
        tensors.put("v.position_embd.weight", tensor)
    elif name in ("std_bias", "std_scale"):
        tensors.put(f"v.{name}", tensor)
    elif kind in _LIMITS:
        target = tensors.block_target(stem, tensor)
        if target is None:
            raise tensors.error(tensor, "has no place in an mmproj file")
        tensors.put(f"{target}.{kind}", tensor)
    else:
        return False
    return True


def _add_patches(tensors: TowerTensors, tensor: StoredTensor) -> None:
    """Of pixels with their channels; in the file, channel by channel."""
    n_columns = tensor.shape[-1] if len(tensor.shape) == 2 else 0
    side = math.isqrt(n_columns // 3)
    if not side or 3 * side**2 != n_columns:
        raise tensors.error(
            tensor, f"has shape {tensor.shape}, which no matrix of square patches has"
        )
    columns = np.arange(n_columns).reshape(side, side, 3).transpose(2, 0, 1).reshape(-1)
    rows = MatrixRows.all(StoredMatrix(tensor))
    shape = (tensor.shape[0], 3, side, side)
    tensors.take(OutputTensor("v.patch_embd.weight", shape, (rows,), columns=columns))


GEMMA4: Final = TowerLayout(
    "a vision tower of Gemma 4",
    "gemma4v",
    activation="gelu_pytorch_tanh",
    keys=_keys,
    stems={"projector.embedding_projection": "mm.input_projection"},
    in_block={
        "input_layernorm": "ln1",
        "post_attention_layernorm": "attn_post_norm",
        "pre_feedforward_layernorm": "ln2",
        "post_feedforward_layernorm": "ffn_post_norm",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    }
    | {
        f"{name}{linear}": target
        for name, target in {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_out",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }.items()
        for linear in ("", ".linear")
    },
    prefixes={
        "model.vision_tower.": "",
        "vision_tower.": "",
        "model.embed_vision.": "projector.",
        "embed_vision.": "projector.",
    },
    change=_change,
)
