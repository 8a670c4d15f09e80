"""Tiny random models of Gemma that see images: see `towers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from nextn.core.backend.layers import Floats
from nextn.core.vision.pixels import patch_places

from .other_towers import SIGLIP, planes_of, renamed, siglip, text_model
from .tiny_gemma import GEMMAS
from .tiny_models import COMMON
from .towers import (
    BEGIN,
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

SIDE, ROWS = 96, 36  # pixels of an image, and its rows
PARTS4 = {
    "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_TOWER = "model.vision_tower."
_PROJECTOR = "model.multi_modal_projector."


class Gemma3Family(TowerFamily):
    ids: ClassVar[Config] = {
        "image_token_id": PLACE, "boi_token_id": BEGIN, "eoi_token_id": END,
        "mm_tokens_per_image": ROWS,
    }  # fmt: skip
    marks: ClassVar[dict[int, str]] = {
        BEGIN: "<start_of_image>", END: "<end_of_image>", PLACE: "<image_soft_token>",
    }  # fmt: skip

    def text_of(self, hf: Any) -> Any:
        return text_model(hf, hf.model.language_model)

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
        state = hf.state_dict()
        inner = {f"model.vision_model.{name.removeprefix(_TOWER)}": each
                 for name, each in state.items() if name.startswith(_TOWER)}  # fmt: skip
        out = renamed(inner, SIGLIP, ["model.vision_model.encoder.layers."])
        norm = state[f"{_PROJECTOR}mm_soft_emb_norm.weight"].numpy()
        out["mm.soft_emb_norm.weight"] = norm + np.float32(1)
        projection = state[f"{_PROJECTOR}mm_input_projection_weight"].numpy()
        return out | {"mm.input_projection.weight": projection}

    def keys(self, case: TowerCase, hf: Any) -> Config:
        vision = hf.config.vision_config
        return {
            "clip.use_gelu": True,
            **size_keys(vision, vision.layer_norm_eps, vision.image_size),
            "clip.vision.projector.scale_factor": 2,
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        planes = [planes_of(prepared) for (prepared,), _plan in images]
        return {"pixel_values": torch.from_numpy(np.stack(planes))}

    def features(self, hf: Any, image: Prepared) -> Floats:
        found = hf.model.get_image_features(**self.inputs([image]), return_dict=True)
        made: Floats = found.pooler_output.numpy()[0]
        return made

    def logits(self, hf: Any, tokens: list[int], images: Sequence[Prepared]) -> Floats:
        ids = torch.tensor([tokens])
        kinds = (ids == PLACE).long()
        found = hf(input_ids=ids, token_type_ids=kinds, **self.inputs(images))
        made: Floats = found.logits[0].numpy()
        return made


class Gemma4Family(TowerFamily):
    ids: ClassVar[Config] = {
        "image_token_id": PLACE, "boi_token_id": BEGIN, "eoi_token_id": END, "audio_config": None,
        "tie_word_embeddings": True,
    }  # fmt: skip
    marks: ClassVar[dict[int, str]] = {BEGIN: "<|image>", END: "<image|>", PLACE: "<|image|>"}

    def adjust(self, hf: Any) -> None:
        """Scores are not divided by anything, and the head is the table of embeddings: attention
        and the cap of logits would magnify every error."""
        with torch.no_grad():
            for name, value in hf.named_parameters():
                if name.endswith("q_norm.weight"):
                    value *= len(value) ** -0.5
                elif name.endswith("embed_tokens.weight"):
                    value *= 0.15

    def text_of(self, hf: Any) -> Any:
        return text_model(hf, hf.model.language_model)

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
        out: Tensors = {}
        for full, value in hf.state_dict().items():
            name, array = full.removeprefix(_TOWER), value.float().numpy()
            if full == "model.embed_vision.embedding_projection.weight":
                out["mm.input_projection.weight"] = array
            elif name == "patch_embedder.input_proj.weight":  # of pixels with their channels
                side = hf.config.vision_config.patch_size
                out["v.patch_embd.weight"] = (
                    array.reshape(-1, side, side, 3).transpose(0, 3, 1, 2).copy()
                )
            elif name == "patch_embedder.position_embedding_table":
                out["v.position_embd.weight"] = array
            elif name in ("std_bias", "std_scale"):
                out[f"v.{name}"] = array
            elif name.startswith("encoder.layers."):
                number, part = name.removeprefix("encoder.layers.").split(".", 1)
                stem, _, kind = part.replace(".linear.", ".").rpartition(".")
                out[f"v.blk.{number}.{PARTS4[stem]}.{kind}"] = np.atleast_1d(array)
        return out

    def keys(self, case: TowerCase, hf: Any) -> Config:
        vision = hf.config.vision_config
        return {
            "clip.use_gelu": True,
            **size_keys(vision, vision.rms_norm_eps, 224),
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        """Patches line by line, pixels with their channels; those that are missing at -1."""
        most = max(len(prepared.patches) for (prepared,), _plan in images)
        pixels, places = [], []
        for (prepared,), _plan in images:
            at = patch_places(prepared.grid)
            order, n = np.lexsort((at[:, 1], at[:, 0])), len(at)
            flat = prepared.patches[order].reshape(n, 3, -1).transpose(0, 2, 1).reshape(n, -1)
            pixels.append(np.pad(flat, ((0, most - n), (0, 0))))
            places.append(np.pad(at[order, ::-1], ((0, most - n), (0, 0)), constant_values=-1))
        return {
            "pixel_values": torch.from_numpy(np.stack(pixels)),
            "image_position_ids": torch.from_numpy(np.stack(places)),
        }

    def features(self, hf: Any, image: Prepared) -> Floats:
        found = hf.model.get_image_features(**self.inputs([image]), return_dict=True)
        made: Floats = found.pooler_output[0].numpy()
        return made

    def logits(self, hf: Any, tokens: list[int], images: Sequence[Prepared]) -> Floats:
        ids = torch.tensor([tokens])
        kinds = (ids == PLACE).long()
        found = hf(input_ids=ids, mm_token_type_ids=kinds, **self.inputs(images))
        made: Floats = found.logits[0].numpy()
        return made


def _gemma4(kind: str, **more: Any) -> TowerCase:
    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "patch_size": 8,
        "position_embedding_size": 96,
    }  # fmt: skip
    text = COMMON | GEMMAS[kind].settings | {"pad_token_id": 0}
    own = {"use_bidirectional_attention": "vision" if kind == "gemma4" else None}
    return TowerCase(
        "Gemma4", vision | more, text | own, "gemma4v", [0.0] * 3, [1.0] * 3,
        {"clip.projector_type": None, "clip.vision.projector_type": "gemma4v"},
        family=Gemma4Family(),
    )  # fmt: skip


GEMMA_TOWERS = {
    "gemma3": TowerCase(
        "Gemma3", siglip(SIDE, 8),
        COMMON | {
            "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16,
            "sliding_window": 8, "tie_word_embeddings": True,
        },
        "gemma3", HALF, HALF, {}, family=Gemma3Family(),
    ),
    "gemma4": _gemma4("gemma4"),
    "gemma4-inputs": _gemma4("gemma4-inputs", standardize=True, use_clipped_linears=True),
}  # fmt: skip
