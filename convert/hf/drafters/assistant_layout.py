"""Gemma 4's assistants: a small Gemma 4 between two projections, without keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..checkpoint_family import Keys
from ..families import FAMILIES
from ..matrix_rows import OutputTensor
from ..model_sizes import ModelSizes
from .draft_layout import DraftLayout, DraftSource, Matrices

_CLUSTERS: Final = "masked_embedding."
_GEMMA4: Final = FAMILIES["gemma4"]


def _choose(source: DraftSource, matrices: Matrices) -> Matrices:
    out = {name: m for name, m in matrices.items() if not name.startswith(_CLUSTERS)}
    out.pop("lm_head.weight", None)  # the embeddings
    if len(out) < len(matrices) and source.config.get("use_ordered_embeddings") is True:
        source.notes.append(
            "its head over clusters of tokens is left out: drafts are taken from all tokens"
        )
    return out


def _keys(source: DraftSource, sizes: ModelSizes, planned: Mapping[str, OutputTensor]) -> Keys:
    return {
        "embedding_length_out": source.config.size("backbone_hidden_size"),
        "nextn_predict_layers": sizes.n_layers,
    }


ASSISTANT: Final = DraftLayout(
    "a Gemma 4 assistant",
    replace(
        _GEMMA4,
        architecture="gemma4-assistant",
        outside={
            f"{place}_projection.weight": f"nextn.{place}_projection.weight"
            for place in ("pre", "post")
        },
    ),
    _choose,
    _keys,
)
