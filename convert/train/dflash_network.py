"""A DFlash or DSpark drafter with gradients: blocks of masks behind random places of a text.

What it computes is `core/models/drafters/dflash.py`; names of parameters are those of the file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .draft_loss import draft_loss
from .drafter_shape import DrafterShape
from .eagle3_network import file_name, start
from .network_parts import Mlp, RmsNorm, normed, rope_angles, rotate_halves
from .training_target import TrainingTarget

WINDOW = 96  # cells: a network that has read short texts only is lost where it sees more
BLOCK = 6  # rows: the newest token and masks
N_ANCHORS = 40  # blocks in each text
WHOLE = 0.6  # of the batches have whole blocks
DECAY = 0.7  # of the weight of a place against the one before


class DFlashLayer(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        d, eps, width = shape.hidden_size, shape.rms_norm_eps, shape.head_dim
        n_q, n_kv = (n * width for n in (shape.num_attention_heads, shape.num_key_value_heads))
        self.attn_norm = RmsNorm(d, eps)
        self.attn_q = nn.Linear(d, n_q, bias=False)
        self.attn_k = nn.Linear(d, n_kv, bias=False)
        self.attn_v = nn.Linear(d, n_kv, bias=False)
        self.attn_q_norm = RmsNorm(width, eps)
        self.attn_k_norm = RmsNorm(width, eps)
        self.attn_output = nn.Linear(n_q, d, bias=False)
        self.ffn_norm = RmsNorm(d, eps)
        self.ffn = Mlp(shape)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """`x` (B, K, S, D) blocks, the first row of each at the position `anchors` (B, K);
        `context` (B, T, D), of which a block sees what lies before its anchor."""
        a = self.attn_norm(x)
        places = torch.arange(context.shape[1], device=x.device)
        own = anchors[..., None] + torch.arange(x.shape[2], device=x.device)
        q = self._heads(self.attn_q(a), self.attn_q_norm, own)  # (B, K, S, H, Dh)
        k, v = self._heads(self.attn_k(a), self.attn_k_norm, own), self._heads(self.attn_v(a))
        past_k = self._heads(self.attn_k(context), self.attn_k_norm, places)  # (B, T, H, Dh)
        past_v = self._heads(self.attn_v(context))
        of_past = torch.einsum("bkshd,bthd->bkhst", q, past_k).float()
        is_hidden = (places >= anchors[..., None, None]) | (own[..., None] - places >= WINDOW)
        of_past = of_past.masked_fill(is_hidden[:, :, None], float("-inf"))
        of_own = torch.einsum("bkshd,bkthd->bkhst", q, k).float()
        scores = torch.cat([of_past, of_own], -1) * self.shape.head_dim**-0.5
        past_weights, own_weights = (
            scores.softmax(-1).to(v.dtype).split([context.shape[1], x.shape[2]], -1)
        )
        mixed = torch.einsum("bkhst,bthd->bkshd", past_weights, past_v)
        mixed = mixed + torch.einsum("bkhst,bkthd->bkshd", own_weights, v)
        x = x + self.attn_output(mixed.flatten(-2))
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out

    def _heads(
        self, rows: Tensor, norm: RmsNorm | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """(..., H, Dh), repeated, with a norm and rotated if these are given."""
        y = rows.unflatten(-1, (-1, self.shape.head_dim))
        if norm is not None and positions is not None:
            turned = rotate_halves(
                normed(y.float(), norm.weight, norm.eps), rope_angles(self.shape, positions)
            )
            y = turned.to(rows.dtype)
        heads: Tensor = y.repeat_interleave(self.shape.num_attention_heads // y.shape[-2], -2)
        return heads


class DFlashNetwork(nn.Module):
    architecture = "dflash"
    scale: Tensor

    def __init__(
        self,
        shape: DrafterShape,
        target: TrainingTarget,
        scale: Tensor,
        *,
        block_size: int = BLOCK,
        rank: int = 0,
    ) -> None:
        """`scale` (n_features,) of the features; the file has it in `fc`. `rank`: of a correction
        by the token before, which makes it a DSpark drafter; 0: there is none."""
        super().__init__()
        self.shape, self.layers, self.block_size = shape, target.layers, block_size
        # Some token that texts do not have: its row of the embedding is what marks a place.
        self.mask_token = target.n_vocab - 1
        d, eps = shape.hidden_size, shape.rms_norm_eps
        self.register_buffer("scale", scale)
        self.fc = nn.Linear(target.n_features, d, bias=False)
        self.enc_output_norm = RmsNorm(d, eps)
        self.blk = nn.ModuleList(DFlashLayer(shape) for _ in range(shape.num_hidden_layers))
        self.output_norm = RmsNorm(d, eps)
        self.rank = rank
        if rank:
            # From embedding to rank and from there to the rows that the head reads: so few numbers
            # are learned quickly. The file has their products with both ends of the target.
            self.markov_w1 = nn.Linear(d, rank, bias=False)
            self.markov_w2 = nn.Linear(rank, d, bias=False)
        start(self, target)

    def forward(
        self, target: TrainingTarget, tokens: Tensor, features: Tensor, anchors: Tensor, n: int
    ) -> Tensor:
        """Rows for the head, (B, K, n, D): of n places behind each anchor."""
        context = self.enc_output_norm(self.fc(features * self.scale))
        block = torch.full((*anchors.shape, 1 + n), self.mask_token)
        block[..., 0] = tokens.gather(1, anchors)
        x = target.embed(block)
        for layer in self.blk:
            x = layer(x, context, anchors)
        out: Tensor = self.output_norm(x[:, :, 1:])
        return out

    def loss(
        self, target: TrainingTarget, tokens: Tensor, features: Tensor, sizes: Tensor
    ) -> Tensor:
        """Of blocks behind random places of texts (B, T), which have so many tokens each."""
        n, n_drafted = tokens.shape[1], self._draft_length()
        spread = torch.rand(len(tokens), N_ANCHORS)
        anchors = 1 + (spread * (sizes[:, None] - 2).clamp(min=1)).long()
        rows = self(target, tokens, features, anchors, n_drafted)
        # The distribution of a place is what the target makes of the token before it.
        before = anchors[..., None] + torch.arange(n_drafted)
        weights = DECAY ** torch.arange(n_drafted) * (before < sizes[:, None, None])
        if self.rank:
            rows = rows + self.corrections(target, tokens, before)
        found = before.clamp(max=n - 1) + n * torch.arange(len(tokens))[:, None, None]
        wanted = target.distributions(features).flatten(0, 1)[found.flatten()]
        return draft_loss(rows.flatten(0, 2), target.head, wanted, weights.flatten())

    def _draft_length(self) -> int:
        """Often shorter blocks: rows see all masks, and a short draft has few."""
        most = self.block_size - 1
        return most if torch.rand(()) < WHOLE else int(torch.randint(1, most, ()))

    def corrections(self, target: TrainingTarget, tokens: Tensor, before: Tensor) -> Tensor:
        """Of the rows (B, K, n, D), by the token of the place `before` (B, K, n) each."""
        places = before.clamp(max=tokens.shape[1] - 1).flatten(1)
        known = target.embed(tokens.gather(1, places)).unflatten(1, before.shape[1:])
        rows: Tensor = self.markov_w2(self.markov_w1(known))
        return rows

    def tensors(self, target: TrainingTarget) -> dict[str, Tensor]:
        """Under their names in a file."""
        found: dict[str, Tensor] = {
            file_name(name).replace("enc_output_norm", "enc.output_norm"): value
            for name, value in self.named_parameters()
        }
        if self.rank:
            found["markov_w1.weight"] = target.embedding @ self.markov_w1.weight.T
            found["markov_w2.weight"] = target.head @ self.markov_w2.weight
        return found | {"fc.weight": self.fc.weight * self.scale}

    def keys(self) -> dict[str, Any]:
        keys: dict[str, Any] = {
            "block_size": self.block_size,
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [True] * len(self.blk),
        }
        if self.rank:
            keys |= {"sample_from_anchor": False, "has_confidence_head": False}
        return keys
