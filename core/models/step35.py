"""Step-3.5 and 3.7, GGUF architecture `step35`: windows, a gate for each head, limited experts.

Layers with a window may have other numbers of heads. MTP heads continue from rows before the last
norm, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.layers import Gate, RopePairs
from .dense import BlockTraits, DenseModel
from .ffn import FfnTraits, Shared
from .rope import RopeSpec, build_rope
from .self_attention import AttentionTraits
from .window_keys import read_windows

if TYPE_CHECKING:
    from ..gguf.metadata import Metadata
    from .model_weights import Weights


class Step35(DenseModel):
    norms_hidden = False

    def traits(self, weights: Weights) -> Callable[[int], BlockTraits]:
        h, meta = self.hparams, weights.file.metadata
        windows = read_windows(meta, h)
        of_experts, of_dense = (self._limits(meta, f"swiglu_clamp_{x}") for x in ("exp", "shexp"))
        # Rope turns half of a head where a row sees all cells, whatever the key says.
        half = RopeSpec(n_rot=h.key_dim // 2, n_factors=h.key_dim // 2)
        nearby = RopeSpec("_swa", n_rot=h.key_dim, is_scaled=False, has_factors=False)
        ropes = [build_rope(weights, h.key_dim, RopePairs.HALVES, x) for x in (half, nearby)]

        def of_block(block: int) -> BlockTraits:
            window = windows[block]
            return BlockTraits(
                ropes[bool(window)],
                AttentionTraits(head_norms=True, head_gates=True, window=window),
                FfnTraits(Gate(limit=of_experts[block]), Gate(limit=of_dense[block]), Shared.PLAIN),
            )

        return of_block

    def _limits(self, meta: Metadata, key: str) -> tuple[float, ...]:
        n_blocks = len(self.hparams.n_heads)
        limits = meta.floats(key, (), low=0.0)
        return limits[:n_blocks] + (0.0,) * (n_blocks - len(limits))
