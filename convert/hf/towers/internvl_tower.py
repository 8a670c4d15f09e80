"""The tower of InternVL, as `transformers` has it: names of tensors, and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ..model_config import ModelConfig
from .tower_layout import TOWER_PREFIXES, TowerLayout, TowerSource

if TYPE_CHECKING:
    from ...checkpoint import StoredTensor
    from .tower_layout import TowerTensors

_TILES: Final = {"vision.preproc_min_tiles": ("min_dynamic_patch", "min_patches"),
                 "vision.preproc_max_tiles": ("max_dynamic_patch", "max_patches")}  # fmt: skip


def _keys(source: TowerSource) -> dict[str, Any]:
    vision, whole = source.vision, source.whole
    for name, expected in {"norm_type": "layer_norm", "use_qk_norm": False}.items():
        found = vision.get(name)
        if found not in (None, expected):
            raise vision.error(f"{name} is {printable(found)}, and no such tower can be run")
    layer = whole.get("vision_feature_layer")
    if layer not in (None, -1):
        raise whole.error(f"vision_feature_layer is {printable(layer)}, expected -1")
    ratio = whole.number("downsample_ratio", whole.get("downsample_ratio"))
    if 1 / ratio % 1:
        raise whole.error(f"downsample_ratio is {ratio}, which is not one by a whole number")
    eps = vision.number("layer_norm_eps", vision.get("layer_norm_eps"), 1e-6)
    keys: dict[str, Any] = {
        "use_gelu": True,
        "vision.feed_forward_length": vision.size("intermediate_size"),
        "vision.attention.layer_norm_epsilon": Typed(ValueType.F32, eps),
        "vision.image_size": _side(vision, "image_size"),
        "vision.patch_size": _side(vision, "patch_size"),
        "vision.projection_dim": whole.size("hidden_size"),
        "vision.projector.scale_factor": int(1 / ratio),
    }
    for key, (name, of_processor) in _TILES.items():
        n = whole.get(name) or source.processor.get(of_processor)
        if type(n) is int and n > 0:
            keys[key] = n
    return keys


def _side(vision: ModelConfig, name: str) -> int:
    """Of a square, which may be given by both of its sides."""
    found = vision.get(name)
    if isinstance(found, list) and found and all(side == found[0] for side in found):
        return vision.with_one_for_all(name).size(name)
    return vision.size(name)


def _change(tensors: TowerTensors, name: str, tensor: StoredTensor) -> bool:
    stem, _, kind = name.rpartition(".")
    if name == "embeddings.cls_token":
        tensors.put_flat("v.class_embd", tensor, 1)
    elif name == "embeddings.position_embeddings":
        tensors.put_flat("v.position_embd.weight", tensor, 2)
    elif kind in ("lambda_1", "lambda_2"):
        target = tensors.block_target(f"{stem}.lambda", tensor)
        tensors.put(f"{target}{kind[-1]}.weight", tensor)
    else:
        return False
    return True


INTERNVL: Final = TowerLayout(
    "a vision tower of InternVL",
    "internvl",
    activation="gelu",
    keys=_keys,
    stems={
        "embeddings.patch_embeddings.projection": "v.patch_embd",
        "projector.layer_norm": "mm.model.mlp.0",
        "projector.linear_1": "mm.model.mlp.1",
        "projector.linear_2": "mm.model.mlp.3",
    },
    in_block={
        "layernorm_before": "ln1",
        "layernorm_after": "ln2",
        "attention.q_proj": "attn_q",
        "attention.k_proj": "attn_k",
        "attention.v_proj": "attn_v",
        "attention.projection_layer": "attn_out",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "lambda": "ls",
    },
    prefixes=TOWER_PREFIXES,
    block="encoder.layer",
    change=_change,
)
