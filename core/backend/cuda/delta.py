"""Gated DeltaNet of a layer: one launch, and one that keeps its inputs for the next step."""

from __future__ import annotations

from ....cuda_kernels.gdn_layout import GdnShape
from ....cuda_kernels.gdn_rows import keep_rows
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
from .device import Device
from .state import CudaState
from .step import DeviceStep


class DeltaRunner:
    def __init__(self, device: Device) -> None:
        self._device, self._launcher = device, device.launcher
        self._workspaces: dict[tuple[GdnShape, int, int], GdnWorkspace] = {}

    def run(
        self, rows: Array, delta: DeltaRule, state: CudaState, step: DeviceStep, out: PackedRows
    ) -> None:
        shape, layer = state.gdn_shape(delta), state.delta_layer(delta.layer)
        norm, sequences = delta.norm, step.delta
        weights = GdnWeights(shape, delta.conv1d, delta.dt_bias, delta.a, norm.weight, norm.eps)
        inputs = GdnRows(rows, shape.channels, rows, step.shape.max_rows)
        space = self._workspace(shape, step.n_rows, step.n_sequences)
        gdn_step(self._launcher, weights, layer, sequences, inputs, space, NormOutputs(packed=out))
        keep_rows(self._launcher, shape, sequences, rows, layer.ring)

    def _workspace(self, shape: GdnShape, n_rows: int, n_sequences: int) -> GdnWorkspace:
        key = shape, n_rows, n_sequences
        if key not in self._workspaces:
            self._workspaces[key] = GdnWorkspace(
                self._device.empty(raw_shape(shape, n_rows), "float32"),
                self._device.zeros((n_arrivals(shape, n_rows, n_sequences),), "int32"),
            )
        return self._workspaces[key]
