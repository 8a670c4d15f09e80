"""Tiny random models with MTP heads of the families that we do not run: a `transformers` model with
its generic MTP stack, its checkpoint as the hub has it, and a GGUF of the trunk alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.heads.checkpoint_weights import CheckpointWeights
from nextn.convert.heads.family_layouts import numbered
from nextn.convert.heads.family_table import FAMILIES
from nextn.convert.heads.head_block import TargetStyle, read_block
from nextn.convert.heads.lazy_values import plus_one
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.writer import TensorData, write_gguf

from .tiny_models import COMMON, MTP_NAMES, TinyModel
from .vocab import tokenizer_metadata

Renames = dict[str, str]

MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "num_hidden_layers": 2, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
MLA_KEYS = {
    "attention.head_count_kv": 1, "attention.q_lora_rank": 32, "attention.kv_lora_rank": 32,
    "attention.key_length": 40, "attention.value_length": 32, "attention.key_length_mla": 24,
    "attention.value_length_mla": 16, "rope.dimension_count": 8, "leading_dense_block_count": 1,
    "vocab_size": 512,
}  # fmt: skip
EXPERT_KEYS = {
    "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_gating_func": 2,
    "expert_weights_norm": True, "expert_shared_count": 1,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


@dataclass(frozen=True)
class HeadKind:
    architecture: str
    hf_class: str
    hf_config: str
    settings: dict[str, Any]
    keys: dict[str, Any]  # beside the common ones
    names: Renames  # of the MTP stack -> of the hub, below the prefix
    prefix: str = "model.layers.{n}."
    n_heads: int = 1
    mtp_layer_type: str = "full_attention"
    mtp_mlp_type: str = "sparse"
    is_shifted: bool = False
    has_own_head: bool = False
    hub_config: dict[str, Any] = field(default_factory=dict)
    nested: bool = False  # inside of a model with eyes
    mtp_config: dict[str, Any] = field(default_factory=dict)
    embedding: str = "model.layers.{n}.embed_tokens.weight"  # the copy that a checkpoint has


BEHIND = {"post_norm.": "shared_head.norm.", "mtp_block.": ""}
KINDS = {
    "glm4moe": HeadKind(
        "glm4moe", "Glm4MoeForCausalLM", "Glm4MoeConfig",
        {**MOE, "num_hidden_layers": 2, "head_dim": 16, "n_routed_experts": 4, "use_qk_norm": True,
         "attention_bias": True, "first_k_dense_replace": 1, "rope_parameters": ROPE
         | {"partial_rotary_factor": 0.5}},
        {**EXPERT_KEYS, "expert_count": 4, "leading_dense_block_count": 1,
         "rope.dimension_count": 8, "expert_weights_scale": 1.0},
        BEHIND,
    ),
    "deepseek2": HeadKind(
        "deepseek2", "DeepseekV3ForCausalLM", "DeepseekV3Config",
        {**MOE, **MLA, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
         "first_k_dense_replace": 1, "rope_parameters": ROPE},
        {**EXPERT_KEYS, **MLA_KEYS, "expert_count": 8, "expert_weights_scale": 2.5,
         "expert_group_count": 2, "expert_group_used_count": 1},
        BEHIND,
    ),
    "glm4-lite": HeadKind(
        "deepseek2", "Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig",
        {**MOE, **MLA, "n_routed_experts": 4, "rope_parameters": ROPE},
        {**EXPERT_KEYS, **MLA_KEYS, "expert_count": 4, "expert_weights_scale": 1.8},
        BEHIND,
    ),
    "mimo2": HeadKind(
        "mimo2", "MiMoV2FlashForCausalLM", "MiMoV2FlashConfig",
        {**MOE, "num_hidden_layers": 3, "n_routed_experts": 4, "head_dim": 24, "v_head_dim": 16,
         "layer_types": ["full_attention", "sliding_attention", "full_attention"],
         "num_key_value_heads": 1, "sliding_window": 8},
        {**EXPERT_KEYS, "expert_count": 4, "attention.sliding_window": 8,
         "attention.sliding_window_pattern": [0, 1, 0], "attention.head_count_kv": [1, 2, 1],
         "attention.key_length": 24, "attention.value_length": 16, "rope.dimension_count": 8,
         "rope.freq_base": 5e6, "rope.freq_base_swa": 1e4, "attention.value_scale": 0.707,
         "leading_dense_block_count": 1},
        {"post_norm.": "final_layernorm.", "mtp_block.self_attn.sinks":
         "self_attn.attention_sink_bias", "mtp_block.post_attention_layernorm.":
         "pre_mlp_layernorm.", "mtp_block.": ""},
        prefix="model.mtp.layers.{i}.", n_heads=3, mtp_layer_type="sliding_attention",
        mtp_mlp_type="dense",
    ),
    "step35": HeadKind(
        "step35", "Step3p7ForConditionalGeneration", "Step3p7Config",
        {**MOE, "num_hidden_layers": 3, "n_routed_experts": 4, "head_dim": 16,
         "share_expert_dim": 32, "sliding_window": 8, "num_nextn_predict_layers": 2,
         "num_sliding_attention_heads": 8,
         "layer_types": ["full_attention", "sliding_attention", "full_attention",
                         "sliding_attention", "full_attention"],
         "moe_layers_enum": "1,2", "partial_rotary_factors": [0.5, 1.0, 0.5, 1.0, 0.5],
         "rope_theta": [5e6, 1e4, 5e6, 1e4, 5e6]},
        {**EXPERT_KEYS, "expert_count": 4, "attention.sliding_window": 8,
         "attention.sliding_window_pattern": [False, True, False],
         "attention.head_count": [4, 8, 4], "attention.head_count_kv": [2, 2, 2],
         "expert_shared_feed_forward_length": 32, "rope.dimension_count": 16,
         "rope.freq_base": 5e6, "rope.freq_base_swa": 1e4, "leading_dense_block_count": 1,
         "moe_every_n_layers": 1, "swiglu_clamp_exp": [0.0, 7.0, 0.0]},
        {"post_norm.": "transformer.shared_head.norm.", "mtp_block.": ""},
        n_heads=2, mtp_mlp_type="dense", is_shifted=True, has_own_head=True, nested=True,
        mtp_config={"mtp_per_layer_config": {0: {"num_attention_heads": 8}}},
        hub_config={"layer_types": ["full_attention", "sliding_attention", "full_attention",
                                    "sliding_attention", "full_attention"],
                    "num_attention_groups": 2, "swiglu_limits": [None, 7.0, None, None, 3.0]},
    ),
    "exaone-moe": HeadKind(
        "exaone-moe", "ExaoneMoeForCausalLM", "ExaoneMoeConfig",
        {**MOE, "num_hidden_layers": 4, "num_experts": 4, "sliding_window": 8, "head_dim": 16,
         "rope_parameters": ROPE},
        {**EXPERT_KEYS, "expert_count": 4, "attention.sliding_window": 8,
         "attention.sliding_window_pattern": [True, True, True, False],
         "leading_dense_block_count": 1, "expert_weights_scale": 2.5,
         "expert_shared_feed_forward_length": 32, "rope.scaling.type": "none"},
        {"eh_proj.": "mtp.fc.", "enorm.": "mtp.pre_fc_norm_embedding.",
         "hnorm.": "mtp.pre_fc_norm_hidden.", "post_norm.": "mtp.norm.", "mtp_block.": ""},
        prefix="mtp.layers.{i}.", mtp_mlp_type="dense",
    ),
    "hy_v3": HeadKind(
        "hy_v3", "HYV3ForCausalLM", "HYV3Config",
        {**MOE, "num_hidden_layers": 2, "num_experts": 4, "head_dim": 16, "rope_parameters": ROPE},
        {**EXPERT_KEYS, "expert_count": 4, "leading_dense_block_count": 1,
         "expert_weights_scale": 2.826, "expert_shared_feed_forward_length": 32},
        {"post_norm.": "final_layernorm.", "mtp_block.mlp.gate.": "mlp.router.gate.",
         "mtp_block.mlp.e_score_correction_bias": "mlp.expert_bias",
         "mtp_block.mlp.shared_experts.": "mlp.shared_mlp.", "mtp_block.": ""},
    ),
}  # fmt: skip


@dataclass
class TinyHead:
    kind: HeadKind
    hf: Any
    mtp: Any
    checkpoint: Path  # a folder in the manner of the hub
    trunk: Path  # a GGUF without head
    own_head: Any  # the output matrix of each head, or None

    def logits(self, head: int, hidden: Any, tokens: Any) -> Any:
        """The reference: rows at positions 1.. of a text, (T, V)."""
        positions = torch.arange(1, len(tokens) + 1)[None]
        with torch.no_grad():
            rows = self.mtp.forward_layer(
                head,
                torch.as_tensor(hidden)[None],
                positions,
                None,
                input_ids=torch.as_tensor(tokens)[None],
            )
            if self.own_head is not None:
                return (rows @ self.own_head[head].T)[0].numpy()
            return self.mtp._project_to_logits(rows)[0].numpy()


def build_head(
    name: str, folder: Path, *, kind: HeadKind | None = None, seed: int = 0, quantise: str = "F32"
) -> TinyHead:
    import transformers
    from transformers.modeling_layers import MtpModel

    transformers.utils.logging.disable_progress_bar()
    kind = kind or KINDS[name]
    torch.manual_seed(seed)
    config = _config(transformers, kind)
    hf = getattr(transformers, kind.hf_class)(config).eval().float()
    text = config.get_text_config()
    for key, value in {"num_mtp_layers": kind.n_heads, **kind.mtp_config}.items():
        setattr(text, key, value)
    if getattr(text, "layer_types", None) is not None and not kind.nested:
        text.mtp_layer_types = [kind.mtp_layer_type] * kind.n_heads
    if getattr(text, "mlp_layer_types", None) is not None and not kind.nested:
        text.mtp_mlp_layer_types = [kind.mtp_mlp_type] * kind.n_heads
    mtp = MtpModel(hf, kind.n_heads).eval().float()
    if kind.mtp_layer_type == "indexed_attention":
        mtp.create_masks_for_mtp_layer = _causal_mask
        for layer in mtp.layers:
            layer.mtp_block.register_forward_hook(_without_indices)
    randomise_tensors(hf, is_shifted=kind.is_shifted)
    randomise_tensors(mtp.layers, is_shifted=kind.is_shifted)
    own = None
    if kind.has_own_head:
        own = [torch.randn_like(hf.lm_head.weight) / 8 for _ in range(kind.n_heads)]
    checkpoint = folder / f"{name}-hub"
    _write_checkpoint(checkpoint, hf, mtp, own, kind, text.num_hidden_layers)
    trunk = folder / f"{name}-{quantise}.gguf"
    write_trunk(trunk, checkpoint, kind, quantise)
    return TinyHead(kind, hf, mtp, checkpoint, trunk, own)


def _causal_mask(
    layer_idx: int, inputs_embeds: torch.Tensor, mtp_cache: Any, position_ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Which an indexer adds to: there has to be one. The generic stack knows no such layers."""
    n = inputs_embeds.shape[1]
    return {"attention_mask": torch.full((1, 1, n, n), -torch.inf).triu(1)}


