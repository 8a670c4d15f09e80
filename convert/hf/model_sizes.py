"""All sizes of a model, checked once. The shapes of the tensors follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from ...core.models.hparams import MAX_LAYERS
from .model_config import ModelConfig

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_OF_EXPERT: Final = ("moe_intermediate_size", "intermediate_size")
_USED: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_topk",
    "moe_k",
)
_SHARED: Final = ("shared_expert_intermediate_size", "share_expert_dim")


class ModelSizes(Struct, frozen=True):
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


SizeReader = Callable[[ModelConfig, int, int], dict[str, Any]]  # layers, heads


def read_sizes(
    config: ModelConfig, n_mtp: int, *, head_dim: int, of_family: SizeReader
) -> ModelSizes:
    """`n_mtp`: of the heads that are to be written. `head_dim`: the default; 0: width divided by
    heads."""
    config = config.with_one_for_all(*_OF_EXPERT, *_USED)
    n_layers = config.size("num_hidden_layers")
    if n_layers + n_mtp > MAX_LAYERS:
        raise config.error(f"num_hidden_layers is {n_layers}; at most {MAX_LAYERS} are possible")
    n_embd, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    n_experts = config.count(*_EXPERTS)
    n_vocab = config.size("vocab_size")
    n_kv_heads = config.size("num_key_value_heads", "num_attention_groups", default=n_heads)
    n_used = config.size(*_USED) if n_experts else 0
    if n_heads % n_kv_heads:
        raise config.error(
            f"num_attention_heads is {n_heads}, which cannot share num_key_value_heads, "
            f"{n_kv_heads}, evenly"
        )
    common: dict[str, Any] = {
        "n_layers": n_layers,
        "n_mtp": n_mtp,
        "n_embd": n_embd,
        "n_vocab": n_vocab,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": config.size("head_dim", default=head_dim or n_embd // n_heads or 1),
        "n_ff": config.count("intermediate_size"),
        "n_experts": n_experts,
        "n_experts_used": n_used,
        "n_ff_expert": config.size(*_OF_EXPERT) if n_experts else 0,
        "n_ff_shared": config.count(*_SHARED) if n_experts else 0,
    }
    return ModelSizes(**common | of_family(config, n_layers, n_mtp))
