"""Tiny random models that see images, of families other than Qwen's: see `towers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from nextn.core.backend.layers import Floats
from nextn.core.vision.pixels import patch_places
from nextn.core.vision.projector import PreparedImage

from .tiny_models import COMMON, DEFAULT_ROPE
from .towers import BEGIN, END, HALF, PLACE, Config, Prepared, Tensors, TowerCase, TowerFamily

PARTS = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
SIGLIP = {
    "model.vision_model.embeddings.patch_embedding": "v.patch_embd",
    "model.vision_model.embeddings.position_embedding": "v.position_embd",
    "model.vision_model.post_layernorm": "v.post_ln",
    "model.connector.modality_projection.proj": "mm.model.fc",
}
LAYERS = ("model.vision_model.encoder.layers.",)


def renamed(state: dict[str, Any], stems: dict[str, str], layers: Sequence[str]) -> Tensors:
    """Tensors of a tower under the names of mmproj files; `layers`: what stands before the number
    of a block."""
    out: Tensors = {}
    for name, value in state.items():
        stem, _, kind = name.rpartition(".")
        found = stems.get(stem)
        for prefix in layers:
            if stem.startswith(prefix):
                number, part = stem.removeprefix(prefix).split(".", 1)
                found = f"v.blk.{number}.{PARTS[part]}"
        if found is not None:
            out[f"{found}.{kind}"] = value.detach().float().numpy()
    return out


def planes_of(image: PreparedImage) -> Floats:
    """The pixels (3, height, width) that patches were cut from."""
    places, grid = patch_places(image.grid), image.grid
    side = round((image.patches.shape[1] // 3) ** 0.5)
    out = np.empty((3, grid.height, side, grid.width, side), np.float32)
    for (line, column), patch in zip(places, image.patches, strict=True):
        out[:, line, :, column] = patch.reshape(3, side, side)
    return out.reshape(3, grid.height * side, grid.width * side)


class Idefics3Family(TowerFamily):
    ids: ClassVar[Config] = {
        "image_token_id": PLACE, "tie_word_embeddings": False, "scale_factor": 2,
    }  # fmt: skip
    # Lines and columns of tiles are tokens of some models, and text for others. llama.cpp needs a
    # token for an empty line.
    marks: ClassVar[dict[int, str]] = {
        BEGIN: "<fake_token_around_image>", END: "<global-img>", PLACE: "<image>",
        503: "<row_1_col_1>", 504: "<row_1_col_2>", 505: "<row_2_col_1>", 506: "\n\n",
    }  # fmt: skip

    def text_of(self, hf: Any) -> Any:
        from transformers import LlamaForCausalLM

        made = LlamaForCausalLM(hf.config.text_config).float()
        made.model.load_state_dict(hf.model.text_model.state_dict())
        made.lm_head.load_state_dict(hf.lm_head.state_dict())
        return made

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
        return renamed(hf.state_dict(), SIGLIP, LAYERS)

    def keys(self, case: TowerCase, hf: Any) -> Config:
        vision = hf.config.vision_config
        return {
            "clip.use_gelu": True,
            "clip.vision.embedding_length": vision.hidden_size,
            "clip.vision.feed_forward_length": vision.intermediate_size,
            "clip.vision.block_count": vision.num_hidden_layers,
            "clip.vision.attention.head_count": vision.num_attention_heads,
            "clip.vision.attention.layer_norm_epsilon": vision.layer_norm_eps,
            "clip.vision.image_size": vision.image_size,
            "clip.vision.preproc_image_size": 2 * vision.image_size,
            "clip.vision.projector.scale_factor": hf.config.scale_factor,
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        tiles = [planes_of(tile) for prepared, _plan in images for tile in prepared]
        return {"pixel_values": torch.from_numpy(np.stack(tiles)[None])}

    def features(self, hf: Any, image: Prepared) -> Floats:
        found = hf.model.get_image_features(**self.inputs([image]), return_dict=True)
        return np.concatenate([rows.numpy() for rows in found.pooler_output])


def _siglip(image_size: int, patch: int) -> Config:
    return {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "image_size": image_size, "patch_size": patch,
    }  # fmt: skip


def _text(kind: str, **more: Any) -> Config:
    own = {"model_type": kind, "num_hidden_layers": 2, "rope_parameters": DEFAULT_ROPE}
    return COMMON | own | more


OTHER_TOWERS = {
    "idefics3": TowerCase(
        "Idefics3", _siglip(32, 8), _text("llama"), "idefics3", HALF, HALF, {},
        family=Idefics3Family(),
    ),
    # Tiles that are not of whole patches, as those of SmolVLM.
    "smolvlm": TowerCase(
        "SmolVLM", _siglip(34, 8), _text("llama"), "idefics3", HALF, HALF, {},
        family=Idefics3Family(),
    ),
}  # fmt: skip
