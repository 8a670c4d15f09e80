"""Gated DeltaNet of a layer.

Where the first product makes all that goes through the convolution, and a sequence has no more rows
than its ring, the product writes into the ring. Else the rows are kept by a launch of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ....cuda_kernels import qmm
from ....cuda_kernels.gdn_chunk import CHUNK, ChunkSpace, gdn_chunk
from ....cuda_kernels.gdn_layout import GdnSequences, GdnShape
from ....cuda_kernels.gdn_rows import DEAD_ROW, keep_rows, ring_rows
from ....cuda_kernels.gdn_step import (
    GdnRows,
    GdnWeights,
    GdnWorkspace,
    gdn_step,
    n_arrivals,
    raw_shape,
)
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.norm_quant import NormOutputs
from ....cuda_kernels.packed import PackedRows
from ..layers import DeltaRule
from .device_step import DeviceStep
from .products import Product, Products
from .state import CudaState
from .step_memory import StepMemory, rounded_up

_ALIGNED = 4  # values: where rows of gates begin


class DeltaRunner:
    def __init__(self, memory: StepMemory, products: Products) -> None:
        self._memory, self._products = memory, products
        self._device, self._launcher = memory.device, memory.launcher

    def run(
        self, rows: Array, delta: DeltaRule, state: CudaState, step: DeviceStep, out: NormOutputs
    ) -> None:
        """Of rows [q | k | v | z | beta | alpha]."""
        shape = state.gdn_shape(delta)
        inputs = GdnRows(rows, shape.channels, rows, step.shape.max_rows)
        self._step(inputs, delta, state, step, out)
        ring = state.delta_layer(delta.layer).ring
        keep_rows(self._launcher, shape, step.delta, rows, ring)

    def run_prompt(
        self,
        rows: Array,
        delta: DeltaRule,
        state: CudaState,
        step: DeviceStep,
        out: Array,
        *,
        behind: int,
    ) -> None:
        """Of one prompt, to bfloat16: in chunks, except for its last `behind` rows or some more,
        which `gdn_step` runs, so that all is left as by any other step."""
        shape, layer = state.gdn_shape(delta), state.delta_layer(delta.layer)
        whole = (step.n_rows - behind) // CHUNK * CHUNK
        if whole <= 0 or behind < shape.window:
            self.run(rows, delta, state, step, NormOutputs(halves=out))
            return
        first, last = self._halves(step, whole)
        made, beside = rows[:whole], rows[whole:]
        space = ChunkSpace(
            self._device.empty((ChunkSpace.prepared_size(shape, whole),), "float32"),
            self._device.empty((whole, shape.value_width), "float32"),
        )
        weights = self._weights(delta, shape)
        gdn_chunk(self._launcher, weights, layer, first, made, space, out[:whole])
        keep_rows(self._launcher, shape, first, made, layer.ring)
        n_rows = step.n_rows - whole
        inputs = GdnRows(beside, shape.channels, beside, n_rows)
        outputs = NormOutputs(halves=out[whole:])
        gdn_step(
            self._launcher, weights, layer, last, inputs, self._workspace(shape, n_rows, 1), outputs
        )
        keep_rows(self._launcher, shape, last, beside, layer.ring)

    def _halves(self, step: DeviceStep, whole: int) -> tuple[GdnSequences, GdnSequences]:
        """Of a prompt whose first `whole` rows run apart from the others."""
        if "behind" not in step.made:
            past = int(step.past[0])
            numbers = [0, whole, 0, step.n_rows - whole, past + whole, 0]
            step.made["behind"] = self._device.put(np.array(numbers, np.int32))
        numbers_there, delta = step.made["behind"], step.delta
        return (
            replace(delta, starts=numbers_there[0:2]),
            GdnSequences(numbers_there[2:4], delta.slots, numbers_there[4:5], numbers_there[5:6]),
        )

    def run_product(
        self,
        product: Product,
        delta: DeltaRule,
        state: CudaState,
        step: DeviceStep,
        out: PackedRows,
    ) -> bool:
        """The same before they are made; False: that cannot be."""
        shape, first = state.gdn_shape(delta), product.w.pieces[0]
        fits = shape.rows_needed(step.shape.max_rows) <= shape.ring_rows
        if product.rows is not None or not fits or shape.gates_width % _ALIGNED:
            return False
        if not isinstance(first.weights, qmm.Matrix) or first.weights.rows < shape.channels:
            return False
        ring = state.delta_layer(delta.layer).ring.reshape(-1, shape.channels)
        gates = self._memory.rows(step.n_rows, shape.gates_width)
        split = qmm.Split(shape.channels, ring, self._ring_rows(shape, step))
        self._products.write_split(product.a, product.w, split, gates)
        inputs = GdnRows(gates, 0, None, step.shape.max_rows)
        self._step(inputs, delta, state, step, NormOutputs(packed=out))
        return True

    def _ring_rows(self, shape: GdnShape, step: DeviceStep) -> Array:
        """Where each row of the step goes, in all layers."""
        found = step.made.get("ring rows")
        if found is None:
            found = step.made["ring rows"] = self._device.empty((step.n_rows,), "int32")
            # Where every row belongs to a sequence, none goes to `spare`.
            spare = DEAD_ROW if step.is_padded else 0
            ring_rows(self._launcher, shape, step.delta, found, spare=spare)
        return found

    def _step(
        self,
        rows: GdnRows,
        delta: DeltaRule,
        state: CudaState,
        step: DeviceStep,
        out: NormOutputs,
    ) -> None:
        shape, layer = state.gdn_shape(delta), state.delta_layer(delta.layer)
        weights = self._weights(delta, shape)
        space = self._workspace(shape, step.n_rows, step.n_sequences)
        gdn_step(self._launcher, weights, layer, step.delta, rows, space, out)

    def _weights(self, delta: DeltaRule, shape: GdnShape) -> GdnWeights:
        norm = delta.norm
        return GdnWeights(shape, delta.conv1d, delta.dt_bias, delta.a, norm.weight, norm.eps)

    def _workspace(self, shape: GdnShape, n_rows: int, n_sequences: int) -> GdnWorkspace:
        n_rows, n_sequences = rounded_up(n_rows), rounded_up(n_sequences, 1)
        n_values = math.prod(raw_shape(shape, n_rows))
        n_counters = n_arrivals(shape, n_rows, n_sequences)
        return GdnWorkspace(
            self._memory.kept("raw", n_values, 1), self._memory.kept("counters", n_counters, 1)
        )
