"""EAGLE3 and EAGLE-3.1: as SpecForge, SGLang, NVIDIA's tools, AngelSlim, DeepSpec and
`speculators` save it.

Switches lie at the top of config.json or in its part `eagle_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...heads.family_table import MLA
from ..checkpoint_family import CheckpointFamily, Keys, TensorMap
from ..families.latent_rows import (
    KV_B,
    latent_attention_keys,
    put_latent_keys_and_values,
    read_latent_sizes,
)
from ..families.layer_kinds import windowed_layers
from ..families.rotated_rows import heads_as_neighbours, llama_keys, neighbours
from ..matrix_rows import Order, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeTraits
from .draft_layout import DraftLayout, DraftSource, Matrices, flag, int32s, layer_ids

_LAYER: Final = re.compile(r"midlayer\.(?:(\d+)\.)?(.+)")
_PART: Final = "eagle_config"
_ENTERED: Final = "eagle_aux_hidden_state_layer_ids"  # in `_PART`: layers that are left
_LEFT: Final = ("aux_hidden_states_layer_ids", "target_layer_ids")  # of AngelSlim, of DeepSpec
_MOST_TAPS: Final = 8
_USUAL_TAPS: Final = 3


def _choose(source: DraftSource, matrices: Matrices) -> Matrices:
    config = source.config
    if _switch(source, "use_aux_hidden_state") is False:
        raise config.error(
            "use_aux_hidden_state is false: it reads the target's last row alone, without a matrix "
            "fc, for which GGUF's EAGLE3 has no form"
        )
    if _switch(source, "next_layer_regular") is False:
        raise config.error(
            "next_layer_regular is false: all its layers read embeddings, of GGUF's EAGLE3 the "
            "first alone"
        )
    out: Matrices = {}
    for name, matrix in matrices.items():
        if found := _LAYER.fullmatch(name):
            name = f"layers.{found[1] or 0}.{found[2]}"
        out[name] = matrix
    for n in range(1, config.size("num_hidden_layers")):
        # The norm before a further layer's attention has either name.
        name = f"layers.{n}.hidden_norm.weight"
        if name in out:
            out.setdefault(f"layers.{n}.input_layernorm.weight", out.pop(name))
    return out


def _switch(source: DraftSource, *names: str) -> bool | None:
    """The first that is set, at the top or in the part of its own; None for none."""
    inner = source.raw.get(_PART)
    part = ModelConfig(source.config.label, inner if isinstance(inner, Mapping) else {})
    found = [flag(config, name) for config in (source.config, part) for name in names]
    return next((value for value in found if value is not None), None)


def _keys(source: DraftSource, sizes: ModelSizes, planned: Mapping[str, OutputTensor]) -> Keys:
    config, layers = source.config, _target_layers(source, planned)
    usual_width = _usual_width(source, planned, len(layers))
    return {
        "target_layers": int32s(layers),
        "target_hidden_size": config.size("target_hidden_size", default=usual_width),
        "norm_before_residual": bool(flag(config, "norm_before_residual")),
        "norm_before_fc": bool(_switch(source, "norm_before_fc")),
        # These are written where they are true: llama.cpp does not know them.
        "fc_norm": "fc_norm.0.weight" in planned or _switch(source, "fc_norm") or None,
        **_fed_rows(source),
        **_windows(config, sizes),
    }


def _fed_rows(source: DraftSource) -> Keys:
    """Whether drafted rows go on behind the last norm."""
    names = ("norm_output", "return_hidden_post_norm")
    if not _switch(source, *names):
        return {}
    if "speculators_model_type" in source.raw or _switch(source, names[1]):
        return {"norm_output": True}
    source.notes.append(
        "norm_output is true: SpecForge before September 2026 meant by it the head alone, later "
        "also what drafted rows go on from; the first run measures which drafts better"
    )
    return {"norm_output_unsure": True}


def _windows(config: ModelConfig, sizes: ModelSizes) -> Keys:
    if not config.get("sliding_window") or config.get("layer_types") is None:
        return {}
    pattern = windowed_layers(config, sizes.n_layers)
    if not any(pattern):
        return {}
    return {
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": pattern,
    }


def _usual_width(source: DraftSource, planned: Mapping[str, OutputTensor], n_taps: int) -> int:
    """Of the target's rows, where config.json does not say."""
    fc = planned.get("fc.weight")
    if fc is not None and not fc.shape[-1] % n_taps:
        return fc.shape[-1] // n_taps
    return source.config.size("hidden_size")


def _target_layers(source: DraftSource, planned: Mapping[str, OutputTensor]) -> list[int]:
    """Conventions: the key at the top names the layers whose inputs are read (vLLM), the same key
    in a part of its own, and the others', those whose outputs are."""
    config, target = source.config, source.target
    if (found := source.raw.get(_ENTERED)) is not None:
        return layer_ids(config, _ENTERED, found, offset=0)
    nested: Any = source.raw.get(_PART)
    inner = nested if isinstance(nested, Mapping) else {}
    for prefix, part in (("", source.raw), (f"{_PART}.", inner)):
        for name in _LEFT if part is source.raw else (_ENTERED, *_LEFT):
            if found := part.get(name):
                return layer_ids(config, prefix + name, found, offset=1)
    if target is None:
        raise ModelError(
            f"{config.label}: config.json does not name the layers that it reads ({_ENTERED}); "
            f"their usual places depend on the target's layers: give --target-model-dir"
        )
    n = target.sizes.n_layers
    if n < _USUAL_TAPS + 2:
        raise ModelError(
            f"{target.sizes.label} has {printable(n)} layers, too few for the three that an EAGLE3 "
            "drafter reads"
        )
    return [2, n // 2, n - 3]


def _norms_as_neighbours(mapping: TensorMap, matrix: StoredMatrix) -> Order:
    """As the rows of the heads that they norm."""
    head = mapping.sizes.head_dim
    mapping.check_rows(matrix, head)
    return neighbours(matrix.n_rows, head)


_OUTSIDE: Final = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    **{f"fc_norm.{i}.weight": f"fc_norm.{i}.weight" for i in range(_MOST_TAPS)},
}
_STEMS: Final = {"hidden_norm": "attn_norm_2"}
EAGLE3: Final = DraftLayout(
    "an EAGLE3 drafter",
    CheckpointFamily(
        "eagle3",
        stems=_STEMS,
        outside=_OUTSIDE,
        orders={
            **dict.fromkeys(("attn_q", "attn_k"), heads_as_neighbours),
            **dict.fromkeys(("attn_q_norm", "attn_k_norm"), _norms_as_neighbours),
        },
        keys=llama_keys,
    ),
    _choose,
    _keys,
)
# For models of DeepSeek and Kimi, by NVIDIA's tools.
EAGLE3_LATENT: Final = DraftLayout(
    EAGLE3.words,
    CheckpointFamily(
        "eagle3",
        rope=RopeTraits(has_log_multiplier=True),
        stems=MLA | _STEMS,
        outside=_OUTSIDE,
        planners={KV_B: put_latent_keys_and_values},
        sizes=read_latent_sizes,
        keys=lambda config, sizes, rope: latent_attention_keys(config, sizes),
    ),
    _choose,
    _keys,
)
