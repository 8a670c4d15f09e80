"""An EAGLE3 drafter with gradients: one layer over features, unrolled over its own rows.

What it computes is `core/models/drafters/eagle3.py`; names of parameters are those of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..drafters.token_map import DRAFT_TO_TARGET
from .draft_attention import Past, draft_attention
from .draft_loss import draft_loss, frozen_logits
from .drafter_shape import DrafterShape
from .network_parts import Mlp, RmsNorm, product, rope_angles, rotate_neighbours
from .training_target import TrainingTarget

STEP_WEIGHTS = (1.0, 0.8, 0.6, 0.5)  # of the tokens of a draft


class DraftStep(NamedTuple):
    """One token of each draft, where it counts."""

    rows: Tensor  # (N, D) that the head reads
    wanted: Tensor  # (N, V)


class Eagle3Network(nn.Module):
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

    def loss(
        self,
        target: TrainingTarget,
        tokens: Tensor,
        features: Tensor,
        sizes: Tensor,
        starts: Tensor | None = None,
        *,
        of_acceptance: bool = False,
    ) -> Tensor:
        """Of drafts from every row of texts (B, T), which have so many tokens each. `starts` (B,):
        the first token of each that counts.

        As in use, each step continues from the network's own rows, and sees the features of what
        is before the draft. The tokens are the true ones: later ones count if earlier were right.
        """
        total = torch.zeros(())
        unrolled = self._unrolled(target, tokens, features, sizes, starts)
        for weight, step in zip(self.step_weights, unrolled, strict=True):
            equally = torch.ones(len(step.rows), device=step.rows.device)
            loss = draft_loss(
                step.rows, target.head, step.wanted, equally, of_acceptance=of_acceptance
            )
            total = total + weight * loss
        return total / sum(self.step_weights)

    def acceptance(
        self, target: TrainingTarget, tokens: Tensor, features: Tensor, sizes: Tensor,
        starts: Tensor,
    ) -> Tensor:  # fmt: skip
        """(steps, 2): how much of the probability of tokens both share, and the number of these."""
        found = []
        for step in self._unrolled(target, tokens, features, sizes, starts):
            probs = frozen_logits(step.rows, target.head).float().softmax(-1)
            shared = torch.minimum(probs, step.wanted.float()).sum()
            found.append(torch.stack([shared, torch.tensor(float(len(step.rows)))]))
        return torch.stack(found)

    def _unrolled(
        self,
        target: TrainingTarget,
        tokens: Tensor,
        features: Tensor,
        sizes: Tensor,
        starts: Tensor | None,
    ) -> Iterator[DraftStep]:
        n = tokens.shape[1] - len(self.step_weights)
        places = torch.arange(tokens.shape[1])
        counts = places < sizes[:, None]
        if starts is not None:
            counts &= places + 1 >= starts[:, None]
        wanted = target.distributions(features[counts])
        numbers = torch.zeros_like(tokens)
        numbers[counts] = torch.arange(len(wanted))
        hidden, past = self.encode(features[:, :n]), list[Any]()
        for i in range(len(self.step_weights)):
            part = slice(i + 1, i + 1 + n)
            hidden = self(target.embed(tokens[:, part]), hidden, past)
            counted = counts[:, part]
            yield DraftStep(
                self.output_norm(hidden[counted]) / target.temperature,
                wanted[numbers[:, part][counted]],
            )

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
