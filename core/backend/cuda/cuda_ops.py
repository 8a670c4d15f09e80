"""`CudaOps`: every operation as launches of `cuda_kernels`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import Struct

from ....cuda_kernels import embed as tables
from ....cuda_kernels import qmm
from ....cuda_kernels.activate_rows import activate_rows
from ....cuda_kernels.convolve_rows import convolve_rows
from ....cuda_kernels.gate_rows import gate_rows
from ....cuda_kernels.head_pick import Logits, head_summits
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import mm_gated
from ....cuda_kernels.norm_quant import NormOutputs, RowNorm, norm_quant, pack_rows
from ....cuda_kernels.packed import PackedRows
from ....cuda_kernels.sum_rows import AnyNorm, cap_rows, norm_columns, sum_rows
from ...errors import ConfigError
from ..interface import MAXIMA_BLOCK, Ops, Packed, Rows
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
from .attention_layer import Attender, LatentRows
from .device_contract import Device
from .device_step import DeviceStep
from .experts import ExpertRunner
from .gate_codes import gate_of
from .gated_delta import DeltaRunner
from .products import Product, Products
from .prompt_products import PromptProducts
from .recurrences import DeltaRows, Recurrences
from .state import CudaState
from .step_memory import Outputs, StepMemory
from .weights import CudaMatrix


class GatheredRows(NamedTuple):
    """Some rows, picked out by the norm that reads them."""

    rows: Rows
    which: Array  # int32


class LazyEmbedding(Struct):
    """Rows of a table, which are made unless the next norm looks them up."""

    table: CudaMatrix
    ids: Array
    rows: Array | None = None


class LogitsWithMax(NamedTuple):
    """Logits, and the largest of each 64."""

    rows: Array
    maxima: Array


class PendingSum(Struct):
    """Rows to which parts (T, n, width) are still to be added: the next norm does it."""

    rows: Array | None  # None: the sum of the parts alone
    parts: Array | None


class OpParts:
    """What the operations of a device share, those of prompts included."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = StepMemory(device)
        self.passing = Outputs(device, room=0, most_kept=0)
        self.products = Products(self.memory)
        self.attender = Attender(device)
        self.delta = DeltaRunner(self.memory, self.products)
        self.recurrences = Recurrences(self.memory)
        self.experts = ExpertRunner(self.memory)
        self.wide = PromptProducts(device)


