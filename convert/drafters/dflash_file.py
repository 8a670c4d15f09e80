"""`dflash`: a block of tokens in one pass. DFlash2 adds convolutions and a selector among the
likeliest tokens, DSpark a bias from token to token and a confidence."""

from __future__ import annotations

from typing import Final

from ...core.gguf.metadata import Metadata
from ...core.gguf.reader import GgufFile
from .drafter_shapes import (
    MAX_BLOCK,
    DrafterDescription,
    DrafterSizes,
    Shapes,
    add_vocabulary,
    count_vocabulary,
    in_block,
    read_layers,
)

USUAL_BLOCK: Final = 16
MASK: Final = "tokenizer.ggml.mask_token_id"
SELECTOR: Final = "selector_hidden.weight"
MARKOV: Final = "markov_w1.weight"
_ACTIVATIONS: Final = ("silu", "gelu", "gelu_pytorch_tanh")


def describe_dflash(file: GgufFile) -> DrafterDescription:
    meta, tensors = file.metadata, file.tensors
    sizes = DrafterSizes.read(meta)
    out = DrafterDescription("a DFlash drafter", "dflash", sizes.n_embd, count_vocabulary(file))
    if meta.int("hyper_connection.count", 0):
        out.words = "a DSpark drafter of DeepSeek V4"
        out.unknown = "hyper-connections are not known here; llama.cpp runs it"
        return out
    read_layers(meta, out)
    _read_block(meta, out, is_dspark=MARKOV in tensors)
    _read_mask(meta, out)
    _add_common(file, out, sizes)
    if SELECTOR in tensors or meta.has("conv_kernel_size"):
        _add_dflash2(meta, out, sizes)
    add_vocabulary(file, out, sizes.n_embd)
    _check_head(file, out)
    if MARKOV in tensors or "markov_w2.weight" in tensors:
        _add_dspark(file, out, sizes)
    return out


def _read_block(meta: Metadata, out: DrafterDescription, *, is_dspark: bool) -> None:
    out.block_size = meta.int("block_size", USUAL_BLOCK, low=1, high=MAX_BLOCK)
    from_anchor = meta.bool("sample_from_anchor", is_dspark)
    out.most = out.block_size - (not from_anchor)
    if from_anchor and not is_dspark:
        out.remarks.append(
            "the first row of a block drafts as well (sample_from_anchor), which llama.cpp heeds "
            "of DSpark alone: there its drafts are one token late"
        )
    if out.most < 1:
        out.complaints.append(f"dflash.block_size is {out.block_size}: nothing would be drafted")
    activation = meta.str("hidden_activation", "silu")
    if activation not in _ACTIVATIONS:
        out.complaints.append(
            f"dflash.hidden_activation is {activation[:40]!r}, expected {', '.join(_ACTIVATIONS)}"
        )


def _read_mask(meta: Metadata, out: DrafterDescription) -> None:
    out.mask = meta.int(MASK, None)
    if out.mask is None:
        out.complaints.append(f"{MASK} is missing: it stands for the tokens to be drafted")
    elif out.n_vocab and out.mask >= out.n_vocab:
        out.complaints.append(f"{MASK} is {out.mask}, but the vocabulary has {out.n_vocab} tokens")


def _check_head(file: GgufFile, out: DrafterDescription) -> None:
    if "token_embd.weight" in file.tensors and "output.weight" not in file.tensors:
        out.remarks.append(
            "it has embeddings and no head: the head is the target's, but llama.cpp takes the "
            "embeddings for it"
        )


def _add_common(file: GgufFile, out: DrafterDescription, sizes: DrafterSizes) -> None:
    meta, e = file.metadata, sizes.n_embd
    fc, n_features = file.tensors.get("fc.weight"), max(1, len(out.layers))
    if fc is not None and not fc.shape[-1] % n_features:
        out.target_width = fc.shape[-1] // n_features
    if out.target_width != e:
        out.refusals.append(
            f"fc.weight reads rows of {out.target_width}, the drafter is {e} wide: llama.cpp "
            "refuses the file"
        )
    out.required = {
        "fc.weight": (e, n_features * out.target_width),
        "enc.output_norm.weight": (e,),
        "output_norm.weight": (e,),
    }
    n_rot = meta.int("rope.dimension_count", sizes.key_dim, low=2, high=sizes.key_dim)
    out.optional = {"rope_freqs.weight": (n_rot // 2,)}
    for n in range(sizes.n_layers):
        block = sizes.block(n, e)
        values = f"blk.{n}.attn_v.weight"
        if sizes.key_dim == sizes.value_dim:  # without it, values are what keys are made of
            out.optional[values] = block.pop(values)
        norms: Shapes = {"attn_q_norm.weight": (sizes.key_dim,)}
        norms["attn_k_norm.weight"] = norms["attn_q_norm.weight"]
        out.required |= block | in_block(n, norms)
        out.optional |= in_block(
            n,
            {
                "post_attention_norm.weight": (e,),
                "post_ffw_norm.weight": (e,),
                "layer_output_scale.weight": (1,),
                "attn_sinks.weight": (sizes.n_heads,),
                "rope_freqs.weight": (n_rot // 2,),
            },
        )


def _add_dflash2(meta: Metadata, out: DrafterDescription, sizes: DrafterSizes) -> None:
    out.words = "a DFlash2 drafter"
    e = sizes.n_embd
    kernel = meta.int("conv_kernel_size", low=1, high=MAX_BLOCK)
    group = meta.int("conv_group_size", low=1, high=e)
    rank = meta.int("selector_rank", low=1, high=e)
    top_k = meta.int("selector_top_k", low=1, high=MAX_BLOCK)
    if e % group:
        out.complaints.append(f"dflash.conv_group_size is {group}, which does not divide {e}")
    if e < top_k * (top_k + 1):
        out.refusals.append(
            f"rows of {e} do not hold the scores of dflash.selector_top_k {top_k}, "
            f"{top_k * (top_k + 1)} numbers: llama.cpp refuses the file"
        )
    coefficients = 2 * kernel * (e // group)
    for n in range(sizes.n_layers):
        for place in ("attn", "ffn"):
            out.required[f"blk.{n}.{place}_conv_base"] = (2, kernel, e)
            out.required[f"blk.{n}.{place}_conv_proj.weight"] = (coefficients, e)
    books: Shapes = dict.fromkeys(
        ("selector_predecessor.weight", "selector_successor.weight"), (out.n_vocab, rank)
    )
    out.required |= books | {SELECTOR: (rank, e)}


def _add_dspark(file: GgufFile, out: DrafterDescription, sizes: DrafterSizes) -> None:
    out.words = "a DSpark drafter"
    w1 = file.tensors.get(MARKOV)
    rank = w1.shape[-1] if w1 is not None else 1
    n_head = out.n_head or out.n_vocab
    out.required |= {MARKOV: (out.n_vocab, rank), "markov_w2.weight": (n_head, rank)}
    confidence: Shapes = {"conf_proj.weight": (1, sizes.n_embd + rank)}
    out.optional["conf_proj.bias"] = (1,)
    says = file.metadata.bool("has_confidence_head", None)
    if says or "conf_proj.weight" in file.tensors:
        out.required |= confidence
    elif says is None:
        out.remarks.append(
            "dflash.has_confidence_head is missing, which llama.cpp reads as true, and there is no "
            "conf_proj: with --spec-draft-p-min it fails"
        )
