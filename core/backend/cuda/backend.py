"""`CudaBackend`: every op as launches of `cuda_kernels`, on whatever device it is given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....cuda_kernels import embed as tables
from ....cuda_kernels import qmm
from ....cuda_kernels.gate_rows import gate_rows
from ....cuda_kernels.head_pick import Logits, head_summits
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import mm_gated
from ....cuda_kernels.norm_quant import NormOutputs, RowNorm, norm_quant
from ....cuda_kernels.packed import PackedRows
from ...gguf.reader import GgufFile
from ..device_loop import DeviceLoopPlan
from ..draft_loop import DraftLoop, DraftLoopPlan, HostDraftLoop
from ..interface import (
    MAXIMA_BLOCK,
    Backend,
    Forward,
    PlannedSteps,
    Rows,
    Run,
    RunRows,
    SlotImage,
    Taps,
    Working,
)
from ..layers import (
    HALF_FLOATS,
    Activation,
    Attention,
    DeltaRule,
    Floats,
    KvTypes,
    MatrixPart,
    Moe,
    Norm,
    StateShape,
)
from ..step import Ints, Step
from .attention import Attender
from .delta import DeltaRunner
from .device import Device
from .device_loop import CudaDeviceLoop, can_run
from .draft_loop import CudaChain, keeps_rows_only
from .expanded import say_if_expanded
from .experts import ExpertRunner
from .plan import rehearsed
from .planned import PlannedDevice
from .products import Product, Products
from .prompt import Part, PromptRows, PromptRunner, PromptSizes, parts_of, with_received
from .rooms import Outputs, Rooms
from .state import CudaState, count_state_bytes
from .step import DeviceStep
from .uploads import Uploads
from .weights import CudaMatrix, use_of
from .wide import WideProducts

if TYPE_CHECKING:
    from .prompt_ops import PromptOps

ACTIVATIONS = {Activation.SILU: qmm.Activation.SILU, Activation.GELU: qmm.Activation.GELU}


class Chosen(NamedTuple):
    """Some rows, which whoever norms them picks out."""

    rows: Rows
    which: Array  # int32


@dataclass(slots=True)
class Looked:
    """Rows of a table, which are made unless whoever norms them looks them up."""

    table: CudaMatrix
    ids: Array
    rows: Array | None = None


class Scored(NamedTuple):
    """Logits, and the largest of each 64."""

    rows: Array
    maxima: Array


@dataclass(slots=True)
class Summing:
    """Rows to which parts (T, n, width) are still to be added: whoever norms them does it."""

    rows: Array
    parts: Array | None


class CudaBackend(Backend):
    """Rows are float32 arrays (T, width), or one of `Looked`, `Product`, `Summing`, `Chosen`, which
    are made when it is known what for; Packed is `PackedRows`."""

    batch_invariant = False  # prompts and single rows come from different kernels
    prompts = PromptSizes()

    def __init__(self, device: Device, kv_types: KvTypes = HALF_FLOATS) -> None:
        self.device, self.launcher = device, device.launcher
        self.name, self.kv_types = device.name, kv_types
        self.details = device.details
        if kv_types != HALF_FLOATS:
            self.details = ", ".join(filter(None, (self.details, str(kv_types))))
        self.uploads = Uploads(device)
        self._tied: frozenset[str] = frozenset()
        self._said: set[str] = set()  # types that were spoken of
        self._rooms = Rooms(device)
        self._passing = self._outputs = Outputs(device, most_kept=0)
        self._products = Products(self._rooms)
        self._attender = Attender(device)
        self._delta = DeltaRunner(self._rooms, self._products)
        self._experts = ExpertRunner(self._rooms)
        self._wide = WideProducts(device)
        self.prompt_chunk = self.prompts.chunk

    @property
    def state_format(self) -> str:
        return "cuda" if self.kv_types == HALF_FLOATS else f"cuda with {self.kv_types}"

    # weights

    def look_at(self, file: GgufFile) -> None:
        is_tied = "output.weight" not in file.tensors
        self._tied = frozenset({"token_embd.weight"} if is_tied else ())

    def planner(self) -> CudaBackend:
        twin = CudaBackend(PlannedDevice(self.device), self.kv_types)
        twin._tied, twin._said = self._tied, self._said
        return twin

    def working(self, rehearsal: PlannedSteps) -> Working:
        assert isinstance(self.device, PlannedDevice), "asked of a `planner`"
        return rehearsed(CudaBackend(self.device, self.kv_types), self.device, rehearsal)

    @property
    def savings(self) -> tuple[str, ...]:  # type: ignore[override]
        halved = ("--cache-type-k q8_0 with --cache-type-v q8_0",)
        return (*(halved if self.kv_types == HALF_FLOATS else ()), "a smaller file", "--device cpu")

    def weight_bytes(self) -> int:
        found = self.device.live_bytes if isinstance(self.device, PlannedDevice) else None
        return self.prepared_bytes if found is None else found

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        device = PlannedDevice(self.device)
        made = CudaMatrix(Uploads(device), parts, use_of(parts, self._tied))
        made.prepare()
        return device.live_bytes

    def expect(self, file: GgufFile, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        self.uploads.is_loading = True

    def weights_ready(self, file: GgufFile) -> None:
        self.uploads.is_loading = False
        self.uploads.finish()

    def matrix(self, parts: Sequence[MatrixPart]) -> CudaMatrix:
        if self.device.has_memory:
            for part in parts:
                say_if_expanded(part.tensor.format.name, self._said)
        self.prepared_bytes += self.matrix_bytes(parts)
        made = CudaMatrix(self.uploads, parts, use_of(parts, self._tied))
        made.prepare()
        return made

    def free_device_bytes(self) -> int:
        return self.device.free_bytes()

    def vector(self, values: Floats) -> Array:
        self.prepared_bytes += self.device.taken_bytes(values.nbytes)
        return self.device.put(np.ascontiguousarray(values))

    # running

    def compile(
        self, forward: Forward, state: CudaState, *, max_rows: int, taps: Taps = frozenset()
    ) -> Run:
        return PromptRunner(self, forward, state, taps)

    def prompt_ops(self, call: int) -> PromptOps:
        """The same operations for the rows of one prompt, in products of `call` rows."""
        from .prompt_ops import PromptOps  # which is a backend like this one

        return PromptOps(self, call)

    def compile_device_loop(self, plan: DeviceLoopPlan) -> CudaDeviceLoop | None:
        return CudaDeviceLoop(self, plan) if can_run(plan) else None

    def parts_of(self, step: Step) -> list[Part]:
        """Its prompts and the rest of it, with the rows that another rank has sent."""
        parts = parts_of(step, self.prompts.few)
        if step.received is None or not any(part.is_prompt for part in parts):
            return parts
        return with_received(self.device, step.received, parts)

    def compile_rows(
        self, forward: Forward, state: CudaState, *, max_rows: int, taps: Taps = frozenset()
    ) -> RunRows:
        return PromptRows(self, forward, state, taps)

    def compile_draft_loop(
        self,
        forward: Forward,
        state: CudaState,
        *,
        max_rows: int,
        max_draft: int,
        n_vocab: int,
        tap: str | None = None,
        vocab_subset: Ints | None = None,
        stops: Collection[int] = (),
    ) -> DraftLoop:
        plan = DraftLoopPlan(max_rows, max_draft, n_vocab, tap, vocab_subset, frozenset(stops))
        if keeps_rows_only(state, plan):
            return CudaChain(self, forward, state, plan)
        run = self.compile(forward, state, max_rows=max_rows, taps=plan.taps)
        return HostDraftLoop(run, plan, state.window)

    @contextmanager
    def leaving_in(self, outputs: Outputs) -> Iterator[None]:
        """Where logits and taps go, meanwhile; else they go wherever there is room."""
        outputs.begin()
        self._outputs = outputs
        try:
            yield
        finally:
            self._outputs = self._passing

    # rows

    def embed(self, table: CudaMatrix, step: Step) -> Looked:
        return Looked(table, there_of(step).array("tokens"))

    def given_rows(self, step: Step, width: int) -> Array | Chosen:
        there = there_of(step)
        if "received" in there.arrays:
            return there.array("received")
        which = there.arrays.get("hidden_rows")
        return there.array("hidden") if which is None else Chosen(there.array("hidden"), which)

    def take_rows(self, rows: Array) -> Array:
        there = self._rooms.rows(*rows.shape)
        self.device.copy(there, rows)
        return there

    def activate(self) -> None:
        self.device.activate()

    def keep(self, x: Rows) -> Array:
        return self._copied(x, self._outputs.tap(*shape_of(x)))

    def leave(self, x: Rows) -> Array:
        """Rows that another rank goes on from."""
        return self._copied(x, self._outputs.rows("rows", *shape_of(x)))

    def _copied(self, x: Rows, to: Array) -> Array:
        self.device.copy(to, self._made(x))
        return to

    def out_rows(self, x: Rows, step: Step) -> Chosen:
        return Chosen(x, there_of(step).array("out_rows"))

    def to_host(self, x: Rows) -> Floats:
        found: Floats = self.device.get(x.rows if isinstance(x, Scored) else self._made(x))
        return found

    # operations

    def norm(self, x: Rows, norm: Norm) -> PackedRows:
        n_rows, width = shape_of(x)
        out = self._rooms.packed(n_rows, width)
        self._norm(x, norm, NormOutputs(packed=out))
        return out

    def norm_rows(self, x: Rows, norm: Norm) -> Array:
        out = self._outputs.tap(*shape_of(x))
        self._norm(x, norm, NormOutputs(rows=out))
        return out

    def _norm(self, x: Rows, norm: Norm, out: NormOutputs) -> None:
        x, chosen = (x.rows, x.which) if isinstance(x, Chosen) else (x, None)
        weights = RowNorm(norm.weight, norm.eps)
        if not isinstance(x, Summing):
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
        if isinstance(x, Looked):
            if x.rows is None:
                x.rows = self._rooms.rows(*shape_of(x))
                x.table.look_up(self.launcher, x.ids, x.rows)
            return x.rows
        if not isinstance(x, Summing):
            return x
        if x.parts is not None:
            weights = RowNorm(self._rooms.ones(x.rows.shape[1]), 1.0)  # nobody looks at the norm
            out = NormOutputs(rows=self._rooms.rows(*x.rows.shape))
            norm_quant(self.launcher, x.rows, weights, out, parts=x.parts)
            x.parts = None
        return x.rows

    def norm_pair(self, x: Rows, x_norm: Norm, y: Rows, y_norm: Norm) -> PackedRows:
        (n_rows, width), second = shape_of(x), self._side(y, y_norm)
        out = self._rooms.packed(n_rows, width + second.rows.shape[1])
        if isinstance(x, Looked) and x.rows is None and not x.table.is_in_tiles:
            norm = RowNorm(x_norm.weight, x_norm.eps)
            tables.embed_concat_quant(self.launcher, x.table.table, x.ids, norm, second, out)
        else:
            tables.norm_pair(self.launcher, self._side(x, x_norm), second, out)
        return out

    def _side(self, x: Rows, norm: Norm) -> tables.Side:
        rows, vocab_subset = (x.rows, x.which) if isinstance(x, Chosen) else (x, None)
        return tables.Side(self._made(rows), RowNorm(norm.weight, norm.eps), vocab_subset)

    def matmul(self, a: PackedRows, w: CudaMatrix, add_to: Rows | None = None) -> Array | Product:
        if add_to is None:
            return Product(a, w)
        y = self._made(add_to)
        self._products.write(a, w, y, add=True)
        return y

    def gated_ffn(self, a: PackedRows, gate_up: CudaMatrix, activation: Activation) -> PackedRows:
        n_rows, width = a.q.shape[0], gate_up.n_out // 2
        out, kind = self._rooms.packed(n_rows, width), ACTIVATIONS[activation]
        if gate_up.gated is not None:
            space = self._rooms.products(n_rows, gate_up.n_out, width)
            qmm.gated(self.launcher, a, gate_up.gated, out, space, activation=kind)
        elif gate_up.plain is not None:
            room = self._rooms.gated(n_rows, width)
            mm_gated(self.launcher, a, gate_up.plain, out, room, activation=kind)
        else:
            gate_rows(self.launcher, self._products.rows(a, gate_up), int(kind), out)
        return out

    def attend(self, qkv: Rows, attention: Attention, state: CudaState, step: Step) -> PackedRows:
        there = there_of(step)
        out = self._rooms.packed(there.n_rows, attention.n_heads * attention.value_dim)
        cache = state.kv[attention.layer]
        self._attender.attend(self._made(qkv), attention, cache, there, out)
        return out

    def delta_rule(self, rows: Rows, delta: DeltaRule, state: CudaState, step: Step) -> PackedRows:
        there = there_of(step)
        out = self._rooms.packed(there.n_rows, delta.shape.value_width)
        if not (
            isinstance(rows, Product) and self._delta.run_product(rows, delta, state, there, out)
        ):
            inputs = self._made(rows)
            self._delta.run(inputs, delta, state, there, NormOutputs(packed=out))
        return out

    def moe(self, a: PackedRows, moe: Moe, add_to: Rows) -> Summing:
        return Summing(self._made(add_to), self._experts.run(a, moe))

    def head(self, a: PackedRows, w: CudaMatrix) -> Scored:
        n_rows = a.q.shape[0]
        rows = self._outputs.rows("logits", n_rows, w.n_out)
        maxima = self._outputs.rows("maxima", n_rows, -(-w.n_out // MAXIMA_BLOCK))
        (first, *others) = w.pieces
        if not others and isinstance(first.weights, qmm.Matrix):
            space = self._rooms.products(n_rows, w.n_out)
            qmm.head(self.launcher, a, first.weights, rows, space, maxima=maxima)
        else:
            self._products.write(a, w, rows)
            head_summits(self.launcher, Logits(rows, maxima))
        return Scored(rows, maxima)

    # state

    def new_state(
        self, shape: StateShape, *, n_pages: int, page_len: int, n_slots: int, window: int
    ) -> CudaState:
        return CudaState(self.device, shape, self.kv_types, (n_pages, page_len, n_slots, window))

    def state_bytes(self, shape: StateShape, *, page_len: int, window: int) -> tuple[int, int]:
        return count_state_bytes(shape, self.kv_types, page_len, window)

    def copy_pages(self, state: CudaState, sources: Sequence[int], targets: Sequence[int]) -> None:
        state.copy_pages(sources, targets)

    def save_slot(
        self, state: CudaState, slot: int, pages: Sequence[int], n_cells: int, n_pending: int
    ) -> SlotImage:
        return state.save(slot, pages, n_cells, n_pending)

    def load_slot(
        self, state: CudaState, slot: int, pages: Sequence[int], image: SlotImage
    ) -> None:
        state.load(slot, pages, image)

    def copy_slot(self, state: CudaState, source: int, target: int, n_pending: int) -> None:
        state.copy(source, target, n_pending)


def shape_of(x: Rows) -> tuple[int, int]:
    """Rows and width of what is asked for."""
    if isinstance(x, Chosen):
        return int(x.which.shape[0]), shape_of(x.rows)[1]
    if isinstance(x, Product):
        return int(x.a.q.shape[0]), x.w.n_out
    if isinstance(x, Looked):
        return int(x.ids.shape[0]), x.table.n_in
    rows = x.rows if isinstance(x, Summing) else x
    return int(rows.shape[0]), int(rows.shape[1])


def there_of(step: Step) -> DeviceStep:
    assert isinstance(step, DeviceStep), "models pass on the step that `compile` gave them"
    return step
