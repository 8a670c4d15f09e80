"""All sizes of a model, checked once. What tensors must look like follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.gguf.printable import printable
from ...core.models.hparams import MAX_LAYERS
from .config import Config
from .families import Family


@dataclass(frozen=True, slots=True)
class Sizes:
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


def read_sizes(config: Config, family: Family, n_mtp: int) -> Sizes:
    """`n_mtp`: of the heads that are to be written."""
    n_layers = config.size("num_hidden_layers")
    if n_layers + n_mtp > MAX_LAYERS:
        raise config.error(f"num_hidden_layers is {n_layers}; at most {MAX_LAYERS} are possible")
    n_embd, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim = config.size("head_dim", default=family.head_dim or n_embd // n_heads or 1)
    n_experts = config.count("num_experts", "num_local_experts", "n_routed_experts")
    sizes = Sizes(
        n_layers=n_layers,
        n_mtp=n_mtp,
        n_embd=n_embd,
        n_vocab=config.size("vocab_size"),
        n_heads=n_heads,
        n_kv_heads=config.size("num_key_value_heads", default=n_heads),
        head_dim=head_dim,
        n_ff=config.count("intermediate_size"),
        n_experts=n_experts,
        n_experts_used=config.size("num_experts_per_tok", "top_k_experts") if n_experts else 0,
    )
    if n_heads % sizes.n_kv_heads:
        raise config.error(
            f"{n_heads} heads cannot share {sizes.n_kv_heads} key-value heads evenly"
        )
    if n_experts:
        sizes = replace(
            sizes,
            n_ff_expert=config.size("moe_intermediate_size", "intermediate_size"),
            n_ff_shared=config.count("shared_expert_intermediate_size"),
        )
    return _with_delta_rule(config, sizes) if family.is_hybrid else sizes


def _with_delta_rule(config: Config, sizes: Sizes) -> Sizes:
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
    return replace(
        sizes,
        n_key_heads=n_key,
        n_value_heads=n_value,
        linear_dim=key_dim,
        n_conv=config.size("linear_conv_kernel_dim", default=4),
        recurrent=(*_recurrent_layers(config, sizes.n_layers), *(False,) * sizes.n_mtp),
    )


def _recurrent_layers(config: Config, n_layers: int) -> list[bool]:
    """By `layer_types`, or by the interval alone, which older configurations have."""
    kinds = config.get("layer_types")
    if kinds is None:
        interval = config.size("full_attention_interval", default=4)
        return [(i + 1) % interval != 0 for i in range(n_layers)]
    known = ("linear_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) < n_layers:
        raise config.error(f"layer_types does not name the {n_layers} layers")
    if wrong := [kind for kind in kinds[:n_layers] if kind not in known]:
        raise config.error(
            f"layer_types has {printable(wrong[0])}, expected one of {', '.join(known)}"
        )
    return [kind == known[0] for kind in kinds[:n_layers]]
