"""Sizes of drafters, under the names that `config.json` files use for them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ...core.runtime import Runtime

HEAD_DIM: Final = 64  # where the target's heads are none that a drafter can have


class DrafterShape(Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096

    @property
    def size_keys(self) -> dict[str, int]:
        """Keys of a file, without its architecture, that the shapes of matrices follow from."""
        return {
            "block_count": self.num_hidden_layers,
            "embedding_length": self.hidden_size,
            "feed_forward_length": self.intermediate_size,
            "attention.head_count": self.num_attention_heads,
            "attention.head_count_kv": self.num_key_value_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_count": self.head_dim,
        }


# For the bundled model, whose embedding and head they use.
EAGLE3 = DrafterShape(
    hidden_size=256, intermediate_size=640, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64,
)  # fmt: skip
DFLASH = replace(EAGLE3, num_hidden_layers=2)


def shape_for(runtime: Runtime) -> DrafterShape:
    """Of one more layer like the target's last, as far as that is one of the usual kind."""
    h, tensors = runtime.model.hparams, runtime.file.tensors
    meta, last = runtime.file.metadata, f"blk.{h.n_layers - 1}"
    width, n, n_kv, dim = h.n_embd, h.n_heads[-1], h.n_kv_heads[-1], h.key_dim
    query = tensors.get(f"{last}.attn_q.weight")
    is_usual = query is not None and query.shape == (n * dim, width) and h.value_dim == dim
    if not is_usual or not n_kv or dim % 2:
        dim = min(HEAD_DIM, width)
        n = n_kv = width // dim
    gate = tensors.get(f"{last}.ffn_gate.weight")
    return DrafterShape(
        hidden_size=width,
        intermediate_size=_near_eight_thirds(width) if gate is None else gate.shape[0],
        num_hidden_layers=1,
        num_attention_heads=n,
        num_key_value_heads=n_kv,
        head_dim=dim,
        rope_theta=meta.float("rope.freq_base", 10_000.0),
        rms_norm_eps=h.eps,
        max_position_embeddings=h.n_ctx_train,
    )


def _near_eight_thirds(width: int) -> int:
    return -(-8 * width // 3 // 64) * 64
