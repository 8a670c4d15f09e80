"""Mixtures of experts: the choice of experts, and their two products."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from msgspec import Struct

from ....cuda_kernels.kernel import Array, Launcher
from ....cuda_kernels.mm_moe import (
    PlainExperts,
    PlainStack,
    plain_experts_down,
    plain_experts_gate_up,
)
from ....cuda_kernels.moe_route import (
    ExpertChoice,
    Router,
    Routes,
    bundle_width,
    moe_route,
    n_pairs,
    routes_shapes,
)
from ....cuda_kernels.packed import BLOCK, PackedRows, padded_width
from ....cuda_kernels.qmm_moe import (
    Experts,
    ExpertStack,
    MoeWorkspace,
    experts_down,
    experts_gate_up,
    workspace_sizes,
)
from ...errors import ConfigError
from ..layers import Moe
from .gate_codes import gate_of
from .step_memory import StepMemory
from .weights import Stack

Group = Experts | PlainExperts  # the experts of one launch


class ExpertLaunch(NamedTuple):
    group: Group
    n_inner: int
    activation: int = 0  # see `qmm.gate_code`


class Layer(Struct, frozen=True):
    """A layer's weights as the kernels take them. Of each product one launch, or two."""

    router: Router
    choice: ExpertChoice
    gate_up: list[ExpertLaunch]
    down: list[ExpertLaunch]
    n_out: int


class ExpertRunner:
    def __init__(self, memory: StepMemory) -> None:
        self._memory, self._device = memory, memory.device
        self._layers: dict[int, tuple[Moe, Layer]] = {}  # by identity of the key
        self._routes: dict[tuple[object, ...], Routes] = {}
        self._spaces: dict[tuple[int, int], MoeWorkspace] = {}

    def run(self, a: PackedRows, moe: Moe, routed_by: PackedRows) -> Array:
        """What each row's experts say, by rank, weighted: float32 (T, ranks, D), to be summed."""
        layer, launcher = self._layer(moe), self._memory.launcher
        if routed_by is not a and layer.router.shared_gate is not None:
            raise ConfigError(
                "--device cuda: the gate of a shared expert cannot read other rows than the router "
                "does; use --device cpu"
            )
        routes = self._room(a.q.shape[0], layer)
        moe_route(launcher, routed_by, layer.router, layer.choice, routes)
        space = self._space(_sizes(launcher, layer, routes))
        n, widths = n_pairs(routes), {launch.n_inner for launch in layer.gate_up}
        inner = {width: self._memory.packed(n, width) for width in widths}
        for group, width, activation in layer.gate_up:
            out = inner[width]
            if isinstance(group, Experts):
                experts_gate_up(
                    launcher, a, group, routes, out, space, activation=activation,
                    weighs_inputs=moe.weighs_inputs,
                )  # fmt: skip
            else:
                plain_experts_gate_up(
                    launcher, a, group, routes, out, space, activation=activation,
                    weighs_inputs=moe.weighs_inputs,
                )  # fmt: skip
        ranks = routes.n_used + routes.has_shared
        parts = self._device.empty((routes.n_rows, ranks, layer.n_out), "float32")
        for group, width, _ in layer.down:
            rows, weighed = inner[width], moe.weighs_inputs
            if isinstance(group, Experts):
                experts_down(launcher, rows, group, routes, parts, space, weighs_inputs=weighed)
            else:
                plain_experts_down(launcher, rows, group, routes, parts, weighs_inputs=weighed)
        return parts

    def _room(self, n_rows: int, layer: Layer) -> Routes:
        n_expert = int(layer.router.weights.shape[0])
        bundle = bundle_width(n_rows, n_expert, layer.choice.n_used)
        shapes = routes_shapes(n_rows, n_expert, layer.choice, bundle)
        key = tuple(shapes.values())
        if key not in self._routes:
            arrays = {
                name: self._device.empty(
                    shape, "float32" if name in ("logits", "weights") else "int32"
                )
                for name, shape in shapes.items()
            }
            arrays["tickets"] = self._device.zeros((1,), "int32")
            self._routes[key] = Routes(**arrays, bundle=bundle)
        return self._routes[key]

    def _space(self, sizes: tuple[int, int]) -> MoeWorkspace:
        if sizes not in self._spaces:
            sums, arrivals = sizes
            self._spaces[sizes] = MoeWorkspace(
                self._device.empty((max(1, sums),), "float32"),
                self._device.zeros((max(1, arrivals),), "int32"),
            )
        return self._spaces[sizes]

    def _layer(self, moe: Moe) -> Layer:
        if id(moe) not in self._layers:
            self._layers[id(moe)] = moe, prepare(moe)
        return self._layers[id(moe)][1]


