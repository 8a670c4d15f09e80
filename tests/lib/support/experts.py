"""A mixture of experts for kernel tests: random stacks, the reference's layer, our launches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from shim.machine import HostMachine, Machine

from nextn.core.backend.layers import (
    Floats,
    Gate,
    GateActivation,
    Gating,
    MatrixPart,
    Moe,
    SharedExpert,
)
from nextn.core.backend.reference.backend import ReferenceBackend
from nextn.core.backend.reference.mixture import gated_halves
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor
from nextn.cuda_kernels import qmm
from nextn.cuda_kernels.mm_bf16_skinny import Plain
from nextn.cuda_kernels.mm_moe import (
    PlainExperts,
    PlainStack,
    plain_experts_down,
    plain_experts_gate_up,
)
from nextn.cuda_kernels.moe_route import (
    ExpertChoice,
    Router,
    Routes,
    moe_route,
    n_pairs,
    routes_shapes,
)
from nextn.cuda_kernels.packed import PackedRows, padded_width
from nextn.cuda_kernels.qmm_moe import (
    Experts,
    ExpertStack,
    MoeWorkspace,
    experts_down,
    experts_gate_up,
    workspace_sizes,
)
from nextn.cuda_kernels.repack import gated_order, repack, tiles_of

from .blocks import form_of, random_blocks
from .packed_rows import empty_packed, pack, unpack

SILU_OR_GELU = {
    GateActivation.SILU: qmm.Activation.SILU,
    GateActivation.GELU: qmm.Activation.GELU,
    GateActivation.OAI: qmm.Activation.OAI,
}


@dataclass(frozen=True)
class Case:
    n_expert: int = 8
    n_used: int = 2
    width: int = 512
    inner: int = 256
    gate_up: str = "Q4_K"
    down: str = "Q6_K"
    gating: Gating = Gating.SOFTMAX
    normalise: bool = True
    scale: float = 1.0
    bias: bool = False  # for the choice
    activation: GateActivation = GateActivation.SILU
    shared: str = ""  # "", "plain", "gated"
    shared_form: str = ""  # of the shared expert's matrices, if it is another
    scaled: bool = False  # experts have scales and biases of their own
    n_processors: int = 4  # of the shim: more of them split K


@dataclass(frozen=True)
class Stack:
    """Matrices of one shape, as a file has them."""

    form: str
    data: NDArray[np.uint8]  # (n_expert, rows, bytes of a row)
    width: int
    scale: Floats | None = None  # (n_expert,)
    bias: Floats | None = None  # (rows,)

    @property
    def part(self) -> MatrixPart:
        """As the reference takes it: one expert is a plain matrix."""
        n_expert, rows, _ = self.data.shape
        shape = (n_expert, rows, self.width) if n_expert > 1 else (rows, self.width)
        flat = np.ascontiguousarray(self.data).reshape(-1)
        return MatrixPart(Tensor("t", shape, form_of(self.form), flat), self.bias, self.scale)

    def put_plain(self, machine: Machine) -> PlainStack:
        n_expert, rows, _ = self.data.shape
        words = np.ascontiguousarray(self.data).view(np.uint16)
        weights = machine.put(words.reshape(n_expert, rows, self.width))
        bias = None
        if self.bias is not None:
            bias = machine.put(np.repeat(self.bias[None], n_expert, axis=0))
        return PlainStack(weights, Plain[self.form], bias)

    def put(self, machine: Machine, order: NDArray[np.intp] | None = None) -> ExpertStack:
        n_expert, rows, _ = self.data.shape
        data = self.data if order is None else self.data[:, order]
        packed = [repack(self.form, np.ascontiguousarray(one), self.width) for one in data]
        extra: list[Any] = [None, None]
        if self.scale is not None and self.bias is not None:
            scale = np.repeat(self.scale[:, None], rows, axis=1).astype(np.float32)
            bias = np.repeat(self.bias[None], n_expert, axis=0)
            extra = [machine.put(scale), machine.put(bias)]
        tiles = tiles_of(self.form, rows, self.width)
        return ExpertStack(tiles, n_expert, machine.put(np.concatenate(packed)), *extra)


@dataclass
class Made:
    """What the launches of a layer leave, as numpy arrays."""

    routes: SimpleNamespace
    inner: PackedRows
    parts: Floats  # (T, n_used + has_shared, D)

    def added_to(self, x: Floats) -> Floats:
        total: Floats = self.parts[:, 0]
        for rank in range(1, self.parts.shape[1]):
            total = total + self.parts[:, rank]
        return x + total


@dataclass
class Layer:
    case: Case
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        case = self.case
        self.router = self.normal(case.n_expert, case.width) * np.float32(case.width**-0.5)
        self.shared_gate = self.normal(1, case.width) * np.float32(case.width**-0.5)
        self.probs_bias = self.normal(case.n_expert) * np.float32(0.1) if case.bias else None
        self.gate_up = self._stack(case.gate_up, case.n_expert, 2 * case.inner, case.width)
        self.down = self._stack(case.down, case.n_expert, case.width, case.inner)
        forms = (case.shared_form or case.gate_up, case.shared_form or case.down)
        self.shared_gate_up = self._stack(forms[0], 1, 2 * case.inner, case.width)
        self.shared_down = self._stack(forms[1], 1, case.width, case.inner)

    def normal(self, *shape: int) -> Floats:
        return self.rng.standard_normal(shape).astype(np.float32)

    def _stack(self, form: str, n_expert: int, rows: int, width: int) -> Stack:
        data = random_blocks(form, n_expert * rows, width, int(self.rng.integers(1 << 30)))
        stacked = data.reshape(n_expert, rows, -1)
        if not self.case.scaled or n_expert == 1:
            return Stack(form, stacked, width)
        return Stack(form, stacked, width, np.exp(self.normal(n_expert)), self.normal(rows))

    @property
    def choice(self) -> ExpertChoice:
        case = self.case
        gating, shared = case.gating.value, bool(case.shared)
        return ExpertChoice(
            case.n_used, gating, case.normalise, case.scale, self.probs_bias, shared
        )

    @cached_property
    def _judge(self) -> ReferenceBackend:
        return ReferenceBackend("cpu", torch.float64)

    @cached_property
    def _layer(self) -> Moe:
        judge, case = self._judge, self.case
        shared = None
        if case.shared:
            gate = judge.matrix([_floats(self.shared_gate)]) if case.shared == "gated" else None
            shared = SharedExpert(
                judge.matrix([self.shared_gate_up.part]),
                judge.matrix([self.shared_down.part]),
                gate,
                Gate(case.activation),
            )
        bias = None if self.probs_bias is None else judge.vector(self.probs_bias)
        return Moe(
            judge.matrix([_floats(self.router)]),
            judge.matrix([self.gate_up.part]),
            judge.matrix([self.down.part]),
            case.n_used,
            case.gating,
            case.normalise,
            case.scale,
            bias,
            Gate(case.activation),
            shared,
        )

    def reference(self, a: Floats, x: Floats) -> Floats:
        """`moe` of the reference backend, in float64."""
        rows = torch.from_numpy(a.astype(np.float64))
        made = self._judge.ops.moe(rows, self._layer, torch.from_numpy(x.astype(np.float64)))
        return np.asarray(made.numpy(), np.float64)

    def run(self, machine: Machine, a: Floats, bundle: int = 4, n_live: int | None = None) -> Made:
        """Route, gate and up, down."""
        if isinstance(machine, HostMachine):
            machine.launcher.n_processors = self.case.n_processors
        routes = self.routed(machine, a, bundle, n_live)
        made = _put(machine, empty_packed(n_pairs(routes), self.case.inner))
        per_row = routes.n_used + routes.has_shared
        parts = machine.garbage((len(a), per_row, self.case.width))
        products = self._plain_products if self.is_plain else self._products
        arrivals = products(machine, _put(machine, pack(a)), routes, made, parts)
        assert not machine.get(arrivals).any()
        names = routes_shapes(len(a), self.case.n_expert, self.choice, bundle)
        arrays = SimpleNamespace(**{n: machine.get(getattr(routes, n)) for n in names})
        inner = PackedRows(*(machine.get(one) for one in (made.q, made.d, made.s)))
        return Made(arrays, inner, machine.get(parts))

    @property
    def is_plain(self) -> bool:
        return self.case.gate_up in ("BF16", "F16")

    def _products(
        self, machine: Machine, x: PackedRows, routes: Routes, made: PackedRows, parts: Any
    ) -> Any:
        """Returns the arrivals."""
        gate_up, down = self._experts(machine)
        sizes = workspace_sizes(machine.launcher, gate_up[0].checked(), down[0].checked(), routes)
        arrivals = machine.put(np.zeros(sizes[1], np.int32))
        space = MoeWorkspace(machine.garbage(sizes[0]), arrivals)
        activation = SILU_OR_GELU[self.case.activation]
        for experts in gate_up:
            experts_gate_up(
                machine.launcher, x, experts, routes, made, space, activation=activation
            )
        for experts in down:
            experts_down(machine.launcher, made, experts, routes, parts, space)
        return arrivals

    def _plain_products(
        self, machine: Machine, x: PackedRows, routes: Routes, made: PackedRows, parts: Any
    ) -> Any:
        blocks, case = padded_width(self.case.inner) // 256, self.case
        arrivals = machine.put(np.zeros(int(routes.ids.shape[0]) * blocks, np.int32))
        space = MoeWorkspace(machine.garbage(n_pairs(routes) * case.inner), arrivals)
        gate_up, down = self.gate_up.put_plain(machine), self.down.put_plain(machine)
        shared = [
            stack.put_plain(machine) if case.shared else None
            for stack in (self.shared_gate_up, self.shared_down)
        ]
        first, second = PlainExperts(gate_up, shared[0]), PlainExperts(down, shared[1])
        activation = SILU_OR_GELU[case.activation]
        plain_experts_gate_up(
            machine.launcher, x, first, routes, made, space, activation=activation
        )
        plain_experts_down(machine.launcher, made, second, routes, parts)
        return arrivals

    def by_pairs(self, made: Made, a: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """In float64: what each pair's gate and up make of the packed rows, and the parts that
        down makes of the packed pairs."""
        layer, case = self._layer, self.case
        rows = torch.from_numpy(unpack(pack(a))[:, : case.width])
        pairs = torch.from_numpy(unpack(made.inner)[:, : case.inner])
        gated_rows, parts = [], []
        per_row = made.parts.shape[1]
        for pair in range(len(pairs)):
            row, rank = divmod(pair, per_row)
            if rank < case.n_used:
                expert = int(made.routes.experts[row, rank])
                gate_up = layer.gate_up.product(rows[row], expert)
                down = layer.down.product(pairs[pair], expert)
            else:
                assert layer.shared is not None
                gate_up = layer.shared.gate_up.product(rows[row])
                down = layer.shared.down.product(pairs[pair])
            gated_rows.append(gated_halves(gate_up, Gate(case.activation)).numpy())
            parts.append(float(made.routes.weights[row, rank]) * down.numpy())
        return np.array(gated_rows), np.array(parts).reshape(made.parts.shape)

    def _experts(self, machine: Machine) -> tuple[list[Experts], list[Experts]]:
        """Of each product, one launch or two."""
        order, case = gated_order(self.case.inner), self.case
        gate_up, down = self.gate_up.put(machine, order), self.down.put(machine)
        if not case.shared:
            return [Experts(gate_up)], [Experts(down)]
        shared_gate_up = self.shared_gate_up.put(machine, order)
        shared_down = self.shared_down.put(machine)
        if not case.shared_form:
            return [Experts(gate_up, shared_gate_up)], [Experts(down, shared_down)]
        first = [Experts(gate_up), Experts(None, shared_gate_up)]
        return first, [Experts(down), Experts(None, shared_down)]

    def routed(
        self, machine: Machine, a: Floats, bundle: int = 4, n_live: int | None = None
    ) -> Routes:
        """Who is asked."""
        shapes = routes_shapes(len(a), self.case.n_expert, self.choice, bundle)
        floats = {"logits", "weights"}
        arrays = {
            n: machine.garbage(s, np.float32 if n in floats else np.int32)
            for n, s in shapes.items()
        }
        arrays["tickets"] = machine.put(np.zeros(1, np.int32))
        routes = Routes(**arrays, bundle=bundle)
        gate = machine.put(self.shared_gate[0]) if self.case.shared == "gated" else None
        bias = None if self.probs_bias is None else machine.put(self.probs_bias)
        how = self.choice
        choice = ExpertChoice(
            how.n_used, how.gating, how.normalise, how.scale, bias, how.has_shared
        )
        live = None if n_live is None else machine.put(np.array([n_live], np.int32))
        router = Router(machine.put(self.router), shared_gate=gate)
        moe_route(machine.launcher, machine.put(a), router, choice, routes, n_live=live)
        return routes


def _floats(values: Floats) -> MatrixPart:
    flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    rows, width = values.shape
    return MatrixPart(Tensor("f", (rows, width), find_format("F32"), flat))


def _put(machine: Machine, packed: PackedRows) -> PackedRows:
    return PackedRows(machine.put(packed.q), machine.put(packed.d), machine.put(packed.s))
