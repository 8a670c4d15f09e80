"""Gated DeltaNet of a prompt in chunks of 64 rows (`gdn_chunk.cu`), on tensor cores.

Leaves the state as of the last row, with nothing pending; the half that the header names, and its
`base`, are for `gdn_step`, which has to run the rows behind.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gdn_layout import HEAD_DIMS, GdnSequences, GdnShape, GdnState
from .gdn_step import GdnWeights
from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

CHUNK = 64
THREADS = 256
_PAD = 4


def _source(head_dim: int, kernel: int) -> Source:
    return Source("gdn_chunk.cu", (("HEAD_DIM", head_dim), ("CONV_WIDTH", kernel)))


def _chunk_bytes(head_dim: int) -> int:
    """Of a chunk in shared memory."""
    return 4 * CHUNK * (2 * (head_dim + _PAD) + CHUNK + _PAD + 2)


def prepared_values(head_dim: int) -> int:
    """What is kept of a chunk and value head between two launches, in floats."""
    return CHUNK * (4 * head_dim + CHUNK) + 4


def _kernels(head_dim: int, kernel: int) -> tuple[Kernel, Kernel, Kernel]:
    source, op = _source(head_dim, kernel), "delta_rule"
    rows = min(32, head_dim)
    slice_bytes = 4 * (rows * (head_dim + _PAD) + CHUNK * (rows + _PAD))
    return (
        Kernel(
            f"gdn_chunk_prepare_{head_dim}", source, f"{op}: of a chunk, without its state",
            THREADS, registers=128, dynamic_shared=_chunk_bytes(head_dim),
        ),
        Kernel(
            f"gdn_chunk_run_{head_dim}", source, f"{op}: chunk after chunk",
            THREADS, registers=128, shared=slice_bytes,
        ),
        Kernel(
            f"gdn_chunk_finish_{head_dim}", source, f"{op}: the gated norm", THREADS, registers=40
        ),
    )  # fmt: skip


KERNELS = tuple(kernel for dim in HEAD_DIMS for kernel in _kernels(dim, 4))


@dataclass(frozen=True, slots=True)
class ChunkSpace:
    """Shared by all layers."""

    prepared: Array  # float32, `prepared_size`
    made: Array  # float32 (rows, value width)

    @staticmethod
    def prepared_size(shape: GdnShape, n_rows: int) -> int:
        return n_rows // CHUNK * shape.n_value_heads * prepared_values(shape.head_dim)


def gdn_chunk(
    launcher: Launcher,
    weights: GdnWeights,
    layer: GdnState,
    sequence: GdnSequences,
    rows: Array,
    space: ChunkSpace,
    out: Array,
) -> None:
    """All rows of one sequence, whole chunks: float32 [q | k | v | z | beta | alpha] to bfloat16
    `out` (T, value width), as uint16. `sequence.starts` is not read."""
    shape = weights.shape
    n_rows, stride = matrix_shape("rows", rows)
    if sequence.check() != 1 or n_rows % CHUNK or not n_rows:
        raise ValueError(f"{n_rows} rows of {sequence.check()} sequences are not chunks of one")
    if stride < shape.channels + shape.gates_width:
        raise ValueError(f"rows of {stride} values, {shape.channels + shape.gates_width} needed")
    weights.check()
    layer.check(shape)
    require_shape("out", out, (n_rows, shape.value_width))
    require_shape("made", space.made, (n_rows, shape.value_width))
    require_shape("prepared", space.prepared, (space.prepared_size(shape, n_rows),))
    prepare, run, finish = _kernels(shape.head_dim, shape.kernel)
    n_chunks, heads = n_rows // CHUNK, (shape.n_key_heads, shape.n_value_heads, int(shape.tiled))
    launcher.launch(
        prepare,
        (n_chunks, shape.n_value_heads),
        [
            *(rows, stride, layer.ring, shape.ring_rows),
            *(weights.conv, weights.dt_bias, weights.a, float(weights.eps)),
            *(sequence.slots, sequence.past, *heads, space.prepared),
        ],
        shared=prepare.dynamic_shared,
    )
    launcher.launch(
        run,
        (shape.n_value_heads, shape.head_dim // min(32, shape.head_dim)),
        [
            *(space.prepared, n_chunks, layer.state, layer.keys, layer.updates, layer.decays),
            *(layer.header, sequence.slots, sequence.past, sequence.n_pending_accepted, *heads),
            *(shape.window, space.made),
        ],
    )
    launcher.launch(
        finish,
        (n_rows, -(-shape.n_value_heads // 8)),
        [
            *(space.made, rows, stride, shape.channels),
            *(weights.norm, float(weights.eps), shape.n_value_heads, out),
        ],
    )