def prepare(moe: Moe) -> Layer:
    if moe.activation is not None:
        raise ConfigError(
            "--device cuda: experts without gates have no kernels there yet; take --device cpu"
        )
    gate = None if moe.shared is None else moe.shared.gate_inp
    router = Router(
        moe.gate_inp.floats,
        moe.gate_inp.bias,
        None if gate is None else gate.floats.reshape(-1),
    )
    choice = ExpertChoice(
        moe.n_used,
        moe.gating.value,
        moe.normalise,
        moe.scale,
        moe.probs_bias,
        moe.shared is not None,
        moe.n_groups,
        moe.n_groups_used,
        moe.expert_scale,
    )
    gate_up, down = moe.gate_up.stack, moe.down.stack
    width, code = moe.down.n_in, gate_of(moe.gate)
    first, last = [ExpertLaunch(_group(gate_up), width, code)], [ExpertLaunch(_group(down), width)]
    if moe.shared is not None:
        own, own_code = moe.shared.down.n_in, gate_of(moe.shared.gate)
        own_gate_up, own_down = moe.shared.gate_up.stack, moe.shared.down.stack
        if own == width and own_code == code and _alike(gate_up, own_gate_up):
            first = [ExpertLaunch(_group(gate_up, own_gate_up), width, code)]
        else:
            first.append(ExpertLaunch(_group(None, own_gate_up), own, own_code))
        if own == width and _alike(down, own_down):
            last = [ExpertLaunch(_group(down, own_down), width)]
        else:
            last.append(ExpertLaunch(_group(None, own_down), own))
    return Layer(router, choice, first, last, moe.down.n_out)


def _group(routed: Stack | None, shared: Stack | None = None) -> Group:
    tiles = [stack if isinstance(stack, ExpertStack) else None for stack in (routed, shared)]
    if any(stack is not None for stack in tiles):
        return Experts(*tiles)
    return PlainExperts(
        *(stack if isinstance(stack, PlainStack) else None for stack in (routed, shared))
    )


def _alike(routed: Stack, shared: Stack) -> bool:
    if isinstance(routed, ExpertStack) and isinstance(shared, ExpertStack):
        return routed.tiles == shared.tiles
    if isinstance(routed, PlainStack) and isinstance(shared, PlainStack):
        return routed.kind is shared.kind
    return False


def _sizes(launcher: Launcher, layer: Layer, routes: Routes) -> tuple[int, int]:
    """Sums and arrivals that both products of the layer need, for any choice of experts."""
    bundles = int(routes.ids.shape[0])
    widest = max(launch.n_inner for launch in layer.gate_up)
    sums = n_pairs(routes) * widest
    arrivals = bundles * (padded_width(widest) // BLOCK)
    for pair in product(layer.gate_up, layer.down):
        stacks = [launch.group.checked() for launch in pair if isinstance(launch.group, Experts)]
        if stacks:
            found = workspace_sizes(launcher, stacks[0], stacks[-1], routes)
            sums, arrivals = max(sums, found[0]), max(arrivals, found[1])
    return sums, arrivals
