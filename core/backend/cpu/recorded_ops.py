"""`CpuOps`: each operation becomes entries of a recorded program."""

from __future__ import annotations

from ..interface import Ops
from ..layers import Attention, DeltaRule, Floats, GateActivation, Moe, Norm
from ..step import Step
from . import ops
from .ops_moe import moe
from .program import FloatRows, PackedActivations, Recording
from .state import CpuState
from .tile_matrix import CpuMatrix


class CpuOps(Ops):
    """The step and the state that a program works on are known to its recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def embed(self, table: CpuMatrix, step: Step) -> FloatRows:
        return ops.embed(self._recording, table.parts[0])

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
        packed.float_address()  # makes floats as well
        assert packed.rows is not None
        return packed.rows

    def norm_pair(
        self, x: FloatRows, x_norm: Norm, y: FloatRows, y_norm: Norm
    ) -> PackedActivations:
        return ops.norms(self._recording, [(x, x_norm), (y, y_norm)])

    def matmul(
        self, a: PackedActivations, w: CpuMatrix, add_to: FloatRows | None = None
    ) -> FloatRows:
        return ops.matmul(self._recording, a, w, add_to)

    def gated_ffn(
        self, a: PackedActivations, gate_up: CpuMatrix, activation: GateActivation
    ) -> PackedActivations:
        return ops.gated_ffn(self._recording, a, gate_up, activation)

    def attend(
        self, qkv: FloatRows, attention: Attention, state: CpuState, step: Step
    ) -> PackedActivations:
        return ops.attend(self._recording, qkv, attention, state)

    def delta_rule(
        self, rows: FloatRows, delta: DeltaRule, state: CpuState, step: Step
    ) -> PackedActivations:
        return ops.delta_rule(self._recording, rows, delta, state)

    def moe(self, a: PackedActivations, layer: Moe, add_to: FloatRows) -> FloatRows:
        return moe(self._recording, a, layer, add_to)

    def head(self, a: PackedActivations, w: CpuMatrix) -> FloatRows:
        return ops.matmul(self._recording, a, w)
