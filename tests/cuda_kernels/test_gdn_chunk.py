"""The delta rule in chunks: against the reference in float64, and with `gdn_step` behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from shim.machine import Machine
from support.gdn import EPS, Floats, GdnLayer, KernelRun, Part, ReferenceRun, error, gdn_shape

from nextn.cuda_kernels.gdn_chunk import ChunkSpace, gdn_chunk
from nextn.cuda_kernels.gdn_layout import GdnSequences
from nextn.cuda_kernels.gdn_rows import keep_rows

SLOT = 1


def run_chunks(of: KernelRun, part: Part) -> tuple[Floats, Floats]:
    """Rows that became bfloat16, and what they were before their norm; the ring is kept as well."""
    m, shape = of.machine, of.layer.shape
    n = len(part.rows)
    columns = ([0, n], [part.slot], [part.past], [part.n_pending_accepted])
    sequence = GdnSequences(*(m.put(np.array(x, np.int32)) for x in columns))
    rows, out = m.put(part.rows), m.garbage((n, shape.value_width), np.uint16)
    space = ChunkSpace(
        m.garbage((ChunkSpace.prepared_size(shape, n),)), m.garbage((n, shape.value_width))
    )
    gdn_chunk(m.launcher, of.weights, of.state, sequence, rows, space, out)
    keep_rows(m.launcher, shape, sequence, rows, of.state.ring)
    words = m.get(out).astype(np.uint32) << 16
    found: Floats = words.view(np.float32)
    return found, m.get(space.made)


def normed(made: Floats, of: KernelRun, part: Part) -> NDArray[np.float64]:
    """The end of the op in float64."""
    shape = of.layer.shape
    heads = made.astype(np.float64).reshape(len(made), shape.n_value_heads, -1)
    z = part.rows[:, shape.channels : shape.channels + shape.value_width].astype(np.float64)
    factor = 1 / np.sqrt((heads**2).mean(axis=2, keepdims=True) + EPS)
    rows = (heads * factor * of.layer.norm).reshape(z.shape)
    found: NDArray[np.float64] = rows * z / (1 + np.exp(-z))
    return found


@pytest.mark.parametrize(
    ("heads", "head_dim", "tiled", "n_parts"),
    [((1, 1), 128, False, 2), ((1, 2), 64, False, 1), ((2, 4), 16, True, 4)],
)
@pytest.mark.slow
def test_chunks_are_near_the_reference(
    machine: Machine, heads: tuple[int, int], head_dim: int, tiled: bool, n_parts: int
) -> None:
    """From nothing, then behind rows that are pending; and what follows goes on from there."""
    layer = GdnLayer(gdn_shape(heads, head_dim, window=8, tiled=tiled), n_rows=210)
    kernels, reference = KernelRun(machine, layer, 2, plain=True), ReferenceRun(layer, 2)
    # (rows, in chunks, pending before: of the kernels, of the reference)
    plan = [(64, True, 0, 0), (6, False, 0, 8), (128, True, 6, 6), (9, False, 0, 8)]
    past = 0
    for n_rows, in_chunks, own, of_reference in plan[:n_parts]:
        part = Part(SLOT, past, own, layer.true_rows[past : past + n_rows])
        expected = reference.step([replace(part, n_pending_accepted=of_reference)])
        if in_chunks:
            found, made = run_chunks(kernels, part)
            assert error(normed(made, kernels, part), expected) < 3e-6
            assert error(found, expected) < 2e-3
        else:
            assert error(kernels.step([part]).rows, expected) < 3e-6
        past += n_rows


def test_what_is_no_whole_chunk_is_refused(machine: Machine) -> None:
    layer = GdnLayer(gdn_shape((1, 1), 16, window=8), n_rows=70)
    with pytest.raises(ValueError, match="70 rows of 1 sequences are not chunks of one"):
        run_chunks(KernelRun(machine, layer, 2), Part(SLOT, 0, 0, layer.true_rows[:70]))
