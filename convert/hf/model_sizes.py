"""All sizes of a model, checked once. The shapes of the tensors follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.gguf.printable import printable
from ...core.models.hparams import MAX_LAYERS
from .model_config import CheckpointFamily, ModelConfig


@dataclass(frozen=True, slots=True)
class ModelSizes:
    n_layers: int
    n_mtp: int
    n_embd: int
    n_vocab: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ff: int  # 0: the configuration has none, as all layers are experts
    n_experts: int = 0
    n_experts_used: int = 0
    n_ff_expert: int = 0
    n_ff_shared: int = 0
    n_key_heads: int = 0  # of the delta rule, as the next three
    n_value_heads: int = 0
    linear_dim: int = 0
    n_conv: int = 0
    recurrent: tuple[bool, ...] = ()  # per block of a hybrid

    @property
    def n_blocks(self) -> int:
        return self.n_layers + self.n_mtp

    @property
    def n_key_rows(self) -> int:
        return self.n_key_heads * self.linear_dim

    @property
    def n_value_rows(self) -> int:
        return self.n_value_heads * self.linear_dim


def read_sizes(config: ModelConfig, family: CheckpointFamily, n_mtp: int) -> ModelSizes:
    """`n_mtp`: of the heads that are to be written."""
    n_layers = config.size("num_hidden_layers")
    if n_layers + n_mtp > MAX_LAYERS:
        raise config.error(f"num_hidden_layers is {n_layers}; at most {MAX_LAYERS} are possible")
    n_embd, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    n_experts = config.count("num_experts", "num_local_experts", "n_routed_experts")
    n_vocab = config.size("vocab_size")
    n_kv_heads = config.size("num_key_value_heads", default=n_heads)
    n_used = config.size("num_experts_per_tok", "top_k_experts") if n_experts else 0
    if n_heads % n_kv_heads:
        raise config.error(f"{n_heads} heads cannot share {n_kv_heads} key-value heads evenly")
    return ModelSizes(
        n_layers=n_layers,
        n_mtp=n_mtp,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=config.size("head_dim", default=family.head_dim or n_embd // n_heads or 1),
        n_ff=config.count("intermediate_size"),
        n_experts=n_experts,
        n_experts_used=n_used,
        n_ff_expert=config.size("moe_intermediate_size", "intermediate_size") if n_experts else 0,
        n_ff_shared=config.count("shared_expert_intermediate_size") if n_experts else 0,
        **(_delta_rule_sizes(config, n_layers, n_mtp) if family.is_hybrid else {}),
    )


def _delta_rule_sizes(config: ModelConfig, n_layers: int, n_mtp: int) -> dict[str, Any]:
    key_dim = config.size("linear_key_head_dim", default=128)
    value_dim = config.size("linear_value_head_dim", default=128)
    if key_dim != value_dim:
        raise config.error(
            f"linear_key_head_dim {key_dim} and linear_value_head_dim {value_dim} differ; GGUF has "
            "one size for both"
        )
    n_key = config.size("linear_num_key_heads", default=16)
    n_value = config.size("linear_num_value_heads", default=32)
    if n_value % n_key:
        raise config.error(f"{n_value} value heads cannot share {n_key} key heads evenly")
    return {
        "n_key_heads": n_key,
        "n_value_heads": n_value,
        "linear_dim": key_dim,
        "n_conv": config.size("linear_conv_kernel_dim", default=4),
        "recurrent": (*_recurrent_layers(config, n_layers), *(False,) * n_mtp),
    }


def _recurrent_layers(config: ModelConfig, n_layers: int) -> list[bool]:
    """Which layers are recurrent: by `layer_types`, or by the interval alone in older files."""
    kinds = config.get("layer_types")
    if kinds is None:
        interval = config.size("full_attention_interval", default=4)
        return [(i + 1) % interval != 0 for i in range(n_layers)]
    known = ("linear_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) < n_layers:
        raise config.error(f"layer_types does not name the {n_layers} layers")
    if wrong := [kind for kind in kinds[:n_layers] if kind not in known]:
        found = printable(wrong[0])
        raise config.error(f"layer_types has {found}, expected one of {', '.join(known)}")
    return [kind == known[0] for kind in kinds[:n_layers]]
