"""A mixture of experts: routing, and the experts' products, quantised and plain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.quantised import stored

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
    bundle_width,
    moe_route,
    n_pairs,
    routes_shapes,
)
from nextn.cuda_kernels.packed import BLOCK, padded_width
from nextn.cuda_kernels.qmm_moe import (
    Experts,
    ExpertStack,
    MoeWorkspace,
    experts_down,
    experts_gate_up,
    workspace_sizes,
)
from nextn.cuda_kernels.repack import gated_order, repack, tiles_of

from .case import PACKING, Case, Work
from .models import Sizes
from .place import Numpy, Place, distance, packed_bytes

SOFTMAX = 1
PIECE = 128  # rows of an expert that are at random; its others repeat them
KINDS = 2  # experts that differ; the others are like them in turn
FORMS = (("Q4_K", "Q4_K"), ("Q4_K", "Q6_K"), ("Q8_0", "Q8_0"), ("BF16", "BF16"))
Doubles = NDArray[np.float64]


@dataclass
class Routed:
    """Rows and who is asked by them. `given`: the rows as they were before they were packed."""

    place: Place
    sizes: Sizes
    rows: int
    has_shared: bool = True

    def __post_init__(self) -> None:
        place, sizes = self.place, self.sizes
        shape = sizes.n_experts, sizes.hidden
        self.given = place.random.standard_normal((self.rows, sizes.hidden), np.float32)
        self.weights = place.random.standard_normal(shape, np.float32)
        self.router = Router(place.put(self.weights), shared_gate=place.normal(sizes.hidden))
        self.choice = ExpertChoice(sizes.n_used, SOFTMAX, normalise=True, has_shared=True)
        bundle = bundle_width(self.rows, sizes.n_experts, sizes.n_used)
        self.shapes = routes_shapes(self.rows, sizes.n_experts, self.choice, bundle)
        arrays = {
            name: place.zeros(size, np.float32 if name in ("logits", "weights") else np.int32)
            for name, size in self.shapes.items()
        }
        self.routes = Routes(**arrays, bundle=bundle)
        self.x = place.packed_rows(self.given)
        self.rows_in = place.put(self.given)

    def route(self) -> None:
        arguments = (self.rows_in, self.router, self.choice, self.routes)
        moe_route(self.place.launcher, *arguments)

    @property
    def asked(self) -> NDArray[np.int32]:
        """(rows, n_used)"""
        made: NDArray[np.int32] = self.place.get(self.routes.experts)
        return made


def routing(sizes: Sizes) -> Iterator[Case]:
    if sizes.n_experts:
        for rows in (*sizes.rows, 256):
            name = f"{sizes.name} moe_route {sizes.n_used} of {sizes.n_experts}, {rows} rows"
            yield Case(name, partial(_route, sizes=sizes, rows=rows), tolerance=0.0)


def _route(place: Place, sizes: Sizes, rows: int) -> Work:
    """`error`: the part of rows that ask other experts than those of the best logits."""
    routed = Routed(place, sizes, rows)

    def error() -> float:
        logits = routed.given.astype(np.float64) @ routed.weights.astype(np.float64).T
        best = np.argsort(-logits, axis=1)[:, : sizes.n_used]
        return float((np.sort(best) != np.sort(routed.asked)).any(1).mean())

    written = 4 * sum(map(math.prod, routed.shapes.values()))
    moved = routed.weights.nbytes + routed.given.nbytes + written
    return Work(routed.route, moved, 2 * routed.weights.size * rows, error)


def quantised(sizes: Sizes) -> Iterator[Case]:
    return _products(sizes, plain=False)


def plain(sizes: Sizes) -> Iterator[Case]:
    return _products(sizes, plain=True)


def _products(sizes: Sizes, plain: bool) -> Iterator[Case]:
    if not sizes.n_experts:
        return
    seen = set()
    for forms in FORMS:
        for part, form in zip(("gate_up", "down"), forms, strict=True):
            if (form == "BF16") != plain or (part, form) in seen:
                continue
            seen.add((part, form))
            for rows in sizes.rows:
                make = partial(_product, sizes=sizes, rows=rows, forms=forms, part=part)
                yield Case(f"{sizes.name} experts {part} {form}, {rows} rows", make, PACKING)


@cache
def _experts(form: str, rows: int, width: int, is_gated: bool) -> tuple[Numpy, Doubles]:
    """As kernels take them, one behind the other; and their values, (KINDS, rows, width).

    Of a gated matrix the gates come first in the values.
    """
    packed, values = [], []
    for seed in range(KINDS):
        made = stored(form, min(PIECE, rows), width, seed)
        times = rows // len(made.rows)
        if form == "BF16":
            data = np.tile(made.rows.view(np.uint16), (times, 1))
        else:
            order = gated_order(len(made.rows) // 2) if is_gated else slice(None)
            data = np.tile(repack(form, made.rows[order], width), times)
        packed.append(data)
        values.append(_spread(made.values, times, is_gated and form != "BF16"))
    return np.stack(packed), np.stack(values)


def _spread(values: Doubles, times: int, is_gated: bool) -> Doubles:
    """Repeated; of gated tiles, gates and ups each for themselves."""
    if not is_gated:
        return np.tile(values, (times, 1))
    half = len(values) // 2
    return np.concatenate([np.tile(part, (times, 1)) for part in (values[:half], values[half:])])


class Mixture:
    """Experts of two kinds in turn, and a shared one that is the first of them."""

    def __init__(self, place: Place, sizes: Sizes, rows: int, forms: tuple[str, str]) -> None:
        self.place, self.sizes, self.forms = place, sizes, forms
        self.routed = Routed(place, sizes, rows)
        self.routed.route()
        inner, hidden = sizes.expert_ffn, sizes.hidden
        self.gate_up, self.up_values = self._stacks(forms[0], 2 * inner, hidden, True)
        self.down, self.down_values = self._stacks(forms[1], hidden, inner, False)
        routes = self.routed.routes
        self.made = place.packed(n_pairs(routes), inner)
        per_row = routes.n_used + routes.has_shared
        self.parts = place.zeros((rows, per_row, hidden))
        floats, arrivals = self._workspace()
        self.space = MoeWorkspace(place.zeros(floats), place.zeros(arrivals, np.int32))

    @property
    def is_plain(self) -> bool:
        return self.forms[0] == "BF16"

    def _stacks(self, form: str, rows: int, width: int, is_gated: bool) -> tuple[Any, Doubles]:
        data, values = _experts(form, rows, width, is_gated)
        n = self.sizes.n_experts
        every = self.place.tiled(data, n // KINDS)
        one = self.place.put(data[0])
        if form == "BF16":
            stacks = (PlainStack(every, Plain.BF16), PlainStack(one[None], Plain.BF16))
            return PlainExperts(*stacks), values
        tiles = tiles_of(form, rows, width)
        return Experts(ExpertStack(tiles, n, every.reshape(-1)), ExpertStack(tiles, 1, one)), values

    def _workspace(self) -> tuple[int, int]:
        routes, launcher = self.routed.routes, self.place.launcher
        if not self.is_plain:
            stacks = self.gate_up.checked(), self.down.checked()
            return workspace_sizes(launcher, *stacks, routes)
        inner = self.sizes.expert_ffn
        return n_pairs(routes) * inner, int(routes.ids.shape[0]) * (padded_width(inner) // BLOCK)

    def launch_gate_up(self) -> None:
        launch: Any = plain_experts_gate_up if self.is_plain else experts_gate_up
        arrays = (self.routed.x, self.gate_up, self.routed.routes, self.made, self.space)
        launch(self.place.launcher, *arrays)

    def launch_down(self) -> None:
        arrays = (self.made, self.down, self.routed.routes, self.parts)
        if self.is_plain:
            plain_experts_down(self.place.launcher, *arrays)
        else:
            experts_down(self.place.launcher, *arrays, self.space)

    def error(self) -> float:
        """Of the last row's parts, both products in it."""
        rank_of = [*self.routed.asked[-1].tolist(), 0]  # the shared expert is the first of them
        x = self.place.unpacked(self.routed.x)[-1, : self.sizes.hidden]
        weights = self.place.get(self.routed.routes.weights)[-1]
        exact = []
        for expert, weight in zip(rank_of, weights, strict=True):
            gate, up = np.split(self.up_values[expert % KINDS] @ x, 2)
            inner = gate / (1 + np.exp(-gate)) * up
            exact.append(weight * (self.down_values[expert % KINDS] @ inner))
        return distance(self.place.get(self.parts)[-1], np.stack(exact))


def _product(place: Place, sizes: Sizes, rows: int, forms: tuple[str, str], part: str) -> Work:
    mixture = Mixture(place, sizes, rows, forms)
    values = mixture.up_values if part == "gate_up" else mixture.down_values
    data, _ = _experts(forms[part == "down"], *values.shape[1:], part == "gate_up")
    n_distinct = len(np.unique(mixture.routed.asked)) + 1
    pairs = n_pairs(mixture.routed.routes)
    moved = n_distinct * data[0].nbytes + packed_bytes(pairs, sizes.expert_ffn)
    flops = 2 * pairs * values[0].size
    if part == "gate_up":
        moved += packed_bytes(rows, sizes.hidden)

        def error() -> float:
            mixture.launch_down()
            return mixture.error()

        return Work(mixture.launch_gate_up, moved, flops, error)
    mixture.launch_gate_up()
    moved += 4 * pairs * sizes.hidden
    return Work(mixture.launch_down, moved, flops, mixture.error)