def _without_indices(module: Any, arguments: Any, output: Any) -> Any:
    """Of layers that hand on what their indexer chose."""
    return output[0] if isinstance(output, tuple) else output


def _config(transformers: Any, kind: HeadKind) -> Any:
    make = getattr(transformers, kind.hf_config)
    common = COMMON | kind.settings
    if not kind.nested:
        return make(**common)
    eyes = {"width": 16, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14}
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return make(text_config=common, vision_config=eyes | small | {"intermediate_size": 32})


def randomise_tensors(model: torch.nn.Module, *, is_shifted: bool) -> None:
    """Biases of routers are buffers; norms are around what they multiply with."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        for name, value in tensors:
            if "inv_freq" in name or not value.is_floating_point() or "vision" in name:
                continue
            if not value.ndim or "mup_vector" in name:  # a constant
                continue
            if "norm" in name and value.ndim == 1:
                value.normal_(0.0 if is_shifted else 1.0, 0.2)
            elif (
                "layer_scalar" in name
                or "per_expert_scale" in name
                or name.endswith("router.scale")
            ):
                value.normal_(1.0, 0.1)
            elif value.ndim == 1:
                value.normal_(0.0, 0.3)
            elif "embed_tokens" in name:
                value.normal_(0.0, 1.0)
            elif value.ndim >= 2:
                value.normal_(0.0, value.shape[-1] ** -0.5)


# The checkpoint ----------------------------------------------------------------------------------


def _write_checkpoint(
    folder: Path, hf: Any, mtp: Any, own: Any, kind: HeadKind, n_trunk: int
) -> None:
    hf.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    head = dict(_hub_tensors(mtp, kind, n_trunk))
    if kind.prefix == "model.layers.{n}.":  # copies of the trunk's, or matrices of their own
        head_name = "transformer.shared_head.output" if kind.has_own_head else "shared_head.head"
        for i in range(kind.n_heads):
            matrix = hf.lm_head.weight.detach() if own is None else own[i]
            head[f"model.layers.{n_trunk + i}.{head_name}.weight"] = matrix.clone()
            embedding = hf.get_input_embeddings().weight.detach()
            head[kind.embedding.format(n=n_trunk + i)] = embedding.clone()
    (folder / "model.safetensors").unlink()
    parts = {"model-00001-of-00002.safetensors": state, "model-00002-of-00002.safetensors": head}
    for name, tensors in parts.items():
        save_file({k: v.contiguous().clone() for k, v in tensors.items()}, folder / name)
    listed = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    (config["text_config"] if kind.nested else config).update(kind.hub_config)
    (folder / "config.json").write_text(json.dumps(config))


def _hub_tensors(mtp: Any, kind: HeadKind, n_trunk: int) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in mtp.state_dict().items():
        first, _, rest = name.partition(".")
        if first != "layers":
            continue
        number, _, inner = rest.partition(".")
        prefix = kind.prefix.format(i=number, n=n_trunk + int(number))
        for old, new in kind.names.items():
            if inner.startswith(old):
                inner = new + inner.removeprefix(old)
                break
        prefix = "" if inner.startswith("mtp.") else prefix
        for part, tensor in _per_expert(inner, value.detach()):
            yield prefix + part, tensor


def _per_expert(name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if name.endswith("experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        for i, both in enumerate(value):
            for part, rows in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                yield f"{stem}{i}.{part}.weight", rows
    elif name.endswith("experts.down_proj"):
        stem = name.removesuffix("down_proj")
        for i, rows in enumerate(value):
            yield f"{stem}{i}.down_proj.weight", rows
    else:
        yield name, value


# The trunk ---------------------------------------------------------------------------------------


def write_trunk(path: Path, checkpoint: Path, kind: HeadKind, quantise: str = "F32") -> None:
    """Layers of these families have the names that their heads have."""
    family = FAMILIES[kind.architecture]
    edited = TargetStyle(splits_kv_b=True, fuses_qkv=False)
    with open_checkpoint(checkpoint) as opened:
        weights = CheckpointWeights(opened)
        n_layers = weights.number("num_hidden_layers")
        norm = weights.values("model.norm.weight")
        arrays = {
            "token_embd.weight": weights.values(_embedding(weights)).whole(),
            "output_norm.weight": (plus_one(norm) if kind.is_shifted else norm).whole(),
            "output.weight": weights.values("lm_head.weight").whole(),
        }
        for n, names in enumerate(numbered(weights, "model.layers.", 0)[:n_layers]):
            for tensor in read_block(weights, family, names, edited):
                flat = np.concatenate([piece.reshape(-1) for piece in tensor.pieces()])
                arrays[f"blk.{n}.{tensor.stem}"] = flat.reshape(tensor.shape)
        keys = _keys(kind, weights, n_layers)
    tensors = [_tensor(name, array, quantise) for name, array in arrays.items()]
    write_gguf(path, keys, tensors, overwrite=True)


def _embedding(weights: CheckpointWeights) -> str:
    names = ("model.embed_tokens.weight", "model.word_embeddings.weight")
    return next(name for name in names if name in weights)


def _tensor(name: str, array: Any, quantise: str) -> TensorData:
    import gguf

    kept = ("norm", "ffn_gate_inp", "sinks", "attn_k_b")
    plain = array.ndim < 2 or not name.endswith(".weight") or any(k in name for k in kept)
    plain = plain or array.shape[-1] % 32 > 0
    if plain or quantise == "F32":
        return TensorData(name, array.shape, find_format("F32"), array.astype(np.float32))
    data = gguf.quants.quantize(array, gguf.GGMLQuantizationType[quantise])
    return TensorData(name, array.shape, find_format(quantise), data)


def _keys(kind: HeadKind, weights: CheckpointWeights, n_layers: int) -> dict[str, Any]:
    config = weights.config
    keys: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": 64,
        "block_count": n_layers,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", 1e-6),
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
    }
    named = {f"{kind.architecture}.{key}": value for key, value in (keys | kind.keys).items()}
    general = {"general.architecture": kind.architecture, "general.name": "tiny"}
    return general | named | tokenizer_metadata()


# The Qwen hybrids, which we run -----------------------------------------------------------------


def write_qwen_checkpoint(folder: Path, made: TinyModel, *, one_by_one: bool) -> Path:
    """As the hub has it: Qwen3.5 with stacked experts, Qwen3-Next with one tensor for each."""
    made.hf.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for name, value in made.mtp.state_dict().items():
        for old, new in MTP_NAMES.items():
            if name.startswith(old):
                inner = new + name.removeprefix(old)
                parts = _per_expert(inner, value) if one_by_one else [(inner, value)]
                state |= {part: tensor.detach().contiguous().clone() for part, tensor in parts}
    save_file(state, folder / "model.safetensors")
    return folder
