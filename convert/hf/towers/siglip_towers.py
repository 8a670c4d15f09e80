"""The towers of Gemma 3, Idefics3 and SmolVLM, all SigLIP: names of tensors, and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ....core.gguf.types import Typed, ValueType
from ..matrix_rows import Change
from .tower_layout import TOWER_PREFIXES, TowerLayout, TowerSource

if TYPE_CHECKING:
    from ...checkpoint import StoredTensor
    from .tower_layout import TowerTensors

_ACTIVATION: Final = "gelu_pytorch_tanh"
_STEMS: Final = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
}
_IN_BLOCK: Final = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
# As llama.cpp has them.
_EXACT: Final = ("v.patch_embd.weight",)
_GEMMA_MERGE: Final = 4  # where a file says nothing
_IDEFICS_PREFIXES: Final = {
    "model.vision_model.": "",
    "vision_model.": "",
    "model.connector.modality_projection.": "projector.",
    "connector.modality_projection.": "projector.",
}


def _common(source: TowerSource) -> dict[str, Any]:
    vision = source.vision
    eps = vision.number("layer_norm_eps", vision.get("layer_norm_eps"), 1e-6)
    return {
        "use_gelu": True,
        "vision.feed_forward_length": vision.size("intermediate_size"),
        "vision.attention.layer_norm_epsilon": Typed(ValueType.F32, eps),
        "vision.image_size": vision.size("image_size"),
        "vision.projection_dim": source.whole.size("hidden_size"),
    }


def _gemma_keys(source: TowerSource) -> dict[str, Any]:
    vision, keys = source.vision, _common(source)
    n_rows = source.whole.size("mm_tokens_per_image", default=256)
    n_patches = vision.size("image_size") // vision.size("patch_size")
    side = math.isqrt(n_rows)
    if side**2 != n_rows or not n_patches or n_patches % side:
        raise source.whole.error(
            f"mm_tokens_per_image is {n_rows}, which squares of {n_patches} x {n_patches} patches "
            "do not come to"
        )
    merge = n_patches // side
    if merge != _GEMMA_MERGE:
        keys["vision.projector.scale_factor"] = merge
    return keys


def _change_gemma(tensors: TowerTensors, name: str, tensor: StoredTensor) -> bool:
    if name == "projector.mm_soft_emb_norm.weight":
        tensors.put("mm.soft_emb_norm.weight", tensor, change=Change.PLUS_ONE)
    elif name == "projector.mm_input_projection_weight":
        tensors.put("mm.input_projection.weight", tensor)
    else:
        return name.startswith("head.")  # which makes one row of a whole image
    return True


def _idefics_keys(source: TowerSource) -> dict[str, Any]:
    size, side = source.processor.get("size"), source.vision.size("image_size")
    longest = size.get("longest_edge") if isinstance(size, Mapping) else None
    if longest is not None and (type(longest) is not int or longest < 1):
        raise source.vision.error(f"the processor's size.longest_edge is {longest!r}, not a size")
    return _common(source) | {
        "vision.projector.scale_factor": source.whole.size("scale_factor", default=2),
        "vision.preproc_image_size": longest or side,
    }


GEMMA3: Final = TowerLayout(
    "a vision tower of Gemma 3",
    "gemma3",
    activation=_ACTIVATION,
    keys=_gemma_keys,
    stems=_STEMS,
    in_block=_IN_BLOCK,
    prefixes=TOWER_PREFIXES,
    change=_change_gemma,
    exact=_EXACT,
    halves=("mm.input_projection.weight",),
)
IDEFICS3: Final = TowerLayout(
    "a vision tower of Idefics3 or SmolVLM",
    "idefics3",
    activation=_ACTIVATION,
    keys=_idefics_keys,
    stems=_STEMS | {"projector.proj": "mm.model.fc"},
    in_block=_IN_BLOCK,
    prefixes=_IDEFICS_PREFIXES,
    # As of the authors' class: files of SmolVLM leave most of them out.
    defaults={
        "hidden_size": 1152,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 32,
    },
    exact=_EXACT,
)
