"""Gated DeltaNet of a layer.

Where the first product makes all that goes through the convolution, and a sequence has no more rows
than its ring, the product writes into the ring. Else the rows are kept by a launch of its own.
"""

from __future__ import annotations

import math

from ....cuda_kernels import qmm
from ....cuda_kernels.gdn_layout import GdnShape
from ....cuda_kernels.gdn_rows import keep_rows, ring_rows
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
from .products import Product, Products
from .rooms import Rooms, roomy
from .state import CudaState
from .step import DeviceStep

_ALIGNED = 4  # values: where rows of gates begin


class DeltaRunner:
    def __init__(self, rooms: Rooms, products: Products) -> None:
        self._rooms, self._products = rooms, products
        self._device, self._launcher = rooms.device, rooms.launcher

    def run(
        self, rows: Array, delta: DeltaRule, state: CudaState, step: DeviceStep, out: NormOutputs
    ) -> None:
        """Of rows [q | k | v | z | beta | alpha]."""
        shape = state.gdn_shape(delta)
        inputs = GdnRows(rows, shape.channels, rows, step.shape.max_rows)
        self._step(inputs, delta, state, step, out)
        ring = state.delta_layer(delta.layer).ring
        keep_rows(self._launcher, shape, step.delta, rows, ring)

    def run_product(
        self,
        product: Product,
        delta: DeltaRule,
        state: CudaState,
        step: DeviceStep,
        out: PackedRows,
    ) -> bool:
        """The same before they are made; False: that cannot be."""
        shape, (first, *others) = state.gdn_shape(delta), product.w.pieces
        fits = shape.rows_needed(step.shape.max_rows) <= shape.ring_rows
        if product.rows is not None or not fits or shape.gates_width % _ALIGNED:
            return False
        if not isinstance(first.weights, qmm.Matrix) or first.weights.rows < shape.channels:
            return False
        ring = state.delta_layer(delta.layer).ring.reshape(-1, shape.channels)
        gates = self._rooms.rows(step.n_rows, shape.gates_width)
        split = qmm.Split(shape.channels, ring, self._ring_rows(shape, step))
        self._products.put_split(product.a, first.weights, split, gates)
        for piece in others:
            self._products.put(product.a, piece, gates, piece.column - shape.channels)
        inputs = GdnRows(gates, 0, None, step.shape.max_rows)
        self._step(inputs, delta, state, step, NormOutputs(packed=out))
        return True

    def _ring_rows(self, shape: GdnShape, step: DeviceStep) -> Array:
        """Where each row of the step goes, in all layers."""
        found = step.made.get("ring rows")
        if found is None:
            found = step.made["ring rows"] = self._device.empty((step.n_rows,), "int32")
            # Every row of a step belongs to a sequence here, so that none goes to `spare`.
            ring_rows(self._launcher, shape, step.delta, found, spare=0)
        return found

    def _step(
        self,
        rows: GdnRows,
        delta: DeltaRule,
        state: CudaState,
        step: DeviceStep,
        out: NormOutputs,
    ) -> None:
        shape, layer, norm = state.gdn_shape(delta), state.delta_layer(delta.layer), delta.norm
        weights = GdnWeights(shape, delta.conv1d, delta.dt_bias, delta.a, norm.weight, norm.eps)
        space = self._workspace(shape, step.n_rows, step.n_sequences)
        gdn_step(self._launcher, weights, layer, step.delta, rows, space, out)

    def _workspace(self, shape: GdnShape, n_rows: int, n_sequences: int) -> GdnWorkspace:
        n_rows, n_sequences = roomy(n_rows), roomy(n_sequences, 1)
        n_values = math.prod(raw_shape(shape, n_rows))
        n_counters = n_arrivals(shape, n_rows, n_sequences)
        return GdnWorkspace(
            self._rooms.kept("raw", n_values, 1), self._rooms.kept("counters", n_counters, 1)
        )
