"""Parts of attention to rows: sums, sinks, output gate, packing (`attn_combine.cu`)."""

from __future__ import annotations

from .attention import AttentionHeads, AttentionStep, Parts
from .kernel import Array, Kernel, Launcher, Source
from .packed import BLOCK, PackedRows, padded_width, require_packed
from .shapes import require_shape

KERNELS = tuple(
    Kernel(
        name,
        Source("attn_combine.cu"),
        f"attention.attend: the end of the softmax, sinks and {what}",
        threads=512,
        registers=64,
        shared=8 * 64 * (2 + 4) * 4,
    )
    for name, what in (
        ("attn_combine", "the output gate"),
        ("attn_combine_gates", "a gate for each head, the scale of values"),
    )
)


def attn_combine(
    launcher: Launcher,
    heads: AttentionHeads,
    step: AttentionStep,
    parts: Parts,
    qkv: Array | None,
    *,
    sinks: Array | None = None,
    packed: PackedRows | None = None,
    rows: Array | None = None,
) -> None:
    """To `packed` rows, float32 `rows` (T, heads.out_width), or both.

    `qkv`: the rows that attn_prep read, for gates. `sinks`: float32 (heads,).
    """
    parts.require(heads, step.n_rows)
    is_gated = heads.gated or heads.head_gates
    if is_gated:
        require_shape("qkv", qkv, (step.n_rows, heads.width))
    if sinks is not None:
        require_shape("sinks", sinks, (heads.n_heads,))
    if rows is not None:
        require_shape("rows", rows, (step.n_rows, heads.out_width))
    if packed is not None:
        require_packed(packed, step.n_rows, heads.out_width)
    arguments = [parts.sums, parts.totals, parts.n_splits, heads.splits_per_octave, heads.sight]
    arguments += [heads.n_heads, heads.value_dim, sinks]
    arguments += [qkv if is_gated else None, heads.width]
    arguments += [step.starts, step.past, step.n_sequences]
    arguments += [None, None, None, 0] if packed is None else packed.arguments
    blocks = padded_width(heads.out_width) // BLOCK
    kernel = KERNELS[not heads.ends_plainly]
    arguments += [rows]
    if not heads.ends_plainly:
        gates = heads.width - heads.n_heads if heads.head_gates else -1
        arguments += [gates, float(heads.value_scale)]
    launcher.launch(kernel, (blocks, step.n_rows), arguments)
