"""Mixtures of experts: who is asked, and the two products of everybody who is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....cuda_kernels.kernel import Array
from ....cuda_kernels.moe_route import (
    Choice,
    Router,
    Routes,
    bundle_width,
    moe_route,
    n_pairs,
    routes_shapes,
)
from ....cuda_kernels.packed import PackedRows
from ....cuda_kernels.qmm import Activation as Kind
from ....cuda_kernels.qmm_moe import (
    Experts,
    ExpertStack,
    MoeWorkspace,
    experts_down,
    experts_gate_up,
    workspace_sizes,
)
from ....cuda_kernels.repack import FORMATS, gated_order, repack, tiles_of
from ...errors import ConfigError
from ..layers import Activation, MatrixPart, Moe
from .device import Device, Numpy
from .rooms import Rooms
from .weights import CudaMatrix

_KINDS = {Activation.SILU: Kind.SILU, Activation.GELU: Kind.GELU}


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's weights as the kernels take them. Of each product one launch, or two."""

    router: Router
    choice: Choice
    gate_up: list[Experts]
    down: list[Experts]
    activation: Kind


class ExpertRunner:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms, self._device = rooms, rooms.device
        self._layers: dict[int, tuple[Moe, Layer]] = {}  # by identity of the key
        self._routes: dict[tuple[object, ...], Routes] = {}
        self._spaces: dict[tuple[int, int], MoeWorkspace] = {}

    def run(self, a: PackedRows, moe: Moe) -> Array:
        """What each row's experts say, by rank, weighted: float32 (T, ranks, D), to be summed."""
        layer, launcher = self._layer(moe), self._rooms.launcher
        routes = self._room(a.q.shape[0], layer)
        moe_route(launcher, a, layer.router, layer.choice, routes)
        first, last = _any_of(layer.gate_up[0]), _any_of(layer.down[0])
        space = self._space(workspace_sizes(launcher, first, last, routes))
        inner = self._rooms.packed(n_pairs(routes), last.tiles.width)
        for experts in layer.gate_up:
            experts_gate_up(launcher, a, experts, routes, inner, space, activation=layer.activation)
        ranks = routes.n_used + routes.has_shared
        parts = self._device.empty((routes.n_rows, ranks, last.tiles.rows), "float32")
        for experts in layer.down:
            experts_down(launcher, inner, experts, routes, parts, space)
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
            self._layers[id(moe)] = moe, prepare(self._device, moe)
        return self._layers[id(moe)][1]


def prepare(device: Device, moe: Moe) -> Layer:
    gate = None if moe.shared is None else moe.shared.gate_inp
    router = Router(
        moe.gate_inp.floats,
        moe.gate_inp.bias,
        None if gate is None else gate.floats.reshape(-1),
    )
    shared = moe.shared is not None
    choice = Choice(moe.n_used, moe.gating.value, moe.normalise, moe.scale, moe.probs_bias, shared)
    gate_up, down = _stack(device, moe.gate_up, is_gated=True), _stack(device, moe.down)
    kind = _KINDS[moe.activation]
    if moe.shared is None:
        return Layer(router, choice, [Experts(gate_up)], [Experts(down)], kind)
    own = _stack(device, moe.shared.gate_up, is_gated=True), _stack(device, moe.shared.down)
    if own[0].tiles.rows != gate_up.tiles.rows:
        raise ConfigError(
            f"--device cuda: a shared expert {own[0].tiles.rows // 2} wide beside experts "
            f"{gate_up.tiles.rows // 2} wide cannot be run"
        )
    return Layer(router, choice, _pair(gate_up, own[0]), _pair(down, own[1]), kind)


def _pair(routed: ExpertStack, shared: ExpertStack) -> list[Experts]:
    if routed.tiles == shared.tiles:
        return [Experts(routed, shared)]
    return [Experts(routed), Experts(None, shared)]


def _any_of(experts: Experts) -> ExpertStack:
    found = experts.routed or experts.shared
    assert found is not None, "a launch asks somebody"
    return found


def _stack(device: Device, matrix: CudaMatrix, *, is_gated: bool = False) -> ExpertStack:
    """Experts one behind the other; a matrix without that dimension is one expert."""
    parts = matrix.parts
    kinds = {part.tensor.format.name for part in parts}
    kind = min(kinds)
    if len(kinds) > 1 or kind not in FORMATS:
        raise ConfigError(
            f"--device cuda: experts of {' and '.join(sorted(kinds))} in {parts[0].tensor.name} "
            f"cannot be run; quantise them: spec convert quantize"
        )
    n_expert = parts[0].tensor.shape[0] if len(parts[0].tensor.shape) > 2 else 1
    tiles = tiles_of(kind, matrix.n_out, matrix.n_in)
    packed = np.empty((n_expert, tiles.n_bytes), np.uint8)
    order = gated_order(matrix.n_out // 2) if is_gated else slice(None)
    for expert in range(n_expert):
        rows = np.concatenate([_rows_of(part, expert) for part in parts])
        repack(kind, rows[order], matrix.n_in, packed[expert])
    for part in parts:
        part.tensor.release()
    scale, bias = _scales(parts, n_expert), _biases(parts, n_expert)
    beside = [None if values is None else device.put(values) for values in (scale, bias)]
    return ExpertStack(tiles, n_expert, device.put(packed.reshape(-1)), *beside)


def _rows_of(part: MatrixPart, expert: int) -> Numpy:
    n_out = part.tensor.shape[-2]
    rows = part.tensor.data.reshape(-1, n_out, part.tensor.data.size // _stacked(part) // n_out)
    own: Numpy = rows[expert]
    return own if part.row_order is None else own[part.row_order]


def _stacked(part: MatrixPart) -> int:
    return part.tensor.shape[0] if len(part.tensor.shape) > 2 else 1


def _scales(parts: list[MatrixPart], n_expert: int) -> Numpy | None:
    """Of all rows of each expert, in the order of the file."""
    if all(part.scale is None for part in parts):
        return None
    columns = []
    for part in parts:
        own = np.ones(1, np.float32) if part.scale is None else part.scale
        column = np.broadcast_to(own.reshape(-1, 1), (n_expert, part.tensor.shape[-2]))
        columns.append(column)
    return np.ascontiguousarray(np.concatenate(columns, axis=1), np.float32)


def _biases(parts: list[MatrixPart], n_expert: int) -> Numpy | None:
    if all(part.bias is None for part in parts):
        return None
    columns = []
    for part in parts:
        shape = n_expert, part.tensor.shape[-2]
        own = np.zeros(shape, np.float32) if part.bias is None else part.bias.reshape(shape)
        columns.append(own)
    return np.ascontiguousarray(np.concatenate(columns, axis=1), np.float32)
