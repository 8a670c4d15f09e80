"""`mm_moe.cu`: a mixture whose experts are plain bfloat16 or half matrices.

The same launches, arrays and results as those of `qmm_moe`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .kernel import Argument, Array, Kernel, Launcher, Source
from .mm_bf16_skinny import TILE_BYTES, Plain
from .moe_route import BUNDLES, Routes, n_pairs
from .packed import BLOCK, PackedRows, require_packed
from .qmm import Activation, gate_defines
from .qmm_moe import MoeWorkspace, input_defines, require_workspace
from .shapes import require_shape


@cache
def _kernels(kind: Plain, product: str, *more: tuple[str, int]) -> dict[int, Kernel]:
    defines = (*((("HALF_WEIGHTS", 1),) if kind is Plain.F16 else ()), *more)
    return {
        columns: Kernel(
            f"mm_moe_{kind.value}_{product}_{columns}",
            Source("mm_moe.cu", defines),
            "moe",
            threads=256,
            registers=128,
            shared=80,
            dynamic_shared=TILE_BYTES[32],
        )
        for columns in BUNDLES
    }


KINDS = (Plain.BF16, Plain.F16)
KERNELS = tuple(
    kernel
    for product in ("gate_up", "down")
    for kind in KINDS
    for kernel in _kernels(kind, product).values()
)


@dataclass(frozen=True, slots=True)
class PlainStack:
    """Matrices of experts as they are in the file: 16-bit words (n_expert, n_out, n_k)."""

    weights: Array
    kind: Plain
    bias: Array | None = None  # float32 (n_expert, n_out)

    @property
    def shape(self) -> tuple[int, int, int]:
        n_expert, n_out, n_k = map(int, self.weights.shape)
        return n_expert, n_out, n_k


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """The experts of a launch: routed experts, the shared one, or both, if they are alike."""

    routed: PlainStack | None
    shared: PlainStack | None = None

    def checked(self) -> PlainStack:
        """One of them; both have its shape."""
        stacks = [stack for stack in (self.routed, self.shared) if stack is not None]
        if not stacks:
            raise ValueError("experts: neither routed nor shared ones")
        one = stacks[0]
        for stack in stacks:
            if stack.kind not in KINDS or stack.shape[2] % 8:
                raise ValueError(
                    f"experts: {stack.kind.value} rows of {stack.shape[2]} values; "
                    "there are kernels for bf16 and f16 rows that begin at 16 bytes"
                )
            if stack.kind is not one.kind or stack.shape[1:] != one.shape[1:]:
                raise ValueError("the shared expert is unlike the others: launch it by itself")
            if stack.bias is not None:
                require_shape("bias", stack.bias, stack.shape[:2])
        if self.shared is not None and self.shared.shape[0] != 1:
            raise ValueError(f"{self.shared.shape[0]} shared experts, there can be one")
        return one

    @property
    def arguments(self) -> list[Argument]:
        found: list[Argument] = []
        for stack in (self.routed, self.shared):
            found += [None] * 2 if stack is None else [stack.weights, stack.bias]
        return found

    @property
    def which(self) -> int:
        if self.shared is None:
            return 0
        return 1 if self.routed is None else 2


def plain_experts_gate_up(
    launcher: Launcher,
    x: PackedRows,
    experts: PlainExperts,
    routes: Routes,
    out: PackedRows,
    workspace: MoeWorkspace,
    *,
    activation: int = Activation.SILU,
    weighs_inputs: bool = False,
) -> None:
    """activation(gate) * up of each pair; an expert's gates come first. See `gate_code`, and
    `experts_gate_up` for `weighs_inputs`."""
    one = experts.checked()
    _, n_out, n_k = one.shape
    inner = n_out // 2
    require_packed(x, routes.n_rows, n_k)
    require_packed(out, n_pairs(routes), inner)
    bundles = int(routes.ids.shape[0])
    require_workspace(workspace, n_pairs(routes) * inner, bundles * (out.width // BLOCK))
    ending: list[Argument] = [workspace.sums, int(activation), *out.arguments, workspace.arrivals]
    ending += [routes.weights if weighs_inputs else None]
    defines = (*gate_defines(activation), *input_defines(weighs_inputs))
    kernel = _kernels(one.kind, "gate_up", *defines)[routes.bundle]
    _launch(launcher, kernel, -(-inner // 16), x, experts, routes, ending)


def plain_experts_down(
    launcher: Launcher,
    x: PackedRows,
    experts: PlainExperts,
    routes: Routes,
    parts: Array,
    *,
    weighs_inputs: bool = False,
) -> None:
    """Float32 `parts` (T, n_used + has_shared, n_out): products of the pairs times their weights,
    or without these, where they have weighed the inputs.

    Ranks of experts of other launches stay as they are.
    """
    one = experts.checked()
    _, n_out, n_k = one.shape
    require_packed(x, n_pairs(routes), n_k)
    require_shape("parts", parts, (routes.n_rows, routes.n_used + routes.has_shared, n_out))
    kernel = _kernels(one.kind, "down", *input_defines(weighs_inputs))[routes.bundle]
    _launch(launcher, kernel, -(-n_out // 32), x, experts, routes, [parts, routes.weights])


def _launch(
    launcher: Launcher,
    kernel: Kernel,
    blocks: int,
    x: PackedRows,
    experts: PlainExperts,
    routes: Routes,
    ending: list[Argument],
) -> None:
    _, n_out, n_k = experts.checked().shape
    routes.check_experts(None if experts.routed is None else experts.routed.shape[0], experts.which)
    arguments = [*experts.arguments, routes.n_expert, n_out, n_k, *x.arguments, routes.n_bundles]
    arguments += [routes.ids, routes.starts, routes.columns]
    arguments += [routes.n_used + routes.has_shared, experts.which, *ending]
    grid = blocks * routes.bundles_of(experts.which)
    launcher.launch(kernel, grid, arguments, shared=kernel.dynamic_shared)
