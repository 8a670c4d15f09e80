"""Operations of recurrent layers as recorded entries."""

from __future__ import annotations

import numpy as np

from ..layers import ChannelDelta, DeltaRule, ShortConvolution, StateSpace, Vector
from .kernels.delta_kernel import write_delta
from .kernels.delta_parts import DeltaKernelShape, DeltaWords
from .kernels.short_convolution import write_short_convolution
from .kernels.state_space_kernel import packs, write_convolution, write_scan, write_slices
from .kernels.state_space_parts import StateSpaceShape
from .ops import name_of
from .program import FloatRows, PackedActivations, Recording
from .state import CpuState


def delta_rule(r: Recording, rows: FloatRows, d: DeltaRule, state: CpuState) -> PackedActivations:
    return _delta(r, (rows,), d, DeltaKernelShape.of(d, state.window), state)


def channel_delta(
    r: Recording,
    rows: tuple[FloatRows, FloatRows, FloatRows],
    kda: ChannelDelta,
    state: CpuState,
) -> PackedActivations:
    return _delta(r, rows, kda, DeltaKernelShape.of_channels(kda, state.window), state)


def _delta(
    r: Recording,
    given: tuple[FloatRows, ...],
    d: DeltaRule | ChannelDelta,
    shape: DeltaKernelShape,
    state: CpuState,
) -> PackedActivations:
    """`given`: the input rows, and with decays of channels these and the gates."""
    layer, inputs, rows = state.recurrent[d.layer], r.inputs, given[0]
    more = [x.address for x in given[1:]] or [0, 0]
    mixed = FloatRows(r, shape.n_key_heads * shape.mixed_width, rows.row_set)
    gates = FloatRows(r, shape.gate_width, rows.row_set)
    kept = (layer.states, layer.keys, layer.updates, layer.decays)
    words = r.add(
        name_of("delta", shape),
        lambda e: write_delta(e, shape),
        [
            inputs.address, rows.address, _by_tap(r, d.conv1d), layer.ring.ctypes.data,
            d.a.ctypes.data, d.dt_bias.ctypes.data, mixed.address, gates.address,
            *(part.ctypes.data for part in kept), d.norm.weight.ctypes.data,
            mixed.buffer.data.nbytes // shape.n_key_heads, 0, 0, *more,
        ],
    )  # fmt: skip
    width, at = shape.value_width, (DeltaWords.OUT, DeltaWords.RECORDS)
    if shape.packs:
        return PackedActivations(r, width, rows.row_set, producer=words, words=at, made_of=given)
    out = FloatRows(r, width, rows.row_set)
    words[DeltaWords.OUT] = out.address
    return PackedActivations(r, width, rows.row_set, rows=out)


def state_space(
    r: Recording, rows: FloatRows, ssm: StateSpace, state: CpuState
) -> PackedActivations:
    layer, step = state.recurrent[ssm.layer], r.inputs.address
    shape = StateSpaceShape.of(ssm, state.window)
    mixed = FloatRows(r, shape.channels, rows.row_set)
    r.add(
        name_of("state_space_convolution", shape),
        lambda e: write_convolution(e, shape),
        [
            step, rows.address, _by_tap(r, ssm.conv1d), ssm.conv_bias.ctypes.data,
            layer.ring.ctypes.data, mixed.address,
        ],
    )  # fmt: skip
    waits = FloatRows(r, 2 * shape.n_value_heads, rows.row_set)
    values = FloatRows(r, shape.value_width, rows.row_set)
    kept = (layer.states, layer.keys, layer.updates, layer.decays)
    r.add(
        name_of("state_space_scan", shape),
        lambda e: write_scan(e, shape),
        [
            step, rows.address, mixed.address,
            *(part.ctypes.data for part in (ssm.a, ssm.dt_bias, ssm.d)), waits.address,
            *(part.ctypes.data for part in kept), values.address,
        ],
    )  # fmt: skip
    norm = ssm.norm
    eps = None if norm is None else norm.eps
    words = r.add(
        name_of("state_space_slices", shape, eps),
        lambda e: write_slices(e, shape, eps),
        [
            step, values.address, 0 if norm is None else norm.weight.ctypes.data, mixed.address,
            layer.keys.ctypes.data, 0, 0,
        ],
    )  # fmt: skip
    width, row_set = shape.value_width, rows.row_set
    if packs(shape):
        made_of = (values, mixed)
        return PackedActivations(r, width, row_set, producer=words, words=(5, 6), made_of=made_of)
    out = FloatRows(r, width, row_set)
    words[5] = out.address
    return PackedActivations(r, width, row_set, rows=out)


def short_convolution(
    r: Recording, rows: FloatRows, conv: ShortConvolution, state: CpuState
) -> PackedActivations:
    layer, shape, window = state.recurrent[conv.layer], conv.shape, state.window
    out = FloatRows(r, shape.channels, rows.row_set)
    r.add(
        name_of("short_convolution", shape, window),
        lambda e: write_short_convolution(e, shape, window),
        [
            r.inputs.address, rows.address, _by_tap(r, conv.weight), layer.ring.ctypes.data,
            out.address,
        ],
    )  # fmt: skip
    return PackedActivations(r, out.width, out.row_set, rows=out)


def _by_tap(r: Recording, weight: Vector) -> int:
    """Address of a convolution's weights as (kernel, channels)."""
    weights = np.ascontiguousarray(weight.T)
    r.held.append(weights)
    address: int = weights.ctypes.data
    return address
