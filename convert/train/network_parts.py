"""Layers that drafters of several kinds have, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from .drafter_shape import DrafterShape

# Whether products of bfloat16 take less time here than those of float32.
HAS_BFLOAT16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return normed(x.float(), self.weight, self.eps).to(product_type(x))


def product_type(x: Tensor) -> torch.dtype:
    """What matrices are multiplied in: bfloat16 in training, where the processor has that."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale


def product(x: Tensor, *layers: nn.Linear) -> Tensor:
    """The outputs of several layers beside each other."""
    return F.linear(x, torch.cat([layer.weight for layer in layers]))


class Mlp(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        d, f = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = product(x, self.gate_proj, self.up_proj).chunk(2, -1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


def rope_angles(shape: DrafterShape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin for positions (..), each (.., 1, pairs): the same for all heads."""
    powers = torch.arange(0, shape.head_dim, 2, device=positions.device) / shape.head_dim
    turns = (positions.float()[..., None] * shape.rope_theta**-powers)[..., None, :]
    return turns.cos(), turns.sin()


def rotate_halves(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Element i of the first half of a head turns with element i of the second."""
    cos, sin = angles
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotate_neighbours(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Neighbouring elements turn together."""
    cos, sin = angles
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return turned.flatten(-2).to(x.dtype)
