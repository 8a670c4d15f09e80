"""The operations of a model for the rows of one prompt: products of many rows through bfloat16."""

from __future__ import annotations

from ....cuda_kernels.gate_rows import gate_rows
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.norm_quant import NormOutputs, pack_rows
from ....cuda_kernels.packed import PackedRows
from ....cuda_kernels.sum_rows import sum_rows
from ..interface import Packed, Rows
from ..layers import Attention, DeltaRule, Gate, LatentAttention, Moe, Norm
from ..step import Step
from .attention_layer import LatentRows
from .cuda_ops import CudaOps, GatheredRows, OpParts, PendingSum, device_step, shape_of
from .gate_codes import gate_of
from .products import Product
from .prompt_products import WideRows
from .state import CudaState
from .weights import CudaMatrix


class PromptOps(CudaOps):
    """Packed is `WideRows`, or `PackedRows` of the few rows with logits, whose products are those
    of any other step."""

    def __init__(self, parts: OpParts, call: int, few: int) -> None:
        """Products have `call` rows. `few`: rows that the delta rule runs one by one at the end."""
        super().__init__(parts)
        self._call, self._few = call, few

    def norm(self, x: Rows, norm: Norm) -> Packed:
        if isinstance(x, GatheredRows):
            return super().norm(x, norm)
        n_rows, width = shape_of(x)
        halves = self._halves(width)
        self._norm(x, norm, NormOutputs(halves=halves[:n_rows]))

        def floats() -> Array:  # x is the same until the products of this norm have been made
            rows = self._memory.rows(n_rows, width)
            self._norm(x, norm, NormOutputs(rows=rows))
            return rows

        return WideRows(halves, n_rows, floats)

    def matmul(
        self, a: Packed, w: CudaMatrix, add_to: Rows | None = None
    ) -> Array | Product | PendingSum:
        if isinstance(a, PackedRows):
            return super().matmul(a, w, add_to)
        y = self._wide.rows(a, w)
        if add_to is None:
            return y
        x = self._made(add_to)
        return PendingSum(x, y.reshape(a.n_rows, 1, w.n_out))

    def gated_ffn(self, a: Packed, gate_up: CudaMatrix, gate: Gate) -> Packed:
        if isinstance(a, PackedRows):
            return super().gated_ffn(a, gate_up, gate)
        return self._wide.gated(a, gate_up, gate_of(gate))

    def gate_by(self, gates: Rows, y: Rows, column: int, gate: Gate) -> Packed:
        n_rows, width = shape_of(gates)
        if isinstance(gates, Product):  # of the few rows with logits
            return super().gate_by(gates, y, column, gate)
        halves, ups = self._halves(width), (self._made(y), column)
        out = halves[:n_rows]
        gate_rows(self.launcher, self._made(gates), gate_of(gate), halves=out, ups=ups)
        return WideRows(halves, n_rows)

    def pack(self, x: Rows) -> Packed:
        if isinstance(x, GatheredRows):
            return super().pack(x)
        halves, rows = self._halves(shape_of(x)[1]), self._made(x)
        n_rows = int(rows.shape[0])
        sum_rows(self.launcher, rows, NormOutputs(halves=halves[:n_rows]))
        return WideRows(halves, n_rows, lambda: rows)

    def attend(self, qkv: Rows, attention: Attention, state: CudaState, step: Step) -> Packed:
        there = state.place(device_step(step), attention.layer)
        halves = self._halves(attention.n_heads * attention.value_dim)
        cache = state.kv[attention.layer]
        out = halves[: there.n_rows]
        self._attender.attend_prompt(self._made(qkv), attention, cache, there, out)
        return WideRows(halves, there.n_rows)

    def attend_latent(
        self, q: Rows, cells: Rows, attention: LatentAttention, state: CudaState, step: Step
    ) -> Packed:
        there, cache = device_step(step), state.kv[attention.layer]
        halves = self._halves(attention.n_heads * attention.value_dim)
        rows, out = LatentRows(self._made(q), self._made(cells)), halves[: there.n_rows]
        self._attender.attend_latent_prompt(rows, attention, cache, there, out)
        return WideRows(halves, there.n_rows)

    def delta_rule(self, rows: Rows, delta: DeltaRule, state: CudaState, step: Step) -> Packed:
        there = device_step(step)
        halves = self._halves(delta.shape.value_width)
        out, behind = halves[: there.n_rows], self._few
        self._delta.run_prompt(self._made(rows), delta, state, there, out, behind=behind)
        return WideRows(halves, there.n_rows)

    def moe(
        self, a: Packed, moe: Moe, add_to: Rows | None, routed_by: Packed | None = None
    ) -> PendingSum:
        """By the kernels for few rows, which group rows by expert: an expert has too few of them
        for its weights to be worth unpacking."""
        return super().moe(
            self._packed(a), moe, add_to, None if routed_by is None else self._packed(routed_by)
        )

    def _packed(self, a: Packed) -> PackedRows:
        if isinstance(a, PackedRows):
            return a
        assert a.floats is not None, "the input of a mixture is a norm"
        rows = a.floats()
        packed = self._memory.packed(*rows.shape)
        pack_rows(self.launcher, rows, packed)
        return packed

    def _halves(self, width: int) -> Array:
        return self.device.empty((self._call, width), "uint16")
