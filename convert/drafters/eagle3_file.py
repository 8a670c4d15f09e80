"""`eagle3`: one layer over the inputs of three layers of the target."""

from __future__ import annotations

from typing import Final

from ...core.gguf.reader import GgufFile
from .drafter_shapes import (
    DrafterDescription,
    DrafterSizes,
    add_vocabulary,
    count_vocabulary,
    in_block,
    read_layers,
)

N_FEATURES: Final = 3


def describe_eagle3(file: GgufFile) -> DrafterDescription:
    meta = file.metadata
    sizes = DrafterSizes.read(meta)
    e = sizes.n_embd
    width = meta.int("target_hidden_size", low=1)
    out = DrafterDescription("an EAGLE3 drafter", "eagle3", width, count_vocabulary(file))
    read_layers(meta, out, N_FEATURES)
    if sizes.n_layers != 1:
        out.complaints.append(f"eagle3.block_count is {sizes.n_layers}, expected 1")
    out.required = {
        "fc.weight": (e, N_FEATURES * width),
        "output_norm.weight": (e,),
        **sizes.block(0, 2 * e),
        **in_block(0, {"attn_norm_2.weight": (e,)}),
    }
    if meta.bool("norm_before_fc", False):
        out.required["enc.output_norm.weight"] = (N_FEATURES * width,)
    meta.bool("norm_before_residual", False)
    n_rot = meta.int("rope.dimension_count", sizes.key_dim, low=2, high=sizes.key_dim)
    out.optional = dict.fromkeys(("rope_freqs.weight", "blk.0.rope_freqs.weight"), (n_rot // 2,))
    add_vocabulary(file, out, e)
    return out
