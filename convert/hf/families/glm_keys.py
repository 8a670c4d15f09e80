"""GLM's mixtures: keys. Their tensors have the names that their heads have."""

from __future__ import annotations

from ..checkpoint_family import Keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import SIGMOID, leading_dense, router_keys


def glm_moe_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return router_keys(config) | {
        "rope.dimension_count": rope.n_rot,
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_count": config.get("n_shared_experts"),
        "leading_dense_block_count": leading_dense(config),
        "expert_gating_func": SIGMOID,
    }