class CudaOps(Ops):
    """Rows are float32 arrays (T, width), or one of `LazyEmbedding`, `Product`, `PendingSum` and
    `GatheredRows`, which are made when it is known what for; Packed is `PackedRows`."""

    def __init__(self, parts: OpParts) -> None:
        self.parts = parts
        self.device, self.launcher = parts.device, parts.device.launcher
        self._memory, self._products, self._wide = parts.memory, parts.products, parts.wide
        self._attender, self._delta, self._experts = parts.attender, parts.delta, parts.experts
        self._recurrences = parts.recurrences
        self._outputs = parts.passing

    @contextmanager
    def leaving_in(self, outputs: Outputs) -> Iterator[None]:
        """Where logits and taps go, meanwhile; else they go wherever there is room."""
        outputs.begin()
        self._outputs = outputs
        try:
            yield
        finally:
            self._outputs = self.parts.passing

    # rows

    def embed(
        self, table: CudaMatrix, step: Step, scale: float = 1.0, *, takes_rows: bool = True
    ) -> LazyEmbedding:
        there = device_step(step)
        if "embedded" not in there.arrays:
            found = LazyEmbedding(table, there.array("tokens"))
            if scale != 1.0:
                rows = self._made(found)
                sum_rows(self.launcher, rows, NormOutputs(rows=rows), scale=scale)
            return found
        # Those of tokens, then those that came with the step: each row takes one or the other.
        n, width = there.n_rows, table.n_in
        both = self._memory.rows(2 * n, width)
        found = LazyEmbedding(table, there.array("real_tokens"), both[:n])
        table.look_up(self.launcher, found.ids, both[:n])
        if scale != 1.0:
            sum_rows(self.launcher, both[:n], NormOutputs(rows=both[:n]), scale=scale)
        if takes_rows:
            self.device.copy(both[n:], there.array("embedded"))
            found.rows = self._made(GatheredRows(both, there.array("row_places")))
        return found

    def add_embedded(self, x: Rows, step: Step, first: int) -> Rows:
        """Such rows are refused before they come here; tokens add nothing."""
        return x

    def given_rows(self, step: Step, width: int) -> Array | GatheredRows:
        there = device_step(step)
        if "received" in there.arrays:
            return there.array("received")
        rows, which = there.array("hidden"), there.arrays.get("hidden_rows")
        return rows if which is None else GatheredRows(rows, which)

    def take_rows(self, rows: Array) -> Array:
        there = self._memory.rows(*rows.shape)
        self.device.copy(there, rows)
        return there

    def keep(self, x: Rows) -> Array:
        return self._copied(x, self._outputs.tap(*shape_of(x)))

    def leave(self, x: Rows) -> Array:
        """Rows that another rank goes on from."""
        return self._copied(x, self._outputs.rows("rows", *shape_of(x)))

    def _copied(self, x: Rows, to: Array) -> Array:
        self.device.copy(to, self._made(x))
        return to

    def out_rows(self, x: Rows, step: Step) -> GatheredRows:
        return GatheredRows(x, device_step(step).array("out_rows"))

    def to_host(self, x: Rows) -> Floats:
        found: Floats = self.device.get(x.rows if isinstance(x, LogitsWithMax) else self._made(x))
        return found

    # operations

    def norm(self, x: Rows, norm: Norm) -> PackedRows:
        out = self._memory.packed(*shape_of(x))
        self._norm(x, norm, NormOutputs(packed=out))
        return out

    def norm_rows(self, x: Rows, norm: Norm) -> Array:
        out = self._outputs.tap(*shape_of(x))
        self._norm(x, norm, NormOutputs(rows=out))
        return out

    def norm_slices(self, x: Rows, norm: Norm) -> Array:
        made, out = self._made(x), self._memory.rows(*shape_of(x))
        width = int(norm.weight.shape[0])
        self._norm(made.reshape(-1, width), norm, NormOutputs(rows=out.reshape(-1, width)))
        return out

    def norm_columns(self, x: Rows, norm: Norm, column: int) -> Array:
        rows = self._made(x)
        norm_columns(self.launcher, rows, any_norm(norm), column)
        return rows

    def add_norm(self, x: Rows, y: Rows, norm: Norm, scale: float = 1.0) -> Array:
        return self._added(x, y, scale, any_norm(norm))

    def add(self, x: Rows, y: Rows, scale: float = 1.0) -> Array:
        return self._added(x, y, scale)

    def _added(self, x: Rows, y: Rows, scale: float, norm: AnyNorm | None = None) -> Array:
        rows, is_sum = self._made(x), isinstance(y, PendingSum) and y.rows is None
        parts, out = y.parts if is_sum else self._made(y), NormOutputs(rows=rows)
        sum_rows(self.launcher, parts, out, x=rows, norm=norm, scale=scale)
        return rows

    def activate(self, x: Rows, activation: PlainActivation) -> Array:
        rows = self._made(x)
        activate_rows(self.launcher, rows, activation.value)
        return rows

    def pack(self, x: Rows) -> Packed:
        out = self._memory.packed(*shape_of(x))
        pack_rows(self.launcher, self._made(x), out)
        return out

    def _norm(self, x: Rows, norm: Norm, out: NormOutputs) -> None:
        x, chosen = (x.rows, x.which) if isinstance(x, GatheredRows) else (x, None)
        if norm.centred or norm.bias is not None:
            sum_rows(self.launcher, self._made(x), out, norm=any_norm(norm), chosen=chosen)
            return
        if isinstance(x, PendingSum) and x.rows is None:
            self._made(x)
        weights = RowNorm(norm.weight, norm.eps)
        if not isinstance(x, PendingSum):
            norm_quant(self.launcher, self._made(x), weights, out, chosen=chosen)
            return
        norm_quant(self.launcher, x.rows, weights, out, parts=x.parts, chosen=chosen)
        if chosen is None:
            x.parts = None

    def _made(self, x: Rows) -> Array:
        """Rows as an array, whatever they were to be."""
        if isinstance(x, Product):
            if x.rows is None:
                x.rows = self._products.rows(x.a, x.w)
            return x.rows
        if isinstance(x, LazyEmbedding):
            if x.rows is None:
                x.rows = self._memory.rows(*shape_of(x))
                x.table.look_up(self.launcher, x.ids, x.rows)
            return x.rows
        if isinstance(x, GatheredRows):
            rows, out = self._made(x.rows), self._memory.rows(*shape_of(x))
            sum_rows(self.launcher, rows, NormOutputs(rows=out), chosen=x.which)
            return out
        if not isinstance(x, PendingSum):
            return x
        if x.parts is not None:
            before = x.rows
            if x.rows is None:
                x.rows = self._memory.rows(*shape_of(x))
            sum_rows(self.launcher, x.parts, NormOutputs(rows=x.rows), x=before)
            x.parts = None
        return x.rows

    def norm_pair(self, x: Rows, x_norm: Norm, y: Rows, y_norm: Norm) -> PackedRows:
        if any(norm.centred or norm.bias is not None for norm in (x_norm, y_norm)):
            raise ConfigError(
                "--device cuda: a head that reads two norms with a mean or a bias cannot be run; "
                "use --device cpu"
            )
        (n_rows, width), second = shape_of(x), self._side(y, y_norm)
        out = self._memory.packed(n_rows, width + second.rows.shape[1])
        if isinstance(x, LazyEmbedding) and x.rows is None and not x.table.is_in_tiles:
            norm = RowNorm(x_norm.weight, x_norm.eps)
            tables.embed_concat_quant(self.launcher, x.table.table, x.ids, norm, second, out)
        else:
            tables.norm_pair(self.launcher, self._side(x, x_norm), second, out)
        return out

    def _side(self, x: Rows, norm: Norm) -> tables.Side:
        rows, vocab_subset = (x.rows, x.which) if isinstance(x, GatheredRows) else (x, None)
        return tables.Side(self._made(rows), RowNorm(norm.weight, norm.eps), vocab_subset)

    def matmul(self, a: PackedRows, w: CudaMatrix, add_to: Rows | None = None) -> Array | Product:
        if add_to is None:
            return Product(a, w)
        y = self._made(add_to)
        self._products.write(a, w, y, add=True)
        return y

    def gated_ffn(self, a: PackedRows, gate_up: CudaMatrix, gate: Gate) -> PackedRows:
        n_rows, width = a.q.shape[0], gate_up.n_out // 2
        out, kind = self._memory.packed(n_rows, width), gate_of(gate)
        if gate_up.gated is not None:
            space = self._memory.products(n_rows, gate_up.n_out, width)
            qmm.gated(self.launcher, a, gate_up.gated, out, space, activation=kind)
        elif gate_up.plain is not None:
            room = self._memory.gated(n_rows, width)
            mm_gated(self.launcher, a, gate_up.plain, out, room, activation=kind)
        else:
            gate_rows(self.launcher, self._products.rows(a, gate_up), kind, out)
        return out

    def gate_by(self, gates: Rows, y: Rows, column: int, gate: Gate) -> Packed:
        out, ups = self._memory.packed(*shape_of(gates)), (self._made(y), column)
        gate_rows(self.launcher, self._made(gates), gate_of(gate), out, ups=ups)
        return out

    def convolve(self, x: Rows, factors: Rows, conv: DynamicConvolution, step: Step) -> Array:
        starts, out = device_step(step).attention.starts, self._memory.rows(*shape_of(x))
        convolve_rows(
            self.launcher,
            self._made(x),
            self._made(factors),
            conv.base,
            starts,
            out,
            group=conv.group,
            first=conv.first,
        )
        return out

    def attend(self, qkv: Rows, attention: Attention, state: CudaState, step: Step) -> PackedRows:
        there = state.place(device_step(step), attention.layer)
        out = self._memory.packed(there.n_rows, attention.n_heads * attention.value_dim)
        cache = state.kv[attention.layer]
        self._attender.attend(self._made(qkv), attention, cache, there, out, state.limits)
        return out

    def append(self, qkv: Rows, attention: Attention, state: CudaState, step: Step) -> None:
        there, cache = state.place(device_step(step), attention.layer), state.kv[attention.layer]
        self._attender.append(self._made(qkv), attention, cache, there)

    def attend_latent(
        self, q: Rows, cells: Rows, attention: LatentAttention, state: CudaState, step: Step
    ) -> Packed:
        rows = LatentRows(self._made(q), self._made(cells))
        cache, limits = state.kv[attention.layer], state.limits
        there = device_step(step)
        return self.pack(self._attender.attend_latent(rows, attention, cache, there, limits))

    def delta_rule(self, rows: Rows, delta: DeltaRule, state: CudaState, step: Step) -> PackedRows:
        there = device_step(step)
        out = self._memory.packed(there.n_rows, delta.shape.value_width)
        if not (
            isinstance(rows, Product) and self._delta.run_product(rows, delta, state, there, out)
        ):
            inputs = self._made(rows)
            self._delta.run(inputs, delta, state, there, NormOutputs(packed=out))
        return out

    def state_space(self, rows: Rows, layer: StateSpace, state: CudaState, step: Step) -> Packed:
        there = device_step(step)
        return self.pack(self._recurrences.state_space(self._made(rows), layer, state, there))

    def channel_delta(
        self,
        rows: Rows,
        decays: Rows,
        gates: Rows,
        kda: ChannelDelta,
        state: CudaState,
        step: Step,
    ) -> Packed:
        made = DeltaRows(*map(self._made, (rows, decays, gates)))
        return self.pack(self._recurrences.channel_delta(made, kda, state, device_step(step)))

    def short_convolution(
        self, rows: Rows, layer: ShortConvolution, state: CudaState, step: Step
    ) -> Packed:
        there = device_step(step)
        return self.pack(self._recurrences.short_convolution(self._made(rows), layer, state, there))

    def moe(
        self, a: PackedRows, moe: Moe, add_to: Rows | None, routed_by: PackedRows | None = None
    ) -> PendingSum:
        parts = self._experts.run(a, moe, a if routed_by is None else routed_by)
        return PendingSum(None if add_to is None else self._made(add_to), parts)

    def head(self, a: PackedRows, w: CudaMatrix, cap: float = 0.0) -> LogitsWithMax:
        n_rows = a.q.shape[0]
        rows = self._outputs.rows("logits", n_rows, w.n_out)
        maxima = self._outputs.rows("maxima", n_rows, -(-w.n_out // MAXIMA_BLOCK))
        (first, *others) = w.pieces
        if not others and not cap and isinstance(first.weights, qmm.Matrix):
            space = self._memory.products(n_rows, w.n_out)
            qmm.head(self.launcher, a, first.weights, rows, space, maxima=maxima)
        else:
            self._products.write(a, w, rows)
            if cap:
                cap_rows(self.launcher, rows, cap)
            head_summits(self.launcher, Logits(rows, maxima))
        return LogitsWithMax(rows, maxima)


def shape_of(x: Rows) -> tuple[int, int]:
    """Rows and width of the result."""
    if isinstance(x, GatheredRows):
        return int(x.which.shape[0]), shape_of(x.rows)[1]
    if isinstance(x, Product):
        return int(x.a.q.shape[0]), x.w.n_out
    if isinstance(x, LazyEmbedding):
        return int(x.ids.shape[0]), x.table.n_in
    rows: Array = x
    if isinstance(x, PendingSum):
        rows = x.parts if x.rows is None else x.rows
    return int(rows.shape[0]), int(rows.shape[-1])


def any_norm(norm: Norm) -> AnyNorm:
    return AnyNorm(norm.weight, norm.eps, norm.centred, norm.bias)


def device_step(step: Step) -> DeviceStep:
    assert isinstance(step, DeviceStep), "models pass on the step that `compile` gave them"
    return step
