"""K-EXAONE: keys. One projection and one set of norms serve all of its MTP heads."""

from __future__ import annotations

from ..checkpoint_family import Keys
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting
from .expert_keys import leading_dense, router_keys
from .layer_kinds import windowed_heads, windowed_layers


def exaone_moe_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    keys = router_keys(config)
    n_shared = config.count("num_shared_experts")
    is_windowed = windowed_layers(config, sizes.n_layers)
    is_windowed += windowed_heads(config, sizes.n_layers, sizes.n_mtp, default=False)
    return keys | {
        "vocab_size": sizes.n_vocab,
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": is_windowed,
        "expert_feed_forward_length": sizes.n_ff_expert,
        "expert_shared_count": n_shared,
        "expert_shared_feed_forward_length": sizes.n_ff_expert * n_shared,
        "leading_dense_block_count": leading_dense(config, 0),
        "rope.scaling.type": "none",  # factors are a tensor, where there are any
    }
