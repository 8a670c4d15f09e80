"""Rows of convolution inputs on their way into the ring of a Gated DeltaNet."""

from __future__ import annotations

from .gdn_layout import GdnSequences, GdnShape
from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

SOURCE = Source("gdn_rows.cu")
RING_ROWS = Kernel("gdn_ring_rows", SOURCE, "delta_rule: inputs", threads=256, registers=40)
KEEP_ROWS = Kernel("gdn_keep_rows", SOURCE, "delta_rule: inputs", threads=256, registers=40)
KERNELS = (RING_ROWS, KEEP_ROWS)

# The ring row that the sequence with the fewest rows would fill next. It is not read if that has
# fewer rows than the window; and some sequence has, where a step is made for as
# many rows of each as the window at most, and is not full.
DEAD_ROW = -1


def ring_rows(
    launcher: Launcher, shape: GdnShape, sequences: GdnSequences, rows: Array, *, spare: int
) -> None:
    """Int32 `rows` (T,): where the input projection puts each row of a step, in every layer.

    A ring is then (slots * ring rows, channels). `spare`: where a row goes that belongs to no
    sequence, because a captured step is wider than what there is to do; for instance a row behind
    those of the slots, or `DEAD_ROW`.
    """
    require_shape("rows", rows, (int(rows.shape[0]),))
    n_sequences = sequences.check()
    arrays = (sequences.starts, sequences.slots, sequences.past)
    sizes = (n_sequences, shape.ring_rows, spare)
    launcher.launch(RING_ROWS, 1, [rows, int(rows.shape[0]), *arrays, *sizes])


def keep_rows(
    launcher: Launcher, shape: GdnShape, sequences: GdnSequences, inputs: Array, ring: Array
) -> None:
    """Plain rows (T, any) of a layer into its ring, after `gdn_step`, which reads the old ones.

    Of a sequence with more rows than the ring has, the last ones.
    """
    n_rows, width = matrix_shape("inputs", inputs)
    if width < shape.channels or width % 4:
        raise ValueError(
            f"inputs: rows of {width}, expected at least {shape.channels}, a multiple of 4"
        )
    require_shape("ring", ring, (int(ring.shape[0]), shape.ring_rows, shape.channels))
    arrays = (sequences.starts, sequences.slots, sequences.past)
    launcher.launch(
        KEEP_ROWS,
        (min(n_rows, shape.ring_rows), sequences.check()),
        [ring, inputs, width, shape.channels, *arrays, shape.ring_rows],
    )
