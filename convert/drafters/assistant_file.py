"""`gemma4-assistant`: layers that read the keys and values of a Gemma 4."""

from __future__ import annotations

from ...core.gguf.reader import GgufFile
from .drafter_shapes import DrafterDescription, DrafterSizes, Shapes, count_vocabulary, in_block


def describe_assistant(file: GgufFile) -> DrafterDescription:
    meta = file.metadata
    sizes = DrafterSizes.read(meta)
    e, width = sizes.n_embd, meta.int("embedding_length_out", low=1)
    out = DrafterDescription(
        "a Gemma 4 assistant", "gemma4-assistant", width, count_vocabulary(file)
    )
    out.n_head, out.target_architecture = out.n_vocab, "gemma4"  # the head is the embeddings
    narrow = meta.int("attention.key_length_swa", low=1)
    is_windowed = meta.bools("attention.sliding_window_pattern", length=sizes.n_layers)
    meta.int("attention.sliding_window", low=1)
    if width == e:
        out.refusals.append(
            f"gemma4-assistant.embedding_length_out is {e}, which is the assistant's own: "
            "llama.cpp refuses the file"
        )
    out.required = {
        "token_embd.weight": (out.n_vocab, e),
        "output_norm.weight": (e,),
        "nextn.pre_projection.weight": (e, 2 * width),
        "nextn.post_projection.weight": (width, e),
    }
    factors: Shapes = {"rope_freqs.weight": (sizes.key_dim // 2,)}
    if all(is_windowed):
        out.optional = factors
    else:
        out.required |= factors
    for n, windowed in enumerate(is_windowed):
        out.required |= _layer(sizes, n, narrow if windowed else sizes.key_dim)
    return out


def _layer(sizes: DrafterSizes, n: int, head: int) -> Shapes:
    block = sizes.block(n, sizes.n_embd)
    for stem in ("attn_k.weight", "attn_v.weight"):
        del block[f"blk.{n}.{stem}"]
    e = sizes.n_embd
    return block | in_block(
        n,
        {
            "attn_q.weight": (sizes.n_heads * head, e),
            "attn_output.weight": (e, sizes.n_heads * head),
            "attn_q_norm.weight": (head,),
            "post_attention_norm.weight": (e,),
            "post_ffw_norm.weight": (e,),
            "layer_output_scale.weight": (1,),
        },
    )
