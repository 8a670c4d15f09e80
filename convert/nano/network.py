"""The two models whole: a trunk, a head, and for the hybrid one MTP block behind it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Block, Past, RmsNorm
from .shapes import Shape


class Trunk(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(
            Block(shape, recurrent=shape.is_recurrent(i)) for i in range(shape.num_hidden_layers)
        )
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps, shifted=shape.is_hybrid)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden rows after the final norm, (B, T, D): what the head and the MTP block read."""
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


class Mtp(nn.Module):
    """The row of a token takes its embedding and the hidden row of the token before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, eps = shape.hidden_size, shape.rms_norm_eps
        self.pre_fc_norm_embedding = RmsNorm(d, eps, shifted=True)
        self.pre_fc_norm_hidden = RmsNorm(d, eps, shifted=True)
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList([Block(shape, recurrent=False)])
        self.norm = RmsNorm(d, eps, shifted=True)

    def forward(self, embedded: Tensor, hidden: Tensor, past: Past | None = None) -> Tensor:
        """Hidden rows again: a draft's next step continues from these."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(pair, -1))
        out: Tensor = self.norm(self.layers[0](x, past))
        return out


class Network(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        if shape.num_mtp_layers:
            self.mtp = Mtp(shape)
        self._start()
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        logits: Tensor = self.lm_head(self.model(tokens))
        return logits

    def draft_rows(self, tokens: Tensor, hidden: Tensor, past: Past | None = None) -> Tensor:
        """MTP rows for `tokens` (B, T), given the hidden rows of the tokens before them.

        With `past`, one more step of a draft from every row; it is given its own rows as hidden,
        and an empty list at first.
        """
        rows: Tensor = self.mtp(self.model.embed_tokens(tokens), hidden, past)
        return rows

    def _start(self) -> None:
        """Each block begins as the identity: what writes to the residual stream is zero."""
        for name, parameter in self.named_parameters():
            if parameter.ndim != 2:
                continue
            with torch.no_grad():
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    parameter.zero_()
                elif name.endswith("embed_tokens.weight"):
                    parameter.normal_(0.0, 0.02 if self.shape.tie_word_embeddings else 0.5)
                elif name.endswith("lm_head.weight"):
                    parameter.normal_(0.0, 0.02)
                else:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5)
