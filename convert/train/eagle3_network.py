"""An EAGLE3 drafter with gradients: one layer over features, unrolled over its own rows.

What it computes is `core/models/drafters/eagle3.py`; names of parameters are those of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..drafters.token_map import DRAFT_TO_TARGET
from .draft_attention import Past, draft_attention
from .drafter_shape import DrafterShape
from .network_parts import Mlp, RmsNorm, product, rope_angles, rotate_neighbours
from .training_target import TrainingTarget
from .unrolled_network import UnrolledNetwork

STEP_WEIGHTS = (1.0, 0.8, 0.6, 0.5)  # of the tokens of a draft


class Eagle3Network(UnrolledNetwork):
    architecture = "eagle3"
    scale: Tensor

    def __init__(
        self,
        shape: DrafterShape,
        target: TrainingTarget,
        scale: Tensor,
        step_weights: Sequence[float] = STEP_WEIGHTS,
    ) -> None:
        """`scale` (n_features,) of the features; the file has it in `fc`."""
        super().__init__()
        self.shape, self.layers, self.step_weights = shape, target.layers, step_weights
        d, eps, width = shape.hidden_size, shape.rms_norm_eps, shape.head_dim
        n_q, n_kv = (n * width for n in (shape.num_attention_heads, shape.num_key_value_heads))
        self.register_buffer("scale", scale)
        self.fc = nn.Linear(target.n_features, d, bias=False)
        self.attn_norm = RmsNorm(d, eps)
        self.attn_norm_2 = RmsNorm(d, eps)
        self.attn_q = nn.Linear(2 * d, n_q, bias=False)
        self.attn_k = nn.Linear(2 * d, n_kv, bias=False)
        self.attn_v = nn.Linear(2 * d, n_kv, bias=False)
        self.attn_output = nn.Linear(n_q, d, bias=False)
        self.ffn_norm = RmsNorm(d, eps)
        self.ffn = Mlp(shape)
        self.output_norm = RmsNorm(d, eps)
        start(self, target)

    def encode(self, features: Tensor) -> Tensor:
        rows: Tensor = self.fc(features[..., : len(self.scale)] * self.scale)
        return rows

    def forward(self, embedded: Tensor, hidden: Tensor, past: Past) -> Tensor:
        """One more step of a draft from every row (B, T, D): see `draft_attention`."""
        normed = self.attn_norm_2(hidden)
        both = torch.cat([self.attn_norm(embedded), normed], -1)
        positions = torch.arange(both.shape[1], device=both.device) + 1 + len(past)
        angles = rope_angles(self.shape, positions)
        rows = product(both, self.attn_q, self.attn_k, self.attn_v)
        n_kv = self.shape.num_key_value_heads * self.shape.head_dim
        q, k, v = (
            y.unflatten(-1, (-1, self.shape.head_dim))
            for y in rows.split([rows.shape[-1] - 2 * n_kv, n_kv, n_kv], -1)
        )
        share = self.shape.num_attention_heads // self.shape.num_key_value_heads
        q, k = (rotate_neighbours(y, angles) for y in (q, k))
        k, v = (y.repeat_interleave(share, 2).transpose(1, 2) for y in (k, v))
        past.append((k, v))
        mixed = draft_attention(q.transpose(1, 2), past).transpose(1, 2).flatten(2)
        x = normed + self.attn_output(mixed)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out

    def begin(self, target: TrainingTarget, features: Tensor) -> Tensor:
        return self.encode(features)

    def step(self, target: TrainingTarget, tokens: Tensor, hidden: Tensor, past: Past) -> Tensor:
        rows: Tensor = self(target.embed(tokens), hidden, past)
        return rows

    def head_rows(self, hidden: Tensor) -> Tensor:
        rows: Tensor = self.output_norm(hidden)
        return rows

    def stored_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """With their names in a file."""
        ends = ("fc.weight", "output_norm.weight")
        for name, value in self.named_parameters():
            yield name if name in ends else f"blk.0.{file_name(name)}", value

    def tensors(self, target: TrainingTarget) -> dict[str, Tensor]:
        """Under their names in a file, with the rows of a short head and their tokens."""
        found: dict[str, Tensor] = dict(self.stored_parameters())
        found["fc.weight"] = self.fc.weight * self.scale
        if target.tokens is not None:
            found |= {"output.weight": target.head, DRAFT_TO_TARGET: target.tokens}
        return found

    def keys(self) -> dict[str, Any]:
        return {"norm_before_residual": True, "norm_before_fc": False}


def file_name(parameter: str) -> str:
    """`ffn.gate_proj.weight` is `ffn_gate.weight` in a file."""
    return parameter.replace("ffn.", "ffn_").replace("_proj.", ".")


def start(network: nn.Module, target: TrainingTarget) -> None:
    """Layers begin as the identity, and the last norm as the target's, whose head it feeds."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2:
                if name.endswith(("attn_output.weight", "down_proj.weight", "markov_w2.weight")):
                    parameter.zero_()
                else:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5)
            elif name == "output_norm.weight":
                parameter.copy_(target.norm)
