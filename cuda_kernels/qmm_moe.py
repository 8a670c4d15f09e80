"""`qmm_moe.cu`: the experts of a mixture, for the rows that `moe_route` gave to each of them.

Two launches make the routed experts of a layer, and its shared expert too where its matrices have
the same format and shape; else it takes two of its own. What they leave, a float row for each rank
and the shared expert, is added in order by `norm_quant` (its `parts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .kernel import Argument, Array, Kernel, Launcher, Source
from .moe_route import BUNDLES, Routes, n_pairs
from .packed import BLOCK, PackedRows, padded_width, require_packed
from .qmm import BLOCKS_PER_PROCESSOR, GROUP_ROWS, THREADS, Activation, gate_defines, shared_bytes
from .repack import FORMATS, Tiles
from .shapes import require_shape


@cache
def _kernels(form: str, *more: tuple[str, int]) -> dict[int, Kernel]:
    prefix = f"qmm_moe_{form.lower()}_"
    source = Source("qmm_moe.cu", (("FORMAT", form), ("NAME", prefix), *more))
    return {
        columns: Kernel(
            f"{prefix}{columns}",
            source,
            "moe",
            THREADS,
            registers=168,
            shared=160,
            dynamic_shared=shared_bytes(form, columns),
        )
        for columns in BUNDLES
    }


KERNELS = tuple(kernel for form in FORMATS for kernel in _kernels(form).values())


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Repacked matrices of experts, one behind the other."""

    tiles: Tiles  # of one of them
    n_expert: int
    weights: Array  # n_expert * tiles.n_bytes bytes, aligned to 16
    scale: Array | None = None  # float32 (n_expert, rows), in the order of the file's rows
    bias: Array | None = None  # likewise

    @property
    def groups(self) -> int:
        return -(-self.tiles.rows // GROUP_ROWS)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a launch: routed experts, the shared one, or both, if they are alike."""

    routed: ExpertStack | None
    shared: ExpertStack | None = None

    def checked(self) -> ExpertStack:
        """One of them; both have its shape."""
        one = self.routed or self.shared
        if one is None:
            raise ValueError("experts: neither routed nor shared ones")
        if self.shared is not None and (
            self.shared.n_expert != 1 or self.shared.tiles != one.tiles
        ):
            raise ValueError("the shared expert has other tiles: give it launches of its own")
        for stack in (self.routed, self.shared):
            if stack is not None:
                _check_stack(stack)
        return one

    @property
    def which(self) -> int:
        if self.shared is None:
            return 0
        return 1 if self.routed is None else 2

    @property
    def arguments(self) -> list[Argument]:
        found: list[Argument] = []
        for stack in (self.routed, self.shared):
            found += [None] * 3 if stack is None else [stack.weights, stack.scale, stack.bias]
        return found


@dataclass(frozen=True, slots=True)
class MoeWorkspace:
    """Launches in flight at the same time must not share one. Arrivals start as zeros."""

    sums: Array  # float32
    arrivals: Array  # int32


def split_count(launcher: Launcher, stack: ExpertStack, n_used: int) -> int:
    """Parts of K: so many that one row's experts keep most processors busy.

    By shape and device alone; a divisor of the blocks of K.
    """
    k_blocks = stack.tiles.k_blocks
    enough = 3 * launcher.n_processors
    for splits in range(1, k_blocks + 1):
        if k_blocks % splits == 0 and 4 * n_used * stack.groups * splits >= enough:
            return splits
    return k_blocks


def require_workspace(workspace: MoeWorkspace, sums: int, arrivals: int) -> None:
    found = int(workspace.sums.shape[0]), int(workspace.arrivals.shape[0])
    if found[0] < sums or found[1] < arrivals:
        raise ValueError(f"{found} sums and arrivals, needed {(sums, arrivals)}")


def workspace_sizes(
    launcher: Launcher, gate_up: ExpertStack, down: ExpertStack, routes: Routes
) -> tuple[int, int]:
    """Floats of `sums`, integers of `arrivals`, for both launches of a layer."""
    pairs, bundles = n_pairs(routes), int(routes.ids.shape[0])
    floats = pairs * gate_up.tiles.rows * split_count(launcher, gate_up, routes.n_used)
    arrivals = bundles * (padded_width(gate_up.tiles.rows // 2) // BLOCK)
    splits = split_count(launcher, down, routes.n_used)
    if splits > 1:
        floats = max(floats, pairs * down.tiles.rows * splits)
        arrivals = max(arrivals, bundles * down.groups)
    return floats, arrivals


def experts_gate_up(
    launcher: Launcher,
    x: PackedRows,
    experts: Experts,
    routes: Routes,
    out: PackedRows,
    workspace: MoeWorkspace,
    *,
    activation: int = Activation.SILU,
    weighs_inputs: bool = False,
) -> None:
    """activation(gate) * up of each pair. Rows of an expert's matrix are in `gated_order`; see
    `gate_code`. `weighs_inputs`: the weights of pairs multiply their gates and ups."""
    one = experts.checked()
    if one.tiles.rows % 16:
        raise ValueError(f"{one.tiles.rows} rows are not gates and ups, 8 of each in a tile")
    width = one.tiles.rows // 2
    require_packed(out, n_pairs(routes), width)
    require_packed(x, routes.n_rows, one.tiles.width)
    splits = split_count(launcher, one, routes.n_used)
    sums = n_pairs(routes) * one.tiles.rows * splits
    require_workspace(workspace, sums, int(routes.ids.shape[0]) * (out.width // BLOCK))
    weights = routes.weights if weighs_inputs else None
    ending: list[Argument] = [int(activation), *out.arguments, None, weights]
    defines = (*gate_defines(activation), *input_defines(weighs_inputs))
    _launch(launcher, x, experts, routes, workspace, ending, defines)


def experts_down(
    launcher: Launcher,
    x: PackedRows,
    experts: Experts,
    routes: Routes,
    parts: Array,
    workspace: MoeWorkspace,
    *,
    weighs_inputs: bool = False,
) -> None:
    """Float32 `parts` (T, n_used + has_shared, n_out): products of the pairs times their weights,
    or without these, where they have weighed the inputs.

    Ranks of experts of other launches stay as they are.
    """
    one = experts.checked()
    per_row = routes.n_used + routes.has_shared
    require_shape("parts", parts, (routes.n_rows, per_row, one.tiles.rows))
    require_packed(x, n_pairs(routes), one.tiles.width)
    splits = split_count(launcher, one, routes.n_used)
    if splits > 1:
        sums = n_pairs(routes) * one.tiles.rows * splits
        require_workspace(workspace, sums, int(routes.ids.shape[0]) * one.groups)
    ending: list[Argument] = [0, None, None, None, 0, parts, routes.weights]
    _launch(launcher, x, experts, routes, workspace, ending, input_defines(weighs_inputs))


def input_defines(weighs_inputs: bool) -> tuple[tuple[str, int], ...]:
    """Of sources whose kernels weigh what experts read, not what comes of it."""
    return (("WEIGHED_INPUTS", 1),) if weighs_inputs else ()


def _launch(
    launcher: Launcher,
    x: PackedRows,
    experts: Experts,
    routes: Routes,
    workspace: MoeWorkspace,
    ending: list[Argument],
    defines: tuple[tuple[str, int], ...],
) -> None:
    one = experts.checked()
    routes.check_experts(None if experts.routed is None else experts.routed.n_expert, experts.which)
    splits = split_count(launcher, one, routes.n_used)
    by_pair = ending[-2] is not None  # parts
    arguments = [*experts.arguments, routes.n_expert, one.tiles.rows, one.tiles.k_blocks, splits]
    arguments += [*x.arguments, int(by_pair), routes.n_bundles, routes.ids, routes.starts]
    arguments += [routes.columns, routes.n_used + routes.has_shared, experts.which]
    arguments += [workspace.sums, workspace.arrivals, n_pairs(routes), *ending]
    kernel = _kernels(one.tiles.form.name, *defines)[routes.bundle]
    items = routes.bundles_of(experts.which) * one.groups * splits
    grid = min(BLOCKS_PER_PROCESSOR * launcher.n_processors, items)
    launcher.launch(kernel, grid, arguments, shared=kernel.dynamic_shared)


def _check_stack(stack: ExpertStack) -> None:
    for name, array in (("scale", stack.scale), ("bias", stack.bias)):
        if array is not None:
            require_shape(name, array, (stack.n_expert, stack.tiles.rows))
    n_bytes = stack.n_expert * stack.tiles.n_bytes
    require_shape("weights of experts, as bytes", stack.weights, (n_bytes,))
