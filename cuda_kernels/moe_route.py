"""Routing of a mixture of experts: router logits, choice, and the rows of each expert."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .kernel import Argument, Array, Kernel, Launcher, Source
from .packed import PackedRows, require_packed
from .shapes import matrix_shape, require_shape

MAX_EXPERTS = 512
MAX_USED = 16
RANK_BITS = 5  # an entry of `columns` is row << 5 | rank
BUNDLES = (4, 8)
FEW_ROWS = 64  # up to here one block chooses for all, in the launch that makes the logits

MAX_GROUPS = 32  # a lane each
SIGMOID_OF_CHOSEN = 4  # of `ExpertChoice.gating`

_LIST_BYTES = 6144 + 516
_SHARED = {
    "moe_route_rows": _LIST_BYTES,
    "moe_route_packed": _LIST_BYTES,
    "moe_logits_rows": 512,
    "moe_logits_packed": 512,
    "moe_choose": _LIST_BYTES,
}


@cache
def _kernel(name: str, is_grouped: bool) -> Kernel:
    """`is_grouped`: made for those that need it."""
    source = Source("moe_route.cu", (("GROUPED", 1),) if is_grouped else ())
    return Kernel(name, source, "moe: route", 256, registers=128, shared=_SHARED[name])


KERNELS = tuple(_kernel(name, False) for name in _SHARED)


@dataclass(frozen=True, slots=True)
class Router:
    """Float32 (n_expert, n_k); `shared_gate` (n_k,): its sigmoid weighs the shared expert."""

    weights: Array
    bias: Array | None = None  # (n_expert,)
    shared_gate: Array | None = None


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """How experts are chosen; the fields of `core.backend.layers.Moe`."""

    n_used: int
    gating: int  # `Gating.value`
    normalise: bool
    scale: float = 1.0
    probs_bias: Array | None = None  # float32 (n_expert,)
    has_shared: bool = False
    n_groups: int = 1
    n_groups_used: int = 1
    expert_scale: Array | None = None  # float32 (n_expert,)

    @property
    def is_grouped(self) -> bool:
        """Or has something else that the kernels of most families lack."""
        is_grouped = self.n_groups_used < self.n_groups
        return is_grouped or self.expert_scale is not None or self.gating == SIGMOID_OF_CHOSEN


@dataclass(frozen=True, slots=True)
class Routes:
    """What `moe_route` leaves: of each row, and of each expert that any row uses.

    A bundle is up to `bundle` (4 or 8) columns of one expert, entries starts[i] to starts[i + 1]
    of `columns`: row << 5 | rank, ascending within an expert. The shared expert, if there is one,
    comes last, as number n_expert and rank n_used, with all rows. `tickets` is zero before the
    first launch and after each.
    """

    logits: Array  # float32 (T, n_expert + 1)
    experts: Array  # int32 (T, n_used), best first
    weights: Array  # float32 (T, n_used + has_shared); the last is the shared expert's
    n_bundles: Array  # int32 (2,): of routed experts, and all
    ids: Array  # int32 (`max_bundles`,): the expert of each
    starts: Array  # int32, one more
    columns: Array  # int32 (T * (n_used + has_shared),)
    tickets: Array  # int32 (1,)
    bundle: int = 4

    @property
    def n_rows(self) -> int:
        return int(self.experts.shape[0])

    @property
    def n_used(self) -> int:
        return int(self.experts.shape[1])

    @property
    def has_shared(self) -> bool:
        return int(self.weights.shape[1]) > self.n_used

    @property
    def n_expert(self) -> int:
        return int(self.logits.shape[1]) - 1

    def bundles_of(self, which: int) -> int:
        """At most, of routed experts (0), the shared one (1), or all (2)."""
        everyone = int(self.ids.shape[0])
        shared = -(-self.n_rows // self.bundle) if self.has_shared else 0
        return (everyone - shared, shared, everyone)[which]

    def check_experts(self, n_routed: int | None, which: int) -> None:
        """Against the stacks of a launch; `n_routed` None: without routed ones."""
        if which and not self.has_shared:
            raise ValueError("the routes know of no shared expert")
        if n_routed not in (None, self.n_expert):
            raise ValueError(f"{n_routed} experts, the routes have {self.n_expert}")


def n_pairs(routes: Routes) -> int:
    """Rows between the two products: row t of rank r is t * (n_used + has_shared) + r."""
    return routes.n_rows * (routes.n_used + routes.has_shared)


def bundle_width(n_rows: int, n_expert: int, n_used: int) -> int:
    """Columns that are multiplied at once: 4, or 8 where most experts have more rows than that."""
    return 4 if n_rows <= 4 or n_rows * n_used <= 3 * n_expert else 8


def max_bundles(n_rows: int, n_expert: int, n_used: int, bundle: int) -> int:
    """Of routed experts."""
    n_pairs = n_rows * n_used
    return min(n_pairs, n_expert + n_pairs // bundle)


def routes_shapes(
    n_rows: int, n_expert: int, choice: ExpertChoice, bundle: int = 4
) -> dict[str, tuple[int, ...]]:
    """Of the arrays of `Routes`."""
    per_row = choice.n_used + choice.has_shared
    bundles = max_bundles(n_rows, n_expert, choice.n_used, bundle)
    bundles += choice.has_shared * -(-n_rows // bundle)
    return {
        "logits": (n_rows, n_expert + 1),
        "experts": (n_rows, choice.n_used),
        "weights": (n_rows, per_row),
        "n_bundles": (2,),
        "ids": (bundles,),
        "starts": (bundles + 1,),
        "columns": (n_rows * per_row,),
        "tickets": (1,),
    }


def moe_route(
    launcher: Launcher,
    x: PackedRows | Array,
    router: Router,
    choice: ExpertChoice,
    routes: Routes,
    *,
    n_live: Array | None = None,
) -> None:
    """`x`: normed float32 rows (T, n_k), or packed. `n_live` int32 (1,): later rows use none."""
    n_expert, n_k = matrix_shape("router", router.weights)
    n_rows = routes.n_rows
    _check(router, choice, routes, n_k)
    rows = _input(x, n_rows, n_k)
    weights: list[Argument] = [router.weights, router.bias, router.shared_gate, n_k]
    how: list[Argument] = [
        n_expert, choice.n_used, choice.gating, int(choice.normalise),
        float(choice.scale), choice.probs_bias,
    ]  # fmt: skip
    if choice.is_grouped:
        how += [choice.n_groups, choice.n_groups_used, choice.expert_scale]
    of_rows: list[Argument] = [
        routes.logits, routes.experts, routes.weights, int(choice.has_shared),
        n_live, n_rows, routes.tickets,
    ]  # fmt: skip
    lists: list[Argument] = [
        routes.n_bundles, routes.ids, routes.starts, routes.columns, routes.bundle,
    ]  # fmt: skip
    gated = router.shared_gate is not None
    grid = (-(-(n_expert + gated) // 2), -(-n_rows // 8))
    form = "packed" if isinstance(x, PackedRows) else "rows"
    if n_rows <= FEW_ROWS:
        kernel = _kernel(f"moe_route_{form}", choice.is_grouped)
        launcher.launch(kernel, grid, [*rows, *weights, *how, *of_rows, *lists])
        return
    kernel = _kernel(f"moe_logits_{form}", choice.is_grouped)
    launcher.launch(kernel, grid, [*rows, *weights, *how, *of_rows])
    kernel = _kernel("moe_choose", choice.is_grouped)
    launcher.launch(kernel, -(-n_rows // 8), [int(gated), *how, *of_rows, *lists])


def _input(x: PackedRows | Array, n_rows: int, n_k: int) -> list[Argument]:
    if isinstance(x, PackedRows):
        require_packed(x, n_rows, n_k)
        return x.arguments
    require_shape("x", x, (n_rows, n_k))
    return [x, n_k]


def _check(router: Router, choice: ExpertChoice, routes: Routes, n_k: int) -> None:
    n_expert = int(router.weights.shape[0])
    if n_expert > MAX_EXPERTS or not 1 <= choice.n_used <= min(MAX_USED, n_expert):
        raise ValueError(
            f"router: {choice.n_used} of {n_expert} experts; "
            f"at most {MAX_USED} of {MAX_EXPERTS} are chosen"
        )
    if n_k % 4:
        raise ValueError(f"router: rows of {n_k} values do not begin at 16 bytes; pad them")
    if router.shared_gate is not None and not choice.has_shared:
        raise ValueError("router: a gate of a shared expert that is not there")
    if routes.bundle not in BUNDLES:
        raise ValueError(f"routes: bundles of {routes.bundle} columns; there are {BUNDLES}")
    if choice.gating not in (1, 2, 3, SIGMOID_OF_CHOSEN):
        raise ValueError(f"choice: gating {choice.gating} is not known")
    if n_expert % choice.n_groups or not 1 <= choice.n_groups_used <= choice.n_groups <= MAX_GROUPS:
        raise ValueError(
            f"choice: {choice.n_groups_used} of {choice.n_groups} groups of {n_expert} experts; "
            f"at most {MAX_GROUPS} of equal size can be chosen from"
        )
    vectors = ("probs_bias", choice.probs_bias), ("expert_scale", choice.expert_scale)
    for name, array in (("bias", router.bias), *vectors):
        if array is not None:
            require_shape(name, array, (n_expert,))
    if router.shared_gate is not None:
        require_shape("shared_gate", router.shared_gate, (n_k,))
    for name, shape in routes_shapes(routes.n_rows, n_expert, choice, routes.bundle).items():
        require_shape(name, getattr(routes, name), shape)
