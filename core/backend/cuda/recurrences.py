"""Recurrent layers other than Gated DeltaNet: Mamba-2, Kimi's delta attention, short convolutions.

Their parts are launches of their own, for steps and prompts alike.
"""

from __future__ import annotations

from typing import NamedTuple

from ....cuda_kernels import recurrence_parts as parts
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.recurrence_parts import Columns, Convolution, LayerStep, ScanWeights
from ..layers import ChannelDelta, Norm, ShortConvolution, StateSpace
from .device_step import DeviceStep
from .state import CudaState
from .step_memory import StepMemory


class DeltaRows(NamedTuple):
    inputs: Array  # (T, q | k | v | beta)
    waits: Array  # of decays
    gates: Array


class Recurrences:
    def __init__(self, memory: StepMemory) -> None:
        self._memory, self._launcher = memory, memory.device.launcher

    def state_space(
        self, rows: Array, layer: StateSpace, state: CudaState, step: DeviceStep
    ) -> Array:
        """Of rows [z | x | B | C | dt]."""
        s, at = layer.shape, _place(state, layer.layer, step)
        inputs, dt = Columns(rows, s.value_width), Columns(rows, s.value_width + s.channels)
        made = self._convolved(at, inputs, Convolution(layer.conv1d, layer.conv_bias, True))
        out = self._memory.rows(len(rows), s.value_width)
        weights = ScanWeights(layer.dt_bias, layer.a, layer.d)
        parts.scan(self._launcher, at, made, dt, weights, out)
        self._finish(out, rows, s.n_key_heads, layer.norm, is_delta=False)
        parts.keep(self._launcher, at, inputs)
        return out

    def channel_delta(
        self, rows: DeltaRows, layer: ChannelDelta, state: CudaState, step: DeviceStep
    ) -> Array:
        s, at, inputs = layer.shape, _place(state, layer.layer, step), Columns(rows.inputs)
        made = self._convolved(at, inputs, Convolution(layer.conv1d, activated=True))
        out, beta = self._memory.rows(len(made), s.value_width), Columns(rows.inputs, s.channels)
        weights = ScanWeights(layer.dt_bias, layer.a, eps=layer.unit_eps)
        parts.scan(self._launcher, at, made, beta, weights, out, rows.waits)
        self._finish(out, rows.gates, s.n_value_heads, layer.norm, is_delta=True)
        parts.keep(self._launcher, at, inputs)
        return out

    def short_convolution(
        self, rows: Array, layer: ShortConvolution, state: CudaState, step: DeviceStep
    ) -> Array:
        """Of rows [b | c | x]."""
        n, at = layer.shape.channels, _place(state, layer.layer, step)
        inputs = Columns(self._memory.rows(len(rows), n))
        parts.products(self._launcher, rows, inputs.rows)
        out = self._convolved(at, inputs, Convolution(layer.weight), Columns(rows, n))
        parts.keep(self._launcher, at, inputs)
        return out

    def _convolved(
        self,
        at: LayerStep,
        inputs: Columns,
        convolution: Convolution,
        gates: Columns | None = None,
    ) -> Array:
        out = self._memory.rows(len(inputs.rows), at.layout.channels)
        parts.convolve(self._launcher, at, inputs, convolution, out, gates)
        return out

    def _finish(
        self, out: Array, gates: Array, n_slices: int, norm: Norm | None, *, is_delta: bool
    ) -> None:
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        parts.finish(self._launcher, out, gates, n_slices, norm=weight, eps=eps, is_delta=is_delta)


def _place(state: CudaState, layer: int, step: DeviceStep) -> LayerStep:
    return LayerStep(state.layout, state.delta_layer(layer), step.delta)
