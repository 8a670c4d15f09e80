"""Latent attention as recorded entries: absorb, append, attend, unfold."""

from __future__ import annotations

from ...errors import ConfigError
from ..layers import LatentAttention
from .formats.tile_format import Record
from .kernels.attention_shape import AttentionShape
from .kernels.latent_prep import HeadWords, LatentShape, write_head_product, write_latent_prep
from .kernels.tile import WIDTHS
from .ops import activations, add_tile_functions, attend_rows, name_of
from .program import FloatRows, PackedActivations, Recording
from .state import CpuState
from .tile_matrix import CpuMatrix


def attend_latent(
    r: Recording, q: FloatRows, cells: FloatRows, a: LatentAttention, state: CpuState
) -> PackedActivations:
    shape, inputs = LatentShape.of(a, state.page_len), r.inputs
    pages = state.kv[a.layer].keys.ctypes.data
    table = inputs.rope_table(a.rope, state.n_pages * state.page_len + inputs.max_rows)
    queries = FloatRows(r, a.n_heads * shape.padded, q.row_set)
    absorbed = PackedActivations(r, q.width, q.row_set, rows=q)
    _head_product(r, absorbed, shape.head_width, a.k_b, queries, shape.padded)
    r.add(
        name_of("latent_prep", shape),
        lambda e: write_latent_prep(e, shape),
        [
            inputs.address, q.address, cells.address, a.latent_norm.weight.ctypes.data,
            table.rows.ctypes.data, pages, queries.address,
        ],
    )  # fmt: skip
    attending = AttentionShape.of_latent(a, shape.padded, state.page_len)
    latents = attend_rows(r, queries, attending, (pages, pages), 0)
    out = FloatRows(r, a.n_heads * a.value_dim, q.row_set)
    _head_product(r, latents, a.latent, a.v_b, out, a.value_dim)
    return PackedActivations(r, out.width, out.row_set, rows=out)


def _head_product(
    r: Recording, a: PackedActivations, stride: int, w: CpuMatrix, out: FloatRows, out_stride: int
) -> None:
    """Of each head's part of a row, which is `stride` floats behind the one before."""
    (part,) = w.parts
    is_float = part.form.is_float
    if not is_float and (stride % Record.BLOCK or a.width % Record.BLOCK):
        raise ConfigError(
            f"latent attention with heads of {stride} elements and {part.form.name} matrices per "
            "head cannot be run on the CPU; convert attn_k_b and attn_v_b to F16"
        )
    x = activations(a, part)
    in_blocks = stride // Record.BLOCK * Record.SIZE
    tile, tile_scale = part.quants.shape[1], part.scales.shape[1]
    words = r.add(
        "head_product",
        write_head_product,
        [
            a.row_set.address, part.n_expert, part.n_tiles,
            part.quants.ctypes.data, part.n_tiles * tile, tile,
            part.scales.ctypes.data, part.n_tiles * tile_scale, tile_scale, part.n_spans,
            *x.words, 4 * stride if is_float else 0, 0 if is_float else in_blocks,
            out.address, 4 * out.width, 4 * out_stride, part.n_out, *[0] * len(WIDTHS),
        ],
    )  # fmt: skip
    add_tile_functions(r, words, HeadWords.FUNCTIONS, part, is_split=x.is_split)
