"""Sizes of the two models, under the names that `config.json` files use for them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class NanoShape:
    """A decoder with grouped attention; with `linear_num_value_heads`, the Qwen3.5 hybrid."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_head_dim: int = 0  # of keys and values alike
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 1  # one layer in so many has attention
    partial_rotary_factor: float = 1.0
    num_mtp_layers: int = 0
    tie_word_embeddings: bool = False
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096

    @property
    def is_hybrid(self) -> bool:
        return self.linear_num_value_heads > 0

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_channels(self) -> int:
        """Channels of the short convolution: all q, all k, all v."""
        heads = 2 * self.linear_num_key_heads + self.linear_num_value_heads
        return heads * self.linear_head_dim

    @property
    def linear_width(self) -> int:
        return self.linear_num_value_heads * self.linear_head_dim

    def is_recurrent(self, layer: int) -> bool:
        return self.is_hybrid and (layer + 1) % self.full_attention_interval != 0


N_VOCAB = 4096

NANO = NanoShape(
    vocab_size=N_VOCAB, hidden_size=256, intermediate_size=640, num_hidden_layers=6,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_head_dim=64,
    full_attention_interval=3, partial_rotary_factor=0.25, num_mtp_layers=1,
)  # fmt: skip

DRAFT = NanoShape(
    vocab_size=N_VOCAB, hidden_size=128, intermediate_size=384, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
)  # fmt: skip

# Drafters for the first; embedding and head are the target's.
EAGLE3 = NanoShape(
    vocab_size=N_VOCAB, hidden_size=256, intermediate_size=640, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64,
)  # fmt: skip
DFLASH = replace(EAGLE3, num_hidden_layers=2)

SHAPES = {"nano": NANO, "draft": DRAFT}
