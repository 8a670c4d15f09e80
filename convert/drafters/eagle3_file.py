"""`eagle3`: layers over the inputs of some layers of the target; EAGLE-3.1 as well."""

from __future__ import annotations

from typing import Final

from ...core.gguf.metadata import Metadata
from ...core.gguf.reader import GgufFile
from .drafter_shapes import (
    DrafterDescription,
    DrafterSizes,
    Shapes,
    add_vocabulary,
    count_vocabulary,
    in_block,
    latent_block,
    read_layers,
)

LLAMA_CPP_TAPS: Final = 3  # whatever a file says


def describe_eagle3(file: GgufFile) -> DrafterDescription:
    meta = file.metadata
    sizes = DrafterSizes.read(meta)
    e = sizes.n_embd
    width = meta.int("target_hidden_size", low=1)
    out = DrafterDescription("an EAGLE3 drafter", "eagle3", width, count_vocabulary(file))
    read_layers(meta, out)
    n_taps = max(1, len(out.layers))
    out.required = {
        "fc.weight": (e, n_taps * width),
        "output_norm.weight": (e,),
        **in_block(0, {"attn_norm_2.weight": (e,)}),
    }
    n_rot = meta.int("rope.dimension_count", sizes.key_dim, low=2, high=sizes.key_dim)
    out.optional["rope_freqs.weight"] = (n_rot // 2,)
    for n in range(sizes.n_layers):
        n_in = e if n else 2 * e
        is_latent = f"blk.{n}.attn_kv_a_mqa.weight" in file.tensors
        latent = latent_block(meta, sizes, n_in) if is_latent else None
        out.required |= sizes.block(n, n_in, latent)
        norms: Shapes = dict.fromkeys(
            ("attn_q_norm.weight", "attn_k_norm.weight"), (sizes.key_dim,)
        )
        has_norms = f"blk.{n}.attn_q_norm.weight" in file.tensors
        out.required |= in_block(n, norms if has_norms else {})
        out.optional |= in_block(n, {"rope_freqs.weight": (n_rot // 2,)})
    _add_feature_norms(meta, out, n_taps * width)
    meta.bool("norm_before_residual", False)
    _add_limits_of_llama_cpp(file, out, sizes)
    add_vocabulary(file, out, e)
    return out


def _add_feature_norms(meta: Metadata, out: DrafterDescription, joined: int) -> None:
    n_taps = max(1, len(out.layers))
    if meta.bool("fc_norm", False):
        out.words = "an EAGLE-3.1 drafter"
        out.required |= {f"fc_norm.{i}.weight": (joined // n_taps,) for i in range(n_taps)}
        if meta.bool("norm_before_fc", False):
            out.complaints.append(
                "eagle3.fc_norm and eagle3.norm_before_fc are both true: one of them norms the "
                "target's rows"
            )
    elif meta.bool("norm_before_fc", False):
        out.required["enc.output_norm.weight"] = (joined,)


def _add_limits_of_llama_cpp(file: GgufFile, out: DrafterDescription, sizes: DrafterSizes) -> None:
    """What it refuses, and what it passes over, so that it drafts worse there."""
    meta, refusals, remarks = file.metadata, out.refusals, out.remarks
    if sizes.n_layers != 1:
        refusals.append(f"it has {sizes.n_layers} layers, llama.cpp knows EAGLE3 with one")
    if len(out.layers) != LLAMA_CPP_TAPS:
        refusals.append(
            f"it reads {len(out.layers)} layers of the target, llama.cpp knows EAGLE3 with three"
        )
    if any(name.endswith("attn_q_norm.weight") for name in file.tensors):
        refusals.append("its heads have norms, for which llama.cpp's EAGLE3 has no tensors")
    if any(name.endswith("attn_kv_a_mqa.weight") for name in file.tensors):
        refusals.append("its attention is over latent vectors (MLA), llama.cpp's EAGLE3 has not")
    if meta.bool("fc_norm", False):
        refusals.append("each tapped row has a norm (fc_norm), which llama.cpp does not know")
    if meta.bool("norm_output", False):
        remarks.append(
            "drafted rows go on behind the last norm (norm_output), which llama.cpp passes over: "
            "from the second token on it drafts worse"
        )
    if meta.bool("norm_output_unsure", False):
        remarks.append(
            "it leaves open whether drafted rows go on behind the last norm (norm_output): a first "
            "run here measures it, llama.cpp takes the rows before the norm"
        )
    if meta.int("attention.sliding_window", 0):
        remarks.append(
            "its layers have a window, which llama.cpp passes over: it drafts worse in long texts"
        )
