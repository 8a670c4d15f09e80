"""The vision tower of Gemma 4: images keep their shape and fill the rows that they may have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from ...backend.layers import Floats
from ..image_file import ImageSize
from ..patch_attention import turns_of
from ..pixels import PixelBudget, patch_places
from ..projector import PreparedImage, Projector
from ..tower import Tower, TowerBlock, TowerTraits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ...backend.interface import Backend, Ops, Rows
    from ...models.model_weights import Weights
    from ..patch_attention import Turns
    from ..tower import Groups, Steps
    from ..tower_sizes import TowerSizes

ROPE_BASE: Final = 100.0
_TRAITS: Final = TowerTraits(centred=False, gated=True, biased=False, n_frames=1)
_LIMITS: Final = {"input_min": -math.inf, "input_max": math.inf,
                  "output_min": -math.inf, "output_max": math.inf}  # fmt: skip


class Gemma4Projector(Projector):
    begin, end = "<|image>", "<image|>"
    usual_budget = PixelBudget(1, 280)  # as of its authors; llama.cpp's is 70 to 1120
    merge_key = ("vision.projector.scale_factor", 3)

    def __init__(self, sizes: TowerSizes, weights: Weights, backend: Backend | None) -> None:
        self.sizes = sizes
        scope, n = weights.scope("v"), sizes.n_embd
        self.tower = Tower(sizes, scope, backend, _TRAITS, Gemma4TowerBlock)
        stored = weights.file.tensors.get("v.position_embd.weight")
        self._longest = 1 if stored is None else max(1, stored.n_elements // (2 * n))
        self._table = np.array(scope.floats("position_embd.weight", 2, self._longest, n))
        self._standard: list[Floats] = []
        if scope.has_tensor("std_bias"):
            names = ("std_bias", "std_scale")
            self._standard = [np.array(scope.floats(name, n)) for name in names]
        self.norm = weights.plain_norm(n, sizes.eps)
        self.projection = weights.matrix(n, {"mm.input_projection": sizes.n_out})

    def fitting_size(self, size: ImageSize, budget: PixelBudget) -> ImageSize:
        """As many rows as the budget has, whatever the image has; of one that is too narrow, one
        line."""
        factor, sides = self.sizes.factor, (size.width, size.height)
        scale = math.sqrt(budget.most * factor**2 / (size.width * size.height))
        width, height = (math.floor(scale * side / factor) for side in sides)
        if not width or not height:
            longer = min(max(sides) // min(sides), budget.most)
            width, height = (longer, 1) if size.width >= size.height else (1, longer)
        most = max(1, self._longest // self.sizes.merge)
        return ImageSize(min(width, most) * factor, min(height, most) * factor)

    def encode(self, image: PreparedImage) -> Steps[Floats]:
        sizes, places = self.sizes, patch_places(image.grid)
        positions = self._table[0, places[:, 1]] + self._table[1, places[:, 0]]
        turns = turns_of(places[:, ::-1], sizes.head_dim, ROPE_BASE)
        x = yield from self.tower.encode(2 * image.patches - 1, turns=turns, positions=positions)
        pooled = x.reshape(-1, sizes.merge**2, sizes.n_embd).mean(axis=1)
        pooled *= np.float32(math.sqrt(sizes.n_embd))
        if self._standard:
            bias, scale = self._standard
            pooled = (pooled - bias) * scale
        return (yield from self.tower.run(self._projected, pooled, y=sizes.n_out))["y"]

    def _projected(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        return {"y": ops.matmul(ops.norm(x, self.norm), self.projection)}


class ClippedProduct:
    """A matrix whose input and output are held within limits, where the file has them."""

    def __init__(
        self, weights: Weights, stem: str, n_in: int, n_out: int,
        order: NDArray[np.intp] | None = None,
    ) -> None:  # fmt: skip
        """`order`: of its rows."""
        orders = None if order is None else {stem: order}
        self.matrix = weights.matrix(n_in, {stem: n_out}, row_orders=orders)
        self._n_out = n_out
        self._limits = [
            float(weights.floats(f"{stem}.{name}", 1)[0])
            if weights.has_tensor(f"{stem}.{name}")
            else usual
            for name, usual in _LIMITS.items()
        ]

    def of(self, tower: Tower, x: Floats) -> Steps[Floats]:
        lowest, highest, least, most = self._limits
        made = yield from tower.run(self._pass, np.clip(x, lowest, highest), y=self._n_out)
        return np.clip(made["y"], least, most)

    def _pass(self, ops: Ops, x: Rows) -> Mapping[str, Rows]:
        return {"y": ops.matmul(ops.pack(x), self.matrix)}


class Gemma4TowerBlock(TowerBlock):
    """Norms before and behind each layer, and of each head; limits of all products."""

    def __init__(self, sizes: TowerSizes, weights: Weights, traits: TowerTraits) -> None:
        n, n_ff, self._sizes = sizes.n_embd, sizes.n_ff, sizes

        def floats(name: str, width: int) -> Floats:  # the file may be closed when they are used
            return np.array(weights.floats(f"{name}.weight", width))

        self._ln1, self._attn_post, self._ln2, self._ffn_post = (
            floats(name, n) for name in ("ln1", "attn_post_norm", "ln2", "ffn_post_norm")
        )
        in_head = _by_halves(sizes.head_dim)
        order = (np.arange(0, n, sizes.head_dim)[:, None] + in_head).reshape(-1)
        names = (("attn_q", order), ("attn_k", order), ("attn_v", None))
        self._qkv = [ClippedProduct(weights, name, n, n, rows) for name, rows in names]
        self._head_norms = [
            floats("attn_q_norm", sizes.head_dim)[in_head],
            floats("attn_k_norm", sizes.head_dim)[in_head],
            np.ones(sizes.head_dim, np.float32),
        ]
        self._attn_out = ClippedProduct(weights, "attn_out", n, n)
        self._gate = ClippedProduct(weights, "ffn_gate", n, n_ff)
        self._up = ClippedProduct(weights, "ffn_up", n, n_ff)
        self._down = ClippedProduct(weights, "ffn_down", n_ff, n)
        self._scale = floats("out_scale", 1) if weights.has("out_scale") else None

    def through(
        self, tower: Tower, x: Floats, turns: Turns | None, groups: Groups
    ) -> Steps[Floats]:
        eps, heads = self._sizes.eps, []
        a = _normed(x, self._ln1, eps)
        for product, norm in zip(self._qkv, self._head_norms, strict=True):
            rows = yield from product.of(tower, a)
            heads.append(_normed(rows.reshape(len(x), -1, len(norm)), norm, eps))
        qkv = np.concatenate(heads, axis=1).reshape(len(x), -1)
        attended = yield from tower.attend(qkv, turns, groups, scale=1.0)
        out = yield from self._attn_out.of(tower, attended)
        x = x + _normed(out, self._attn_post, eps)
        a = _normed(x, self._ln2, eps)
        gates = yield from self._gate.of(tower, a)
        up = yield from self._up.of(tower, a)
        out = yield from self._down.of(tower, _gelu(gates) * up)
        x = x + _normed(out, self._ffn_post, eps)
        return x if self._scale is None else x * self._scale


def _by_halves(head_dim: int) -> NDArray[np.intp]:
    """The order of a head in which its pairs are half a head apart: those that turn by the column
    are within its first half, the others within its second."""
    quarters = np.arange(head_dim).reshape(2, 2, -1)
    return quarters.swapaxes(0, 1).reshape(-1)


def _normed(x: Floats, weight: Floats, eps: float) -> Floats:
    """Root mean square norm over the last dimension."""
    squares = np.square(x).mean(axis=-1, keepdims=True)
    made: Floats = x / np.sqrt(squares + np.float32(eps)) * weight
    return made


def _gelu(x: Floats) -> Floats:
    """The form with tanh, as of the authors; llama.cpp's converter writes no key for it."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    made: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return made
