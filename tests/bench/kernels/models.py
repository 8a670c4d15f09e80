"""The shapes that kernels are measured in, and small ones to try the measuring without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    name: str
    hidden: int
    ffn: int  # of a dense layer, or of the shared expert
    vocab: int
    key_heads: int  # Gated DeltaNet
    value_heads: int
    delta_dim: int
    q_heads: int  # attention, with an output gate
    kv_heads: int
    head_dim: int
    rotated: int
    n_delta: int  # layers of the one and of the other kind
    n_attention: int
    n_experts: int = 0
    n_used: int = 0
    expert_ffn: int = 0
    context: int = 32768  # positions that are there when attention is measured
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return (2 * self.key_heads + self.value_heads) * self.delta_dim

    @property
    def inner(self) -> int:
        """Width of a Gated DeltaNet's values and gate."""
        return self.value_heads * self.delta_dim


QWEN_27B = Sizes(
    "27B", hidden=5120, ffn=17408, vocab=248320, key_heads=16, value_heads=48, delta_dim=128,
    q_heads=24, kv_heads=4, head_dim=256, rotated=64, n_delta=48, n_attention=16,
)  # fmt: skip
QWEN_35B_A3B = Sizes(
    "35B-A3B", hidden=2048, ffn=512, vocab=248320, key_heads=16, value_heads=32, delta_dim=128,
    q_heads=16, kv_heads=2, head_dim=256, rotated=64, n_delta=30, n_attention=10,
    n_experts=256, n_used=8, expert_ffn=512,
)  # fmt: skip
MODELS = (QWEN_27B, QWEN_35B_A3B)


def tiny(sizes: Sizes) -> Sizes:
    """As many kinds of everything, as little of it as kernels take, in sizes that tests of the
    kernels have compiled for the CPU already."""
    return replace(
        sizes, name=f"tiny {sizes.name}", hidden=256, ffn=512, vocab=512, key_heads=1,
        value_heads=sizes.value_heads // sizes.key_heads, delta_dim=32,
        q_heads=sizes.q_heads // sizes.kv_heads, kv_heads=1, head_dim=64, rotated=32,
        n_delta=2, n_attention=1, n_experts=min(sizes.n_experts, 8), n_used=min(sizes.n_used, 2),
        expert_ffn=min(sizes.expert_ffn, 256), context=300, rows=(1, 4),
    )  # fmt: skip
