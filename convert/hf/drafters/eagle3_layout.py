"""EAGLE3: as SpecForge, SGLang, NVIDIA's tools and `speculators` save it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...drafters.eagle3_file import N_FEATURES
from ..checkpoint_family import CheckpointFamily, Keys
from ..families.layer_kinds import WINDOWED
from ..families.rotated_rows import heads_as_neighbours, llama_keys
from ..matrix_rows import OutputTensor
from ..model_sizes import ModelSizes
from .draft_layout import DraftLayout, DraftSource, Matrices, flag, int32s, layer_ids

_LAYER: Final = "midlayer."
_IDS: Final = "eagle_aux_hidden_state_layer_ids"


def _choose(source: DraftSource, matrices: Matrices) -> Matrices:
    config = source.config
    if (n := config.size("num_hidden_layers")) != 1:
        raise config.error(f"num_hidden_layers is {n}; GGUF's EAGLE3 has one layer")
    is_normed_apart = any(name.startswith("fc_norm.") for name in matrices)
    if is_normed_apart or flag(config, "fc_norm"):
        raise ModelError(
            f"{config.label}: each layer's rows have a norm of their own (fc_norm), for which "
            "GGUF's EAGLE3 has no tensors: its one norm is over all of them"
        )
    if "speculators_model_type" in source.raw and flag(config, "norm_output"):
        raise config.error(
            "norm_output is true: drafted rows are handed on behind the last norm, before which "
            "GGUF's EAGLE3 takes them"
        )
    kinds = config.get("layer_types")
    if config.get("sliding_window") and isinstance(kinds, list) and WINDOWED in kinds:
        source.notes.append("its sliding window has no key in GGUF: what is further back is seen")
    return {
        f"layers.0.{name.removeprefix(_LAYER)}" if name.startswith(_LAYER) else name: matrix
        for name, matrix in matrices.items()
    }


def _keys(source: DraftSource, sizes: ModelSizes, planned: Mapping[str, OutputTensor]) -> Keys:
    config = source.config
    return {
        "target_layers": int32s(_target_layers(source)),
        "target_hidden_size": config.size(
            "target_hidden_size", default=_usual_width(source, planned)
        ),
        "norm_before_residual": bool(flag(config, "norm_before_residual")),
        "norm_before_fc": bool(flag(config, "norm_before_fc")),
    }


def _usual_width(source: DraftSource, planned: Mapping[str, OutputTensor]) -> int:
    """Of the target's rows, where config.json does not say."""
    fc = planned.get("fc.weight")
    if fc is not None and not fc.shape[-1] % N_FEATURES:
        return fc.shape[-1] // N_FEATURES
    return source.config.size("hidden_size")


def _target_layers(source: DraftSource) -> list[int]:
    """Two conventions: vLLM's key names the layers whose inputs are read, SGLang's, which is in a
    part of its own, those whose outputs are."""
    config, target = source.config, source.target
    if (found := source.raw.get(_IDS)) is not None:
        return layer_ids(config, _IDS, found, offset=0)
    nested: Any = source.raw.get("eagle_config")
    found = nested.get(_IDS) if isinstance(nested, Mapping) else None
    if found:
        return layer_ids(config, f"eagle_config.{_IDS}", found, offset=1)
    if target is None:
        raise ModelError(
            f"{config.label}: config.json does not name the layers that it reads ({_IDS}); their "
            f"usual places depend on the target's layers: give --target-model-dir"
        )
    n = target.sizes.n_layers
    if n < N_FEATURES + 2:
        raise ModelError(
            f"{target.sizes.label} has {printable(n)} layers, too few for the three that an EAGLE3 "
            "drafter reads"
        )
    return [2, n // 2, n - 3]


EAGLE3: Final = DraftLayout(
    "an EAGLE3 drafter",
    CheckpointFamily(
        "eagle3",
        stems={"hidden_norm": "attn_norm_2"},
        outside={"fc.weight": "fc.weight", "input_norm.weight": "enc.output_norm.weight"},
        orders=dict.fromkeys(("attn_q", "attn_k"), heads_as_neighbours),
        keys=llama_keys,
    ),
    _choose,
    _keys,
)
