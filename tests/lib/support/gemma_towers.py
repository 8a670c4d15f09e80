"""Tiny random models of Gemma that see images: see `towers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from nextn.core.backend.layers import Floats

from .other_towers import SIGLIP, planes_of, renamed, siglip, text_model
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
)

SIDE, ROWS = 96, 36  # pixels of an image, and its rows
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
            "clip.vision.embedding_length": vision.hidden_size,
            "clip.vision.feed_forward_length": vision.intermediate_size,
            "clip.vision.block_count": vision.num_hidden_layers,
            "clip.vision.attention.head_count": vision.num_attention_heads,
            "clip.vision.attention.layer_norm_epsilon": vision.layer_norm_eps,
            "clip.vision.image_size": vision.image_size,
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


GEMMA_TOWERS = {
    "gemma3": TowerCase(
        "Gemma3", siglip(SIDE, 8),
        COMMON | {
            "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16,
            "sliding_window": 8, "tie_word_embeddings": True,
        },
        "gemma3", HALF, HALF, {}, family=Gemma3Family(),
    ),
}  # fmt: skip
