"""DeepSeek V2 and V3 and their relatives: attention over latent vectors (MLA).

The matrix that makes keys and values of a latent is split: its key rows are turned, so that queries
can be brought to the latent's space instead.
"""

from __future__ import annotations

from ..checkpoint_family import Keys, TensorMap
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import SIGMOID, leading_dense, router_keys

KV_B = "self_attn.kv_b_proj.weight"


def read_latent_sizes(config: ModelConfig, n_layers: int, n_mtp: int) -> Keys:
    return {"head_dim": config.size("qk_rope_head_dim")}  # the part that rope turns


def put_latent_keys_and_values(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    config, n_heads = mapping.config, mapping.sizes.n_heads
    n_key, n_value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    height, rank = n_key + n_value, matrix.n_columns
    mapping.check_rows(matrix, n_heads * height)
    starts = range(0, matrix.n_rows, height)
    keys = tuple(MatrixRows(matrix, range(at, at + n_key)) for at in starts)
    values = tuple(MatrixRows(matrix, range(at + n_key, at + height)) for at in starts)
    shape = (n_heads, rank, n_key)
    mapping.take(OutputTensor(f"{block}.attn_k_b.weight", shape, keys, is_turned=True))
    mapping.take(OutputTensor(f"{block}.attn_v_b.weight", (n_heads, n_value, rank), values))


def sigmoid_latent_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """V3 and after."""
    return _latent_keys(config, sizes, SIGMOID)


def softmax_latent_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    """V2, which readers take a file without the function for."""
    return _latent_keys(config, sizes, None)


def _latent_keys(config: ModelConfig, sizes: ModelSizes, gating: int | None) -> Keys:
    router = router_keys(config, gating)
    if not router["expert_weights_norm"]:  # which is what readers do without it
        del router["expert_weights_norm"]
    return (
        router
        | latent_attention_keys(config, sizes)
        | {
            "leading_dense_block_count": leading_dense(
                config, 0 if sizes.n_experts else sizes.n_layers
            ),
            "expert_feed_forward_length": sizes.n_ff_expert or sizes.n_ff,
            "expert_shared_count": config.get("n_shared_experts") or 0,
        }
    )


def latent_attention_keys(config: ModelConfig, sizes: ModelSizes) -> Keys:
    rank, n_rot = config.size("kv_lora_rank", default=512), config.size("qk_rope_head_dim")
    return {
        "attention.head_count_kv": 1,  # all heads share the latent
        "vocab_size": sizes.n_vocab,
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + n_rot,
        "attention.value_length": rank,
        "attention.key_length_mla": config.size("qk_nope_head_dim") + n_rot,
        "attention.value_length_mla": config.size("v_head_dim"),
        "rope.dimension_count": n_rot,
    }
