"""Tiny random checkpoints of drafters, in the layouts that they are published in, and the folders
of their targets, which have a configuration and a tokenizer.

Numbers are of numpy's old generator, which is promised to stay the same: what llama.cpp's converter
makes of them is kept as digests.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from .checkpoints import write_tokenizer
from .vocab import N_VOCAB

Config = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
Edit = Callable[[Config, Arrays], None]
E, F, H, HK, D, N_DRAFT, RANK = 64, 96, 4, 2, 16, 96, 32
KERNEL, GROUP, TOP_K = 2, 4, 7
MASK = 300
N_TARGET_LAYERS = 8
IDS = [1, 3, 6]  # of layers whose outputs are read
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
TARGET: Config = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": E,
    "num_hidden_layers": N_TARGET_LAYERS, "num_attention_heads": H, "num_key_value_heads": HK,
    "head_dim": D, "vocab_size": N_VOCAB, "intermediate_size": F, "max_position_embeddings": 256,
}  # fmt: skip
WITH_SECTIONS: Config = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
    "text_config": TARGET | {
        "model_type": "qwen3_5_text",
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    },
}  # fmt: skip
SIZES: Config = {
    "hidden_size": E, "intermediate_size": F, "num_attention_heads": H, "num_key_value_heads": HK,
    "head_dim": D, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
    "vocab_size": N_VOCAB, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class DraftCase:
    """`shapes`: of the tensors that differ from layout to layout, a name and its shape each."""

    architecture: str  # of the GGUF file
    config: Config
    shapes: dict[str, tuple[int, ...]]
    target: Config = field(default_factory=lambda: TARGET)
    has_map: bool = False  # d2t and t2d
    in_llama_cpp: bool = True  # whether its converter takes it
    loads_there: bool = True  # whether llama.cpp loads the file


@dataclass
class DraftCheckpoint:
    case: DraftCase
    folder: Path
    target: Path
    config: Config
    arrays: Arrays


def attention(n_in: int = E, *, norms: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (H * D, n_in),
        "self_attn.k_proj.weight": (HK * D, n_in),
        "self_attn.v_proj.weight": (HK * D, n_in),
        "self_attn.o_proj.weight": (E, H * D),
        "mlp.gate_proj.weight": (F, E),
        "mlp.up_proj.weight": (F, E),
        "mlp.down_proj.weight": (E, F),
        "input_layernorm.weight": (E,),
        "post_attention_layernorm.weight": (E,),
    }
    if norms:
        shapes |= {"self_attn.q_norm.weight": (D,), "self_attn.k_norm.weight": (D,)}
    return shapes


def below(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def eagle3(prefix: str, n_target: int = E) -> dict[str, tuple[int, ...]]:
    return {
        "fc.weight": (E, 3 * n_target),
        "norm.weight": (E,),
        "lm_head.weight": (N_DRAFT, E),
        **below(prefix, attention(2 * E) | {"hidden_norm.weight": (E,)}),
    }


def feature_norms(n: int) -> dict[str, tuple[int, ...]]:
    return {f"fc_norm.{i}.weight": (E,) for i in range(n)}


def dflash(n_layers: int = 2, n_ids: int = len(IDS)) -> dict[str, tuple[int, ...]]:
    shapes = {"fc.weight": (E, n_ids * E), "hidden_norm.weight": (E,), "norm.weight": (E,)}
    for n in range(n_layers):
        shapes |= below(f"layers.{n}", attention(norms=True))
    return shapes


def convolved() -> dict[str, tuple[int, ...]]:
    """What DFlash2 adds to a layer."""
    n = 2 * KERNEL * (E // GROUP)
    return {
        "attention_conv.base_kernel": (2, KERNEL, E),
        "attention_conv.kernel_projection.weight": (n, E),
        "mlp_conv.base_kernel": (2, KERNEL, E),
        "mlp_conv.kernel_projection.weight": (n, E),
    }


def markov(n_vocab: int = N_VOCAB) -> dict[str, tuple[int, ...]]:
    return {
        "markov_head.markov_w1.weight": (N_VOCAB, RANK),
        "markov_head.markov_w2.weight": (n_vocab, RANK),
        "confidence_head.proj.weight": (1, E + RANK),
        "confidence_head.proj.bias": (1,),
    }


OWN = {"embed_tokens.weight": (N_VOCAB, E), "lm_head.weight": (N_VOCAB, E)}
QWEN3: Config = SIZES | {
    "model_type": "qwen3", "num_hidden_layers": 2, "block_size": 8,
    "layer_types": ["full_attention"] * 2, "num_target_layers": N_TARGET_LAYERS,
    "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
OF_DFLASH: Config = {"mask_token_id": MASK, "target_layer_ids": IDS}
LAYER_CONFIG: Config = SIZES | {"model_type": "llama", "num_hidden_layers": 1}
VERIFIER = {"verifier": {"name_or_path": "owner/target", "architectures": ["Qwen3ForCausalLM"]}}
GEMMA_WIDE = 2 * D  # a head of layers without a window
ASSISTANT_WIDTH = 48


def gemma4_layer(width: int, head: int, *, has_keys: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (H * head, width),
        "self_attn.o_proj.weight": (width, H * head),
        "self_attn.q_norm.weight": (head,),
        "mlp.gate_proj.weight": (F, width),
        "mlp.up_proj.weight": (F, width),
        "mlp.down_proj.weight": (width, F),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "pre_feedforward_layernorm.weight": (width,),
        "post_feedforward_layernorm.weight": (width,),
        "layer_scalar": (1,),
    }
    if has_keys:
        shapes |= {
            "self_attn.k_proj.weight": (HK * head, width),
            "self_attn.k_norm.weight": (head,),
        }
    return shapes


GEMMA_ROPES: Config = {
    "full_attention": {
        "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
GEMMA_TARGET: Config = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": E,
    "num_hidden_layers": N_TARGET_LAYERS, "num_attention_heads": H, "num_key_value_heads": HK,
    "head_dim": D, "global_head_dim": GEMMA_WIDE, "vocab_size": N_VOCAB, "intermediate_size": F,
    "max_position_embeddings": 256, "sliding_window": 8, "rope_parameters": GEMMA_ROPES,
}  # fmt: skip
ASSISTANT: Config = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": E,
    "tie_word_embeddings": True,
    "use_ordered_embeddings": False,
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": ASSISTANT_WIDTH, "intermediate_size": F,
        "num_hidden_layers": 2, "num_attention_heads": H, "num_key_value_heads": HK,
        "head_dim": D, "global_head_dim": GEMMA_WIDE, "vocab_size": N_VOCAB,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256, "sliding_window": 8, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False,
        "moe_intermediate_size": None, "enable_moe_block": False,
        "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": GEMMA_ROPES,
    },
}  # fmt: skip
ASSISTANT_SHAPES: dict[str, tuple[int, ...]] = {
    "pre_projection.weight": (ASSISTANT_WIDTH, 2 * E),
    "post_projection.weight": (E, ASSISTANT_WIDTH),
    "model.embed_tokens.weight": (N_VOCAB, ASSISTANT_WIDTH),
    "model.norm.weight": (ASSISTANT_WIDTH,),
    **below("model.layers.0", gemma4_layer(ASSISTANT_WIDTH, D, has_keys=False)),
    **below("model.layers.1", gemma4_layer(ASSISTANT_WIDTH, GEMMA_WIDE, has_keys=False)),
}
GLIMMER = {
    "fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"
}  # fmt: skip
DSPARK_HEAD: Config = {
    "markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
CASES: dict[str, DraftCase] = {
    "eagle3-specforge": DraftCase(
        "eagle3",
        SIZES | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
            "num_hidden_layers": 1, "draft_vocab_size": N_DRAFT, "rope_scaling": LLAMA3,
        },
        eagle3("midlayer"),
        has_map=True,
    ),
    "eagle3-sglang-ids": DraftCase(
        "eagle3",
        SIZES | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
            "num_hidden_layers": 1, "draft_vocab_size": N_DRAFT,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": True},
        },
        eagle3("midlayer"),
        has_map=True,
        in_llama_cpp=False,  # it passes these ids over
    ),
    "eagle3-speculators": DraftCase(
        "eagle3",
        {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "draft_vocab_size": N_DRAFT, "norm_before_residual": True, "norm_before_fc": False,
            "eagle_aux_hidden_state_layer_ids": [2, 4, 5], "target_hidden_size": None,
            "speculators_config": {"algorithm": "eagle3"} | VERIFIER,
            "transformer_layer_config": LAYER_CONFIG,
        },
        eagle3("layers.0") | {"embed_tokens.weight": (N_VOCAB, E)},
        has_map=True,
    ),
    "eagle3-normed": DraftCase(
        "eagle3",
        SIZES | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
            "num_hidden_layers": 1, "draft_vocab_size": N_DRAFT, "norm_before_fc": True,
            "target_hidden_size": 80, "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        },
        eagle3("midlayer", 80) | OWN | {
            "input_norm.weight": (240,), "lm_head.weight": (N_DRAFT, E),
        },
        target=TARGET | {"hidden_size": 80},
        has_map=True,
    ),
    "eagle3.1-speculators": DraftCase(
        "eagle3",
        {
            "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
            "draft_vocab_size": N_DRAFT, "norm_before_residual": True, "fc_norm": True,
            "norm_output": True, "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
            "speculators_config": {"algorithm": "eagle3"} | VERIFIER,
            "transformer_layer_config": LAYER_CONFIG | {
                "sliding_window": 12, "layer_types": ["sliding_attention"],
            },
        },
        eagle3("layers.0") | feature_norms(3) | {"embed_tokens.weight": (N_VOCAB, E)},
        has_map=True,
        in_llama_cpp=False,
        loads_there=False,
    ),
    "eagle3-deepspec": DraftCase(
        "eagle3",
        SIZES | {
            "architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "num_hidden_layers": 1,
            "target_layer_ids": [0, 1, 3, 5, 6],
        },
        OWN | {"fc.weight": (E, 5 * E), "norm.weight": (E,)}
        | below("layers.0", attention(2 * E, norms=True) | {"hidden_norm.weight": (E,)}),
        in_llama_cpp=False,
        loads_there=False,
    ),
    "eagle3-two-layers": DraftCase(
        "eagle3",
        SIZES | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
            "num_hidden_layers": 2, "draft_vocab_size": N_DRAFT,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": IDS, "return_hidden_post_norm": True,
                "norm_before_fc": True, "next_layer_regular": True,
            },
        },
        eagle3("midlayer.0") | {"input_norm.weight": (3 * E,)}
        | below("midlayer.1", {
            "hidden_norm.weight" if name.startswith("input") else name: shape
            for name, shape in attention().items()
        }),
        has_map=True,
        in_llama_cpp=False,
        loads_there=False,
    ),
    "eagle3-angelslim": DraftCase(
        "eagle3",
        SIZES | {
            "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama",
            "num_hidden_layers": 1, "draft_vocab_size": N_DRAFT,
            "aux_hidden_states_layer_ids": IDS,
        },
        eagle3("midlayer") | {"embed_tokens.weight": (N_VOCAB, E)},
        has_map=True,
        in_llama_cpp=False,
    ),
    "dflash": DraftCase(
        "dflash",
        QWEN3 | {"architectures": ["DFlashDraftModel"], "dflash_config": OF_DFLASH},
        dflash(),
    ),
    "dflash-windows": DraftCase(
        "dflash",
        QWEN3 | {
            "architectures": ["DFlashDraftModel"],
            "dflash_config": OF_DFLASH | {"block_size": 4, "causal": False},
            "use_sliding_window": True, "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        dflash(),
        target=WITH_SECTIONS,
    ),
    "dflash-neighbours": DraftCase(
        "dflash",
        QWEN3 | {
            "architectures": ["DFlashDraftModel"], "rope_is_neox_style": False,
            "dflash_config": OF_DFLASH | {
                "output_multiplier": 0.5, "final_logit_softcapping": 30.0,
                "input_embedding_scale": 8.0, "attention_value_scale": 0.7,
            },
        },
        dflash() | below("layers.0", {"self_attn.sinks": (H,)})
        | below("layers.1", {"self_attn.sinks": (H,)}),
    ),
    "dflash-speculators": DraftCase(
        "dflash",
        {
            "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash",
            "aux_hidden_state_layer_ids": [2, 4, 7], "mask_token_id": MASK, "block_size": 8,
            "draft_vocab_size": N_DRAFT, "sample_from_anchor": False,
            "speculators_config": {"algorithm": "dflash"} | VERIFIER,
            "transformer_layer_config": QWEN3,
        },
        dflash() | {"lm_head.weight": (N_DRAFT, E), "embed_tokens.weight": (N_VOCAB, E)},
        has_map=True,
        in_llama_cpp=False,  # no class of its converter
    ),
    "dflash2": DraftCase(
        "dflash",
        QWEN3 | {
            "architectures": ["DFlash2DraftModel"],
            "dflash_config": OF_DFLASH | {
                "conv_kernel_size": KERNEL, "conv_group_size": GROUP, "selector_rank": RANK,
                "selector_top_k": TOP_K,
            },
        },
        dflash() | below("layers.0", convolved()) | below("layers.1", convolved()) | {
            "candidate_selector.predecessor_codebook": (N_VOCAB, RANK),
            "candidate_selector.successor_codebook": (N_VOCAB, RANK),
            "candidate_selector.hidden_projection.weight": (RANK, E),
        },
    ),
    "dflash-glimmer": DraftCase(
        "dflash",
        {key: value for key, value in QWEN3.items() if key != "rope_theta"} | {
            "architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant",
            "target_layer_ids": IDS, "mask_token_id": MASK, "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        {GLIMMER.get(name, name): shape for name, shape in dflash().items()},
    ),
    "dspark-deepspec": DraftCase(
        "dflash",
        QWEN3 | OF_DFLASH | DSPARK_HEAD | {"architectures": ["Qwen3DSparkModel"], "num_anchors": 8},
        dflash() | OWN | markov(),
    ),
    "dspark-specforge": DraftCase(
        "dflash",
        QWEN3 | {
            "architectures": ["DSparkDraftModel"],
            "dflash_config": OF_DFLASH | DSPARK_HEAD | {"projector_type": "dspark"},
        },
        dflash() | {
            name: shape for name, shape in markov().items() if name.startswith("markov_head")
        },
    ),
    "dspark-speculators": DraftCase(
        "dflash",
        DSPARK_HEAD | {
            "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark",
            "aux_hidden_state_layer_ids": [2, 4, 7], "mask_token_id": MASK, "block_size": 8,
            "draft_vocab_size": N_DRAFT, "sample_from_anchor": False,
            "speculators_config": {"algorithm": "dspark"} | VERIFIER,
            "transformer_layer_config": QWEN3,
        },
        dflash() | markov(N_DRAFT) | {
            "lm_head.weight": (N_DRAFT, E), "embed_tokens.weight": (N_VOCAB, E),
        },
        has_map=True,
    ),
    "dspark-gemma4": DraftCase(
        "dflash",
        OF_DFLASH | DSPARK_HEAD | {
            key: value for key, value in GEMMA_TARGET.items() if key != "sliding_window"
        } | {
            "architectures": ["Gemma4DSparkModel"], "num_hidden_layers": 2, "block_size": 8,
            "num_target_layers": N_TARGET_LAYERS, "num_global_key_value_heads": HK,
            "layer_types": ["full_attention"] * 2, "attention_k_eq_v": True, "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": False,
        },
        dflash(0) | OWN | markov()
        | below("layers.0", gemma4_layer(E, GEMMA_WIDE, has_keys=True))
        | below("layers.1", gemma4_layer(E, GEMMA_WIDE, has_keys=True)),
        target=GEMMA_TARGET,
    ),
    "assistant": DraftCase("gemma4-assistant", ASSISTANT, ASSISTANT_SHAPES, target=GEMMA_TARGET),
}  # fmt: skip


def build_draft_checkpoint(
    name: str, folder: Path, *, edit: Edit | None = None, own_tokenizer: bool = False
) -> DraftCheckpoint:
    """`edit` changes what is saved. The target's folder has no weights."""
    case = CASES[name]
    config = json.loads(json.dumps(case.config))
    arrays = {each: draw(each, shape) for each, shape in case.shapes.items()}
    if case.has_map:
        arrays |= token_map()
    if edit is not None:
        edit(config, arrays)
    draft, target = folder / name, folder / f"{name}-target"
    for place, values in ((draft, config), (target, case.target)):
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(values))
    save_file(arrays, draft / "model.safetensors")
    write_tokenizer(target)
    if own_tokenizer or case.architecture == "gemma4-assistant":
        write_tokenizer(draft)
    return DraftCheckpoint(case, draft, target, config, arrays)


def draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """By name alone, so that a tensor more or less changes no other."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    if len(shape) == 1:
        return rng.normal(1.0, 0.2, shape).astype(np.float32)
    return rng.normal(0.0, shape[-1] ** -0.5, shape).astype(np.float32)


def token_map() -> Arrays:
    """As checkpoints have it: how much further on in the target's vocabulary each token is."""
    ids = np.sort(np.random.RandomState(5).choice(N_VOCAB, N_DRAFT, replace=False))
    return {"d2t": ids - np.arange(N_DRAFT), "t2d": np.isin(np.arange(N_VOCAB), ids)}
