"""Tiny random models that see images, of families other than Qwen's: see `towers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from nextn.core.backend.layers import Floats
from nextn.core.vision.image_prompt import PlacedImage
from nextn.core.vision.pixels import patch_places
from nextn.core.vision.projector import PreparedImage

from .plain_hub_cases import MINISTRAL_ROPE
from .tiny_models import COMMON, DEFAULT_ROPE
from .towers import (
    BEGIN,
    CLIP_MEAN,
    CLIP_STD,
    END,
    HALF,
    PLACE,
    Config,
    Prepared,
    Tensors,
    TowerCase,
    TowerFamily,
    size_keys,
)

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
PARTS = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "attention_norm": "ln1", "ffn_norm": "ln2", "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k", "attention.v_proj": "attn_v", "attention.o_proj": "attn_out",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "layernorm_before": "ln1", "layernorm_after": "ln2", "attention.projection_layer": "attn_out",
}  # fmt: skip
SIGLIP = {
    "model.vision_model.embeddings.patch_embedding": "v.patch_embd",
    "model.vision_model.embeddings.position_embedding": "v.position_embd",
    "model.vision_model.post_layernorm": "v.post_ln",
    "model.connector.modality_projection.proj": "mm.model.fc",
}
PIXTRAL = {
    "model.vision_tower.patch_conv": "v.patch_embd",
    "model.vision_tower.ln_pre": "v.pre_ln",
    "model.multi_modal_projector.norm": "mm.input_norm",
    "model.multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    "model.multi_modal_projector.linear_1": "mm.1",
    "model.multi_modal_projector.linear_2": "mm.2",
}
INTERNVL = {
    "model.vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
    "model.multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "model.multi_modal_projector.linear_1": "mm.model.mlp.1",
    "model.multi_modal_projector.linear_2": "mm.model.mlp.3",
}
LAYERS = (
    "model.vision_model.encoder.layers.", "model.vision_tower.transformer.layers.",
    "model.vision_tower.encoder.layer.",
)  # fmt: skip


def renamed(state: dict[str, Any], stems: dict[str, str], layers: Sequence[str]) -> Tensors:
    """Tensors of a tower under the names of mmproj files; `layers`: what stands before the number
    of a block."""
    out: Tensors = {}
    for name, value in state.items():
        stem, _, kind = name.rpartition(".")
        found = stems.get(stem)
        for prefix in layers:
            if name.startswith(prefix) and kind in ("weight", "bias"):
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
        return text_model(hf, hf.model.text_model)

    def processor(self, case: TowerCase) -> Config:
        return {"size": {"longest_edge": 2 * case.vision["image_size"]}}

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
        return renamed(hf.state_dict(), SIGLIP, LAYERS)

    def keys(self, case: TowerCase, hf: Any) -> Config:
        vision = hf.config.vision_config
        return {
            "clip.use_gelu": True,
            **size_keys(vision, vision.layer_norm_eps, vision.image_size),
            "clip.vision.preproc_image_size": 2 * vision.image_size,
            "clip.vision.projector.scale_factor": hf.config.scale_factor,
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        tiles = [planes_of(tile) for prepared, _plan in images for tile in prepared]
        return {"pixel_values": torch.from_numpy(np.stack(tiles)[None])}

    def features(self, hf: Any, image: Prepared) -> Floats:
        found = hf.model.get_image_features(**self.inputs([image]), return_dict=True)
        return np.concatenate([rows.numpy() for rows in found.pooler_output])


class PixtralFamily(TowerFamily):
    """Lines end with a token in the text; in files of images, with its row."""

    ids: ClassVar[Config] = {
        "image_token_index": PLACE, "tie_word_embeddings": False, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }  # fmt: skip
    marks: ClassVar[dict[int, str]] = {BEGIN: "[IMG_BREAK]", END: "[IMG_END]", PLACE: "[IMG]"}

    def text_of(self, hf: Any) -> Any:
        return text_model(hf, hf.model.language_model)

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
        out = renamed(hf.state_dict(), PIXTRAL, LAYERS)
        n_heads = hf.config.vision_config.num_attention_heads
        for name, value in out.items():
            if ".attn_q." in name or ".attn_k." in name:  # what turns together becomes neighbours
                halves = value.reshape(n_heads, 2, -1, value.shape[1])
                out[name] = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
        return out | {"v.token_embd.img_break": self._break_row(hf)}

    def _break_row(self, hf: Any) -> Floats:
        made: Floats = hf.get_input_embeddings().weight[BEGIN].detach().numpy()
        return made

    def keys(self, case: TowerCase, hf: Any) -> Config:
        vision = hf.config.vision_config
        return {
            "clip.use_silu": True,
            **size_keys(vision, 1e-5, vision.image_size),
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        planes = [planes_of(prepared) for (prepared,), _plan in images]
        height, width = (max(each.shape[axis] for each in planes) for axis in (1, 2))
        padded = np.zeros((len(planes), 3, height, width), np.float32)
        for out, each in zip(padded, planes, strict=True):
            out[:, : each.shape[1], : each.shape[2]] = each
        sizes = torch.tensor([each.shape[1:] for each in planes])
        return {"pixel_values": torch.from_numpy(padded), "image_sizes": sizes}

    def features(self, hf: Any, image: Prepared) -> Floats:
        found = hf.model.get_image_features(
            **self.inputs([image]), vision_feature_layer=-1, return_dict=True
        )
        rows, (grid,) = found.pooler_output[0].numpy(), image[1].grids
        lines = [
            np.concatenate([line, self._break_row(hf)[None]])
            for line in np.split(rows, grid.height // grid.merge)
        ]
        made: Floats = np.concatenate(lines)[:-1]
        return made

    def tokens_of(self, image: PlacedImage) -> list[int]:
        (grid,) = image.image.plan.grids
        line = [PLACE] * grid.row_width + [BEGIN]
        return (line * (grid.height // grid.merge))[:-1]


class InternVlFamily(TowerFamily):
    ids: ClassVar[Config] = {"image_token_id": PLACE, "tie_word_embeddings": False}
    marks: ClassVar[dict[int, str]] = {BEGIN: "<img>", END: "</img>", PLACE: "<IMG_CONTEXT>"}

    def text_of(self, hf: Any) -> Any:
        return text_model(hf, hf.model.language_model)

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
        state = hf.state_dict()
        out = renamed(state, INTERNVL, LAYERS)
        whole = "model.vision_tower.embeddings."
        out["v.class_embd"] = state[f"{whole}cls_token"].numpy()[0, 0]
        out["v.position_embd.weight"] = state[f"{whole}position_embeddings"].numpy()[0]
        for i in range(hf.config.vision_config.num_hidden_layers):
            for k in (1, 2):
                scale = state[f"{LAYERS[2]}{i}.lambda_{k}"].numpy()
                out[f"v.blk.{i}.ls{k}.weight"] = scale
        return out

    def keys(self, case: TowerCase, hf: Any) -> Config:
        vision = hf.config.vision_config
        return {
            "clip.use_gelu": True,
            **size_keys(vision, vision.layer_norm_eps, vision.image_size[0]),
            "clip.vision.patch_size": vision.patch_size[0],
            "clip.vision.projector.scale_factor": 2,
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        tiles = [planes_of(tile) for prepared, _plan in images for tile in prepared]
        return {"pixel_values": torch.from_numpy(np.stack(tiles))}

    def features(self, hf: Any, image: Prepared) -> Floats:
        found = hf.model.get_image_features(**self.inputs([image]), return_dict=True)
        made: Floats = np.concatenate(list(found.pooler_output.numpy()))
        return made


def text_model(hf: Any, inner: Any) -> Any:
    """As a checkpoint of its own."""
    from transformers import AutoModelForCausalLM

    made = AutoModelForCausalLM.from_config(hf.config.text_config).float()
    made.model.load_state_dict(inner.state_dict())
    made.lm_head.load_state_dict(hf.lm_head.state_dict())
    return made


def _pixtral(patch: int) -> Config:
    return {
        "model_type": "pixtral", "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 48, "image_size": 240, "patch_size": patch,
        "hidden_act": "silu",
    }  # fmt: skip


def siglip(image_size: int, patch: int) -> Config:
    return {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "image_size": image_size, "patch_size": patch,
    }  # fmt: skip


def _text(kind: str, **more: Any) -> Config:
    own = {"model_type": kind, "num_hidden_layers": 2, "rope_parameters": DEFAULT_ROPE}
    return COMMON | own | more


def _intern() -> Config:
    own = {"image_size": [32, 32], "patch_size": [8, 8], "attention_bias": True}
    return siglip(32, 8) | own


OTHER_TOWERS = {
    "idefics3": TowerCase(
        "Idefics3", siglip(32, 8), _text("llama"), "idefics3", HALF, HALF, {},
        family=Idefics3Family(),
    ),
    # Tiles that are not of whole patches, as those of SmolVLM.
    "smolvlm": TowerCase(
        "SmolVLM", siglip(34, 8), _text("llama"), "idefics3", HALF, HALF, {},
        family=Idefics3Family(),
    ),
    "pixtral": TowerCase(
        "Llava", _pixtral(16), _text("mistral", rms_norm_eps=1e-5), "pixtral", CLIP_MEAN, CLIP_STD,
        {}, family=PixtralFamily(),
    ),
    "mistral3": TowerCase(
        "Mistral3", _pixtral(14),
        _text("ministral3", rms_norm_eps=1e-5, head_dim=32, rope_parameters=MINISTRAL_ROPE),
        "pixtral", CLIP_MEAN, CLIP_STD, {"clip.vision.spatial_merge_size": 2},
        family=PixtralFamily(),
    ),
    "internvl": TowerCase(
        "InternVL", _intern(), _text("qwen2"), "internvl", IMAGENET_MEAN, IMAGENET_STD, {},
        family=InternVlFamily(),
    ),
}  # fmt: skip
