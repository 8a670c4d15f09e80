"""DFlash, DFlash2 and DSpark: as z-lab, SpecForge, DeepSpec, `speculators` and `transformers` save
them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ...checkpoint.safetensors import Floats
from ...drafters.dflash_file import MARKOV, USUAL_BLOCK
from ..checkpoint_family import CheckpointFamily, Keys, TensorMap
from ..families.gemma_rows import NORMS, global_head_dim, proportional_factors
from ..families.layer_kinds import windowed_layers
from ..matrix_rows import MatrixRows, Order, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting, RopeTraits
from .draft_layout import (
    DraftLayout,
    DraftSource,
    Matrices,
    flag,
    int32s,
    layer_ids,
    optional_float,
)

_CONFIDENCE: Final = ("confidence_head.proj.", "confidence_proj.")
_OUTSIDE: Final = {
    "fc.weight": "fc.weight",
    "encoder.fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "encoder.output_norm_enc.weight": "enc.output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    **{f"{name}{end}": f"conf_proj.{end}" for name in _CONFIDENCE for end in ("weight", "bias")},
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.predecessor_codebook.weight": "selector_predecessor.weight",
    "candidate_selector.successor_codebook.weight": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
_STEMS: Final = {
    "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
    "self_attn.sinks": "attn_sinks",
}
_SINKS: Final = ("self_attn.sinks", "self_attn.attention_sink_bias")
_SIZES_OF_DFLASH2: Final = (
    "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"
)  # fmt: skip
_PROJECTORS: Final = (None, "dflash", "dspark")


def _choose(source: DraftSource, matrices: Matrices) -> Matrices:
    config = source.config
    for name, known in (
        ("projector_type", _PROJECTORS),
        ("attention_mode", (None, "gqa")),
        ("markov_head_type", (None, "vanilla")),
    ):
        if (found := config.get(name)) not in known:
            raise config.error(f"{name} is {printable(found)}; GGUF has {known[-1]} alone")
    out = dict(matrices)
    if flag(config, "has_embed_tokens") is False:
        out.pop("embed_tokens.weight", None)
    proj = [name for name in out if name.startswith(_CONFIDENCE) and name.endswith("weight")]
    if proj and out[proj[0]].n_columns == config.size("hidden_size"):
        source.notes.append(
            "its confidence head reads hidden rows alone, where GGUF's reads the bias's as well: "
            "left out"
        )
        out = {name: m for name, m in out.items() if not name.startswith(_CONFIDENCE)}
    if "embed_tokens.weight" in out and "lm_head.weight" not in out and _is_tied(config):
        out["lm_head.weight"] = out["embed_tokens.weight"]
        source.notes.append("its embeddings are its head as well: written twice, for all readers")
    return out


def _is_tied(config: ModelConfig) -> bool:
    return bool(flag(config, "tie_word_embeddings", default=False))


def _keys(source: DraftSource, sizes: ModelSizes, planned: Mapping[str, OutputTensor]) -> Keys:
    config = source.config
    if config.get("mask_token_id") is None:
        raise config.error("mask_token_id is missing: it stands for the tokens to be drafted")
    out: Keys = {
        "block_size": config.size("block_size", default=USUAL_BLOCK),
        "target_layers": int32s(_target_layers(config)),
        "attention.value_scale": optional_float(config, "attention_value_scale"),
        "logit_scale": optional_float(config, "output_multiplier"),
        "final_logit_softcapping": optional_float(config, "final_logit_softcapping"),
        "embedding_scale": optional_float(config, "input_embedding_scale"),
        **_windows(source, sizes),
        **_head_keys(source, planned),
    }
    if "selector_hidden.weight" in planned or config.get(_SIZES_OF_DFLASH2[0]) is not None:
        out |= {name: config.size(name) for name in _SIZES_OF_DFLASH2}
    if source.target is not None and source.target.has_sections:
        out["rope.dimension_sections"] = int32s([sizes.head_dim // 2, 0, 0, 0])
    return out


def _target_layers(config: ModelConfig) -> list[int]:
    """`speculators` names the layers whose inputs are read, all others those whose outputs are."""
    name = "aux_hidden_state_layer_ids"
    if (found := config.get(name)) is not None:
        return layer_ids(config, name, found, offset=0)
    name = "target_layer_ids"
    if (found := config.get(name)) is None:
        raise config.error(f"{name} is missing: it names the layers of the target to be read")
    return layer_ids(config, name, found, offset=1)  # -1 stands for the embeddings


def _windows(source: DraftSource, sizes: ModelSizes) -> Keys:
    config = source.config
    causal = flag(config, "is_causal", flag(config, "causal"))
    is_by_kind = "speculators_model_type" in source.raw or config.model_type.startswith("muse")
    kinds = config.get("layer_types")
    is_all = bool(flag(config, "use_swa"))
    is_used = is_all or (is_by_kind and kinds is not None)
    window = config.get("swa_window_size", "sliding_window")
    if not (is_used or flag(config, "use_sliding_window")) or not window:
        return {"attention.causal": causal}
    pattern = [True] * sizes.n_layers if is_all else windowed_layers(config, sizes.n_layers)
    if not any(pattern):
        return {"attention.causal": causal}
    if flag(config, "sliding_window_non_causal") is False:
        if all(pattern):
            causal = True
        else:
            source.notes.append(
                "layers with a window look backwards alone within a block, the others both ways: "
                "GGUF has one key for all, so they look both ways"
            )
    return {
        "attention.causal": causal,
        "attention.sliding_window": config.size("swa_window_size", "sliding_window"),
        "attention.sliding_window_pattern": pattern,
    }


def _head_keys(source: DraftSource, planned: Mapping[str, OutputTensor]) -> Keys:
    """Of DSpark; DFlash has them only where it says something unusual."""
    config = source.config
    named = flag(config, "sample_from_anchor")
    if is_dspark(source.raw) or MARKOV in planned:
        usual = not {"transformer_layer_config", "aux_hidden_state_layer_ids"} & source.raw.keys()
        has_confidence = "conf_proj.weight" in planned
        from_anchor = usual if named is None else named
        return {"sample_from_anchor": from_anchor, "has_confidence_head": has_confidence}
    return {"sample_from_anchor": named or None}


def is_dspark(raw: Mapping[str, Any]) -> bool:
    classes = raw.get("architectures")
    named = str(classes[0]) if isinstance(classes, list) and classes else ""
    return "DSpark" in named or raw.get("speculators_model_type") == "dspark"


def _partial_rope(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return {"rope.dimension_count": rope.n_rot if rope.n_rot != sizes.head_dim else None}


def halves_of_heads(mapping: TensorMap, matrix: StoredMatrix) -> Order | None:
    """Checkpoints may turn neighbours; GGUF's graph turns the halves of a head."""
    if flag(mapping.config, "rope_is_neox_style") is not False:
        return None
    head = mapping.sizes.head_dim
    if matrix.n_rows % head or head % 2:
        raise mapping.error(matrix, f"has {matrix.n_rows} rows, expected heads of {head}")
    rows = np.arange(matrix.n_rows).reshape(-1, head // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _put_kernel(stem: str, mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """With its three axes."""
    shape = matrix.tensor.shape
    mapping.take(OutputTensor(f"{block}.{stem}", shape, (MatrixRows.all(matrix),)))


def _gemma_sizes(config: ModelConfig, n_layers: int, n_heads: int) -> Keys:
    return {
        "head_dim": global_head_dim(config),
        "n_kv_heads": config.size("num_global_key_value_heads", "num_key_value_heads"),
    }


def _gemma_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    if config.get("attention_k_eq_v") is not True:
        raise config.error("attention_k_eq_v is not true; GGUF's graph norms such values alone")
    if any(windowed_layers(config, sizes.n_layers)):
        raise config.error("layer_types has windows, which no DSpark drafter of Gemma 4 has")
    return {
        "rope.dimension_count": sizes.head_dim,
        "embedding_scale": Typed(ValueType.F32, float(sizes.n_embd) ** 0.5),
        "attention.scale": Typed(ValueType.F32, 1.0),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma_factors(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Floats | None:
    ropes = config.get("rope_parameters")
    full = ropes.get("full_attention", ropes) if isinstance(ropes, Mapping) else None
    is_plain = isinstance(full, Mapping) and full.get("rope_type", "default") == "default"
    return None if is_plain else proportional_factors(config, sizes, rope)


def _gemma_draft_keys(
    source: DraftSource, sizes: ModelSizes, planned: Mapping[str, OutputTensor]
) -> Keys:
    if "output.weight" not in planned and "token_embd.weight" in planned:
        raise ModelError(
            f"{source.config.label}: nothing in the checkpoint makes output.weight, and "
            "config.json does not tie it to the embeddings"
        )
    found = _keys(source, sizes, planned)
    del found["embedding_scale"], found["final_logit_softcapping"]  # its graph has no cap
    return found


_FAMILY: Final = CheckpointFamily(
    "dflash",
    rope=RopeTraits(is_partial=True),
    stems=_STEMS,
    whole=dict.fromkeys(_SINKS, "attn_sinks.weight"),
    outside=_OUTSIDE,
    planners={
        f"{place}_conv.base_kernel": partial(_put_kernel, f"{short}_conv_base")
        for place, short in (("attention", "attn"), ("mlp", "ffn"))
    },
    orders=dict.fromkeys(("attn_q", "attn_k", "attn_q_norm", "attn_k_norm"), halves_of_heads),
    keys=_partial_rope,
)
DFLASH: Final = DraftLayout("a DFlash drafter", _FAMILY, _choose, _keys)
DSPARK: Final = replace(DFLASH, words="a DSpark drafter")
DSPARK_GEMMA4: Final = DraftLayout(
    "a DSpark drafter",
    replace(
        _FAMILY,
        rope_theta=1e6,
        activations=("gelu_pytorch_tanh",),
        rope=RopeTraits(is_partial=True, kinds=("proportional",)),
        stems=_STEMS | NORMS,
        whole={"layer_scalar": "layer_output_scale.weight"},
        sizes=_gemma_sizes,
        keys=_gemma_keys,
        rope_factors=_gemma_factors,
    ),
    _choose,
    _gemma_draft_keys,
)
