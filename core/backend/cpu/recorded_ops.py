"""`CpuOps`: each operation becomes entries of a recorded program."""

from __future__ import annotations

from ..interface import Ops
from ..layers import (
    Attention,
    ChannelDelta,
    DeltaRule,
    DynamicConvolution,
    Floats,
    Gate,
    LatentAttention,
    Moe,
    Norm,
    PlainActivation,
    ShortConvolution,
    StateSpace,
)
from ..step import Step
from . import ops
from .ops_latent import attend_latent
from .ops_moe import moe
from .ops_recurrent import channel_delta, delta_rule, short_convolution, state_space
from .program import FloatRows, PackedActivations, Recording
from .state import CpuState
from .tile_matrix import CpuMatrix


class CpuOps(Ops):
    """The step and the state that a program works on are known to its recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def embed(
        self, table: CpuMatrix, step: Step, scale: float = 1.0, *, takes_rows: bool = True
    ) -> FloatRows:
        return ops.embed(self._recording, table.parts[0], scale, takes_rows=takes_rows)

    def add_embedded(self, x: FloatRows, step: Step, first: int) -> FloatRows:
        return ops.add_embedded(self._recording, x, first)

    def given_rows(self, step: Step, width: int) -> FloatRows:
        return ops.given_rows(self._recording, width)

    def keep(self, x: FloatRows) -> FloatRows:
        return ops.copy(self._recording, x)

    def out_rows(self, x: FloatRows, step: Step) -> FloatRows:
        return ops.gather_out_rows(self._recording, x)

    def to_host(self, x: FloatRows) -> Floats:
        raise AssertionError("rows exist while a program runs; `compile` returns the numbers")

    def norm(self, x: FloatRows, norm: Norm) -> PackedActivations:
        return ops.norm(self._recording, x, norm)

    def norm_rows(self, x: FloatRows, norm: Norm) -> FloatRows:
        packed = ops.norm(self._recording, x, norm)
        return packed.float_rows()

    def norm_slices(self, x: FloatRows, norm: Norm) -> FloatRows:
        return ops.norm_slices(self._recording, x, norm)

    def norm_columns(self, x: FloatRows, norm: Norm, column: int) -> FloatRows:
        return ops.norm_columns(self._recording, x, norm, column)

    def add_norm(self, x: FloatRows, y: FloatRows, norm: Norm, scale: float = 1.0) -> FloatRows:
        return ops.add_norm(self._recording, x, y, norm, scale)

    def add(self, x: FloatRows, y: FloatRows, scale: float = 1.0) -> FloatRows:
        return ops.add(self._recording, x, y, scale)

    def activate(self, x: FloatRows, activation: PlainActivation) -> FloatRows:
        return ops.activate(self._recording, x, activation)

    def pack(self, x: FloatRows) -> PackedActivations:
        return PackedActivations(self._recording, x.width, x.row_set, rows=x)

    def norm_pair(
        self, x: FloatRows, x_norm: Norm, y: FloatRows, y_norm: Norm
    ) -> PackedActivations:
        return ops.norms(self._recording, [(x, x_norm), (y, y_norm)])

    def matmul(
        self, a: PackedActivations, w: CpuMatrix, add_to: FloatRows | None = None
    ) -> FloatRows:
        return ops.matmul(self._recording, a, w, add_to)

    def gated_ffn(self, a: PackedActivations, gate_up: CpuMatrix, gate: Gate) -> PackedActivations:
        return ops.gated_ffn(self._recording, a, gate_up, gate)

    def gate_by(self, gates: FloatRows, y: FloatRows, column: int, gate: Gate) -> PackedActivations:
        return ops.gate_by(self._recording, gates, y, column, gate)

    def convolve(
        self, x: FloatRows, factors: FloatRows, conv: DynamicConvolution, step: Step
    ) -> FloatRows:
        return ops.convolve(self._recording, x, factors, conv)

    def attend(
        self, qkv: FloatRows, attention: Attention, state: CpuState, step: Step
    ) -> PackedActivations:
        return ops.attend(self._recording, qkv, attention, state)

    def append(self, qkv: FloatRows, attention: Attention, state: CpuState, step: Step) -> None:
        ops.append(self._recording, qkv, attention, state)

    def attend_latent(
        self,
        q: FloatRows,
        cells: FloatRows,
        attention: LatentAttention,
        state: CpuState,
        step: Step,
    ) -> PackedActivations:
        return attend_latent(self._recording, q, cells, attention, state)

    def delta_rule(
        self, rows: FloatRows, delta: DeltaRule, state: CpuState, step: Step
    ) -> PackedActivations:
        return delta_rule(self._recording, rows, delta, state)

    def channel_delta(
        self,
        rows: FloatRows,
        decays: FloatRows,
        gates: FloatRows,
        kda: ChannelDelta,
        state: CpuState,
        step: Step,
    ) -> PackedActivations:
        return channel_delta(self._recording, (rows, decays, gates), kda, state)

    def state_space(
        self, rows: FloatRows, layer: StateSpace, state: CpuState, step: Step
    ) -> PackedActivations:
        return state_space(self._recording, rows, layer, state)

    def short_convolution(
        self, rows: FloatRows, layer: ShortConvolution, state: CpuState, step: Step
    ) -> PackedActivations:
        return short_convolution(self._recording, rows, layer, state)

    def moe(
        self,
        a: PackedActivations,
        layer: Moe,
        add_to: FloatRows | None,
        routed_by: PackedActivations | None = None,
    ) -> FloatRows:
        return moe(self._recording, a, layer, add_to, routed_by or a)

    def head(self, a: PackedActivations, w: CpuMatrix, cap: float = 0.0) -> FloatRows:
        return ops.capped(self._recording, ops.matmul(self._recording, a, w), cap)
