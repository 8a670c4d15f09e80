"""Qwen's towers: names of tensors, and what of config.json becomes a key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from .tower_layout import TowerLayout, TowerSource

if TYPE_CHECKING:
    from ...checkpoint import StoredTensor
    from .tower_layout import TowerTensors

FRAMES: Final = 2  # of a film, that one patch covers
_EPS: Final = 1e-6  # of all norms, in the authors' code
_PREFIXES: Final = {"model.visual.": "", "visual.": ""}
_PATCHES: Final = {"patch_embed.proj": "v.patch_embd"}
_USUAL_IMAGE: Final = 560  # llama.cpp's, where any size will do
_BLOCK: Final = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out", "attn.qkv": "attn_qkv"}
_MERGER: Final = {"merger.ln_q": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2"}


def _common(source: TowerSource, out: str) -> dict[str, Any]:
    vision = source.vision
    if vision.size("temporal_patch_size", default=FRAMES) != FRAMES:
        raise vision.error("temporal_patch_size is not 2, and mmproj files have two kernels")
    return {
        "vision.attention.layer_norm_epsilon": Typed(ValueType.F32, _EPS),
        "vision.projection_dim": vision.size(out),
        "vision.spatial_merge_size": vision.size("spatial_merge_size", default=2),
    }


def _patches(tensors: TowerTensors, name: str, tensor: StoredTensor) -> bool:
    """The kernels of both frames apart."""
    if name != "patch_embed.proj.weight":
        return False
    if len(tensor.shape) != 5 or tensor.shape[2] != FRAMES:
        raise tensors.error(tensor, f"has shape {tensor.shape}, which no kernel of patches has")
    n, channels, _, height, width = tensor.shape
    rows = StoredMatrix(replace(tensor, shape=(n * channels * FRAMES, height * width)))
    for frame, target in enumerate(("v.patch_embd.weight", "v.patch_embd.weight.1")):
        part = MatrixRows(rows, np.arange(frame, rows.n_rows, FRAMES))
        tensors.take(OutputTensor(target, (n, channels, height, width), (part,)))
    return True


def _qwen2_keys(source: TowerSource) -> dict[str, Any]:
    vision = source.vision
    ratio = vision.number("mlp_ratio", vision.get("mlp_ratio"), 4)
    return {
        **_common(source, "hidden_size"),
        "vision.feed_forward_length": int(vision.size("embed_dim") * ratio),
        "vision.image_size": _USUAL_IMAGE,
    }


def _qwen25_keys(source: TowerSource) -> dict[str, Any]:
    vision = source.vision
    return {
        **_common(source, "out_hidden_size"),
        "use_silu": True,
        "vision.feed_forward_length": vision.size("intermediate_size"),
        "vision.image_size": _USUAL_IMAGE,
        "vision.n_wa_pattern": _pattern(vision),
        "vision.window_size": vision.size("window_size", default=112),
    }


def _pattern(vision: ModelConfig) -> int:
    """Every n-th layer sees all patches: the file has no word for anything else."""
    n_layers, full = vision.size("depth"), vision.get("fullatt_block_indexes")
    given = list(full) if isinstance(full, list | tuple) else []
    first = given[0] + 1 if given and type(given[0]) is int else 0
    if first < 1 or given != [i for i in range(n_layers) if (i + 1) % first == 0]:
        raise vision.error(
            f"fullatt_block_indexes is {printable(full)}, which is not every n-th of {n_layers} "
            "layers"
        )
    return first


def _qwen3_keys(source: TowerSource) -> dict[str, Any]:
    vision = source.vision
    n = vision.size("num_position_embeddings")
    side = math.isqrt(n)
    if side**2 != n:
        raise vision.error(f"num_position_embeddings is {n}, which is no square")
    layers = _deepstack(source)
    marked = [layer in layers for layer in range(vision.size("depth"))]
    return {
        **_common(source, "out_hidden_size"),
        "use_gelu": True,
        "vision.feed_forward_length": vision.size("intermediate_size"),
        "vision.image_size": side * vision.size("patch_size"),
        "vision.is_deepstack_layers": Typed(ValueType.ARRAY, marked, ValueType.BOOL),
    }


def _deepstack(source: TowerSource) -> list[int]:
    """Layers of the tower whose rows go to layers of the text model."""
    vision = source.vision
    found = vision.get("deepstack_visual_indexes") or []
    n_layers = vision.size("depth")
    if not isinstance(found, list | tuple) or not all(
        type(layer) is int and 0 <= layer < n_layers for layer in found
    ):
        raise vision.error(f"deepstack_visual_indexes is {printable(found)}, not a list of layers")
    if list(found) != sorted(set(found)):
        raise vision.error(f"deepstack_visual_indexes is {printable(found)}, not in order")
    return list(found)


QWEN2_VL: Final = TowerLayout(
    "a vision tower of Qwen2-VL",
    "qwen2vl_merger",
    width="embed_dim",
    activation="quick_gelu",
    keys=_qwen2_keys,
    stems=_MERGER | _PATCHES,
    in_block=_BLOCK | {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    prefixes=_PREFIXES,
    block="blocks",
    depth="depth",
    heads="num_heads",
    change=_patches,
    splits_qkv=True,
)
QWEN25_VL: Final = TowerLayout(
    "a vision tower of Qwen2.5-VL",
    "qwen2.5vl_merger",
    activation="silu",
    keys=_qwen25_keys,
    stems=_MERGER | _PATCHES,
    in_block=_BLOCK
    | {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    prefixes=_PREFIXES,
    block="blocks",
    depth="depth",
    heads="num_heads",
    change=_patches,
    splits_qkv=True,
)
QWEN3_VL: Final = TowerLayout(
    "a vision tower of Qwen3-VL or Qwen 3.5",
    "qwen3vl_merger",
    activation="gelu_pytorch_tanh",
    keys=_qwen3_keys,
    stems=_PATCHES
    | {
        "merger.norm": "v.post_ln",
        "merger.linear_fc1": "mm.0",
        "merger.linear_fc2": "mm.2",
        "pos_embed": "v.position_embd",
        "deepstack_merger_list.{}.norm": "v.deepstack.{}.norm",
        "deepstack_merger_list.{}.linear_fc1": "v.deepstack.{}.fc1",
        "deepstack_merger_list.{}.linear_fc2": "v.deepstack.{}.fc2",
    },
    in_block=_BLOCK | {"mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"},
    prefixes=_PREFIXES,
    block="blocks",
    depth="depth",
    heads="num_heads",
    change=_patches,
    deepstack_layers=_deepstack,
)
