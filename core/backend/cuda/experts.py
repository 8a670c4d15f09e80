"""Mixtures of experts: the choice of experts, and their two products."""

from __future__ import annotations

from dataclasses import dataclass

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
from ....cuda_kernels.qmm import Activation as Kind
from ....cuda_kernels.qmm_moe import (
    Experts,
    ExpertStack,
    MoeWorkspace,
    experts_down,
    experts_gate_up,
    workspace_sizes,
)
from ...errors import ConfigError
from ..layers import GateActivation, Moe
from .step_memory import StepMemory
from .weights import Stack

Group = Experts | PlainExperts  # the experts of one launch
_KINDS = {GateActivation.SILU: Kind.SILU, GateActivation.GELU: Kind.GELU}


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's weights as the kernels take them. Of each product one launch, or two."""

    router: Router
    choice: ExpertChoice
    gate_up: list[Group]
    down: list[Group]
    n_inner: int
    n_out: int
    activation: Kind


class ExpertRunner:
    def __init__(self, memory: StepMemory) -> None:
        self._memory, self._device = memory, memory.device
        self._layers: dict[int, tuple[Moe, Layer]] = {}  # by identity of the key
        self._routes: dict[tuple[object, ...], Routes] = {}
        self._spaces: dict[tuple[int, int], MoeWorkspace] = {}

    def run(self, a: PackedRows, moe: Moe) -> Array:
        """What each row's experts say, by rank, weighted: float32 (T, ranks, D), to be summed."""
        layer, launcher = self._layer(moe), self._memory.launcher
        routes = self._room(a.q.shape[0], layer)
        moe_route(launcher, a, layer.router, layer.choice, routes)
        space = self._space(_sizes(launcher, layer, routes))
        inner = self._memory.packed(n_pairs(routes), layer.n_inner)
        for group in layer.gate_up:
            if isinstance(group, Experts):
                experts_gate_up(
                    launcher, a, group, routes, inner, space, activation=layer.activation
                )
            else:
                plain_experts_gate_up(
                    launcher, a, group, routes, inner, space, activation=layer.activation
                )
        ranks = routes.n_used + routes.has_shared
        parts = self._device.empty((routes.n_rows, ranks, layer.n_out), "float32")
        for group in layer.down:
            if isinstance(group, Experts):
                experts_down(launcher, inner, group, routes, parts, space)
            else:
                plain_experts_down(launcher, inner, group, routes, parts)
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
    gate = None if moe.shared is None else moe.shared.gate_inp
    router = Router(
        moe.gate_inp.floats,
        moe.gate_inp.bias,
        None if gate is None else gate.floats.reshape(-1),
    )
    shared = moe.shared is not None
    choice = ExpertChoice(
        moe.n_used, moe.gating.value, moe.normalise, moe.scale, moe.probs_bias, shared
    )
    gate_up, down = moe.gate_up.stack, moe.down.stack
    groups: tuple[list[Group], list[Group]] = [_group(gate_up)], [_group(down)]
    if moe.shared is not None:
        own = moe.shared.gate_up.stack, moe.shared.down.stack
        if moe.shared.gate_up.n_out != moe.gate_up.n_out:
            raise ConfigError(
                f"--device cuda: a shared expert {moe.shared.gate_up.n_out // 2} wide beside "
                f"experts {moe.gate_up.n_out // 2} wide cannot be run"
            )
        groups = _pair(gate_up, own[0]), _pair(down, own[1])
    widths = moe.down.n_in, moe.down.n_out
    return Layer(router, choice, *groups, *widths, _KINDS[moe.activation])


def _group(routed: Stack | None, shared: Stack | None = None) -> Group:
    tiles = [stack if isinstance(stack, ExpertStack) else None for stack in (routed, shared)]
    if any(stack is not None for stack in tiles):
        return Experts(*tiles)
    return PlainExperts(
        *(stack if isinstance(stack, PlainStack) else None for stack in (routed, shared))
    )


def _pair(routed: Stack, shared: Stack) -> list[Group]:
    return (
        [_group(routed, shared)]
        if _alike(routed, shared)
        else [_group(routed), _group(None, shared)]
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
    sums = n_pairs(routes) * layer.n_inner
    arrivals = bundles * (padded_width(layer.n_inner) // BLOCK)
    for first, last in zip(layer.gate_up, layer.down, strict=False):
        stacks = [g.checked() for g in (first, last) if isinstance(g, Experts)]
        if len(stacks) == 2:
            found = workspace_sizes(launcher, stacks[0], stacks[1], routes)
        elif stacks:
            found = workspace_sizes(launcher, stacks[0], stacks[0], routes)
        else:
            continue
        sums, arrivals = max(sums, found[0]), max(arrivals, found[1])
    return sums, arrivals
