"""A vision transformer: passes over the operations of a backend, with attention in between.

Of a block, attention needs all patches at once and everything else goes row by row. So a pass runs
from one attention to the next: what follows one, then the norm and the product before the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct

from ..backend.layers import SILU_GATE, Floats
from ..errors import ModelError
from .patch_attention import attend_patches
from .row_passes import RowPasses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..backend.interface import Backend, Ops, Packed, Rows
    from ..backend.layers import Norm
    from ..models.model_weights import Weights
    from .patch_attention import Turns
    from .tower_sizes import TowerSizes

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields between pieces of work, so that others get their turn
Groups = list["NDArray[np.int64]"]  # patches that see each other


class TowerTraits(Struct, frozen=True):
    """How the towers of families differ."""

    centred: bool = True  # norms subtract the mean, and have biases
    gated: bool = False  # feed-forward layers
    biased: bool = True  # matrices
    patch_bias: bool = False
    n_frames: int = 2  # kernels of patches, which models for films have one more of
    pre_norm: bool = False  # of embedded patches
    # Element 2i of a head of q and k turns with 2i + 1, not i with i + D / 2.
    adjacent_pairs: bool = False
    scaled: bool = False  # what a block adds, number by number


class TowerBlock:
    """x += attention(norm(x)); x += feed_forward(norm(x))."""

    def __init__(self, sizes: TowerSizes, weights: Weights, traits: TowerTraits) -> None:
        n, n_ff, self._sizes, self._traits = sizes.n_embd, sizes.n_ff, sizes, traits
        self.ln1, self.ln2 = (
            tower_norm(weights, name, n, sizes, traits) for name in ("ln1", "ln2")
        )
        qkv = {"attn_qkv": 3 * n} if weights.has("attn_qkv") else dict.fromkeys(_SPLIT, n)
        orders = dict.fromkeys(_SPLIT[:2], _halves(sizes)) if traits.adjacent_pairs else None
        biased = traits.biased
        self.qkv = weights.matrix(n, qkv, row_orders=orders, needs_bias=biased)
        self.attn_out = weights.matrix(n, {"attn_out": n}, needs_bias=biased)
        inner = {"ffn_gate": n_ff, "ffn_up": n_ff} if traits.gated else {"ffn_up": n_ff}
        self.inner = weights.matrix(n, inner, needs_bias=biased)
        self.ffn_down = weights.matrix(n_ff, {"ffn_down": n}, needs_bias=biased)
        # The file may be closed when they are used.
        self.scales = (
            [np.array(weights.floats(f"{name}.weight", n)) for name in ("ls1", "ls2")]
            if traits.scaled
            else None
        )

    def before(self, ops: Ops, x: Rows) -> Rows:
        """The rows [q | k | v]."""
        return ops.matmul(ops.norm(x, self.ln1), self.qkv)

    def after(self, ops: Ops, x: Rows) -> Rows:
        """The feed-forward layer, added to x; what is scaled is not added yet."""
        a: Packed = ops.norm(x, self.ln2)
        if self._traits.gated:
            inner = ops.gated_ffn(a, self.inner, SILU_GATE)
        else:
            rows = ops.activate(ops.matmul(a, self.inner), self._sizes.activation)
            inner = ops.pack(rows)
        return ops.matmul(inner, self.ffn_down, add_to=None if self.scales else x)

    def through(
        self, tower: Tower, x: Floats, turns: Turns | None, groups: Groups
    ) -> Steps[Floats]:
        """The rows that the block leaves."""
        n = self._sizes.n_embd
        made = yield from tower.run(_before(self), x, qkv=3 * n)
        attended = yield from tower.attend(made["qkv"], turns, groups)
        out = yield from tower.run(_product(self), attended, y=n)
        first_scale, second_scale = self.scales or (None, None)
        x = x + (out["y"] if first_scale is None else out["y"] * first_scale)
        made = yield from tower.run(_after(self), x, x=n)
        return made["x"] if second_scale is None else x + made["x"] * second_scale


_SPLIT = ("attn_q", "attn_k", "attn_v")


def _halves(sizes: TowerSizes) -> NDArray[np.intp]:
    """Rows of q or k by which what turns together is half a head apart."""
    rows = np.arange(sizes.n_embd).reshape(sizes.n_heads, -1, 2)
    return rows.transpose(0, 2, 1).reshape(-1)


def tower_norm(
    weights: Weights, name: str, width: int, sizes: TowerSizes, traits: TowerTraits
) -> Norm:
    if traits.centred:
        return weights.biased_norm(name, width, sizes.eps)
    return weights.norm(name, width, sizes.eps)


class Tower:
    """`v.*` of an mmproj file, without what makes rows of patches."""

    def __init__(
        self,
        sizes: TowerSizes,
        weights: Weights,
        backend: Backend | None,
        traits: TowerTraits,
        block_type: type[TowerBlock] = TowerBlock,
    ) -> None:
        if not traits.gated and weights.file.metadata.bool("use_silu", False):
            raise ModelError(
                f"{weights.file.label}: clip.use_silu is true, and this tower has no gates for it"
            )
        self.sizes, self._passes = sizes, RowPasses(backend)
        shape = (sizes.n_embd, 3, sizes.patch, sizes.patch)
        bias = weights.floats("patch_embd.bias", sizes.n_embd) if traits.patch_bias else None
        # A still image is both frames of what some models take for a film.
        self.patch_embd = [weights.kernel("patch_embd.weight", shape, bias)]
        if traits.n_frames > 1:
            self.patch_embd.append(weights.kernel("patch_embd.weight.1", shape))
        self.pre_ln = None
        if traits.pre_norm:
            self.pre_ln = tower_norm(weights, "pre_ln", sizes.n_embd, sizes, traits)
        self.blk = [
            block_type(sizes, weights.scope(f"blk.{i}"), traits) for i in range(sizes.n_layers)
        ]

    def encode(
        self,
        patches: Floats,
        *,
        turns: Turns | None = None,
        positions: Floats | None = None,
        groups_of: Callable[[int], Groups] | None = None,
        on_layer: Callable[[int, Floats], Steps[None]] | None = None,
        first: Floats | None = None,
    ) -> Steps[Floats]:
        """Rows (patches, n_embd) of the last block. `turns`: of the rope, see `turns_of`;
        `positions`: added to embedded patches; `groups_of`: which patches of a layer see each
        other, if not all; `on_layer`: called with what each layer leaves; `first`: rows in front
        of those of patches."""
        x = (yield from self.run(self._embed, patches, x=self.sizes.n_embd))["x"]
        if positions is not None:
            x = x + positions
        if first is not None:
            x = np.concatenate([first, x])
        every = [np.arange(len(x))]
        for i, block in enumerate(self.blk):
            groups = every if groups_of is None else groups_of(i)
            x = yield from block.through(self, x, turns, groups)
            if on_layer is not None:
                yield from on_layer(i, x)
        return x

    def attend(
        self, qkv: Floats, turns: Turns | None, groups: Groups, scale: float | None = None
    ) -> Steps[Floats]:
        """See `attend_patches`."""
        n_heads, n_threads = self.sizes.n_heads, self._passes.n_threads
        return (yield from last_of(attend_patches(qkv, n_heads, turns, groups, n_threads, scale)))

    def run(
        self, make: Callable[[Ops, Rows], Mapping[str, Rows]], rows: Floats, **widths: int
    ) -> Steps[dict[str, Floats]]:
        """One pass, see `RowPasses.run`."""
        return (yield from last_of(self._passes.run(make, rows, **widths)))

    def _embed(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        packed, (first, *others) = ops.pack(x), self.patch_embd
        made = ops.matmul(packed, first)
        for other in others:
            made = ops.matmul(packed, other, add_to=made)
        return {"x": made if self.pre_ln is None else ops.norm_slices(made, self.pre_ln)}


def _before(block: TowerBlock) -> Callable[[Ops, Rows], Mapping[str, Rows]]:
    return lambda ops, x: {"qkv": block.before(ops, x)}


def _product(block: TowerBlock) -> Callable[[Ops, Rows], Mapping[str, Rows]]:
    return lambda ops, x: {"y": ops.matmul(ops.pack(x), block.attn_out)}


def _after(block: TowerBlock) -> Callable[[Ops, Rows], Mapping[str, Rows]]:
    return lambda ops, x: {"x": block.after(ops, x)}


def last_of(steps: Iterator[T]) -> Steps[T]:
    """A step for each that is yielded; returns the last one."""
    found: list[T] = []
    for each in steps:
        found = [each]
        yield
    return found[0]
