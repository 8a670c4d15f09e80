"""The two models: a trunk, a head, and for the hybrid one MTP block behind it.

Parameter names are those of the `transformers` implementations.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from .chunked_delta_rule import gated_delta_rule
from .nano_shapes import NanoShape

QUERY_BLOCK = 256

Past = list[tuple[Tensor, Tensor]]  # keys and values, (B, H, T, Dh) each


class RmsNorm(nn.Module):
    """`shifted`: the weight is stored minus one, as Qwen3.5 does except after the delta rule."""

    def __init__(self, width: int, eps: float, *, shifted: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if shifted else torch.ones(width))
        self.eps, self.shifted = eps, shifted

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        scaled = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return scaled * (1 + self.weight if self.shifted else self.weight)


class Mlp(nn.Module):
    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        d, f = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class NanoAttention(nn.Module):
    """Attention with norms of q and k; in hybrids `q_proj` also makes an output gate."""

    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        self.shape, self.gated = shape, shape.is_hybrid
        d, width = shape.hidden_size, shape.head_dim
        n_heads, n_kv = shape.num_attention_heads, shape.num_key_value_heads
        self.q_proj = nn.Linear(d, n_heads * width * (2 if self.gated else 1), bias=False)
        self.k_proj = nn.Linear(d, n_kv * width, bias=False)
        self.v_proj = nn.Linear(d, n_kv * width, bias=False)
        self.o_proj = nn.Linear(n_heads * width, d, bias=False)
        self.q_norm = RmsNorm(width, shape.rms_norm_eps, shifted=shape.is_hybrid)
        self.k_norm = RmsNorm(width, shape.rms_norm_eps, shifted=shape.is_hybrid)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        """With `past`, x are the next rows of as many drafts: see `draft_attention`."""
        s = self.shape
        q = self.q_proj(x).unflatten(-1, (s.num_attention_heads, -1))  # (B, T, H, Dh or 2 Dh)
        q, gate = q.chunk(2, -1) if self.gated else (q, None)
        k = self.k_proj(x).unflatten(-1, (s.num_key_value_heads, -1))
        v = self.v_proj(x).unflatten(-1, (s.num_key_value_heads, -1))
        angles = rope_angles(s, x.shape[1], x.device, first=len(past or ()))
        q, k = rotate(self.q_norm(q), angles), rotate(self.k_norm(k), angles)
        share = s.num_attention_heads // s.num_key_value_heads
        heads = [y.to(v.dtype).transpose(1, 2) for y in (q, k, v)]
        heads[1:] = [y.repeat_interleave(share, 1) for y in heads[1:]]
        past = [] if past is None else past
        past.append((heads[1], heads[2]))
        out = draft_attention(heads[0], past).transpose(1, 2)
        if gate is not None:
            out = out * torch.sigmoid(gate)
        mixed: Tensor = self.o_proj(out.flatten(2))
        return mixed


def draft_attention(q: Tensor, past: Past) -> Tensor:
    """Row j continues the draft that began at row j, and attends to what that draft would.

    Of the first pair, the true text's keys and values, that is rows up to j; of each later pair,
    one step of all drafts, row j alone. With one pair this is causal attention. The queries are
    taken in blocks, which is faster on a CPU than torch's fused attention.
    """
    (k, v), *own = past
    n = q.shape[2]
    later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    q = q * q.shape[-1] ** -0.5
    own_scores = [(q * k_i).sum(-1, keepdim=True) for k_i, _ in own]
    outputs = []
    for start in range(0, n, QUERY_BLOCK):
        end = min(n, start + QUERY_BLOCK)
        size = end - start
        scores = q.narrow(2, start, size) @ k.narrow(2, 0, end).mT
        scores = scores.masked_fill(later[start:end, :end], float("-inf"))
        scores = torch.cat([scores, *(s.narrow(2, start, size) for s in own_scores)], -1)
        weights = scores.softmax(-1, torch.float32).to(v.dtype)
        out = weights.narrow(-1, 0, end) @ v.narrow(2, 0, end)
        for i, (_, v_i) in enumerate(own):
            out = out + weights.narrow(-1, end + i, 1) * v_i.narrow(2, start, size)
        outputs.append(out)
    return torch.cat(outputs, 2)


def rope_angles(
    shape: NanoShape, n_tokens: int, device: torch.device, *, first: int = 0
) -> tuple[Tensor, Tensor]:
    """cos and sin, (T, 1, pairs)"""
    powers = torch.arange(0, shape.rotary_dim, 2, device=device).float() / shape.rotary_dim
    positions = torch.arange(first, first + n_tokens, device=device).float()
    turns = positions[:, None] * shape.rope_theta**-powers
    return turns.cos()[:, None], turns.sin()[:, None]


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs are halves of the rotated part; the rest of the head passes through."""
    cos, sin = angles
    n = cos.shape[-1]
    a, b, rest = x.split([n, n, x.shape[-1] - 2 * n], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class ShortConv(nn.Module):
    """Depthwise and causal; index K-1 of the kernel belongs to the newest row."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, kernel) / math.sqrt(kernel))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Convolve.apply(x, self.weight.squeeze(1))  # type: ignore[no-untyped-call]
        return out


class _Convolve(torch.autograd.Function):
    """Four shifted products. Slices under autograd would each bring a gradient of full size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _shifted_sum(F.pad(x, (0, 0, weight.shape[1] - 1, 0)), weight, x.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        kernel, n = weight.shape[1], x.shape[1]
        grad_x = _shifted_sum(F.pad(grad, (0, 0, 0, kernel - 1)), weight.flip(1), n)
        padded = F.pad(x, (0, 0, kernel - 1, 0))
        columns = [(padded[:, j : j + n] * grad).sum((0, 1)) for j in range(kernel)]
        return grad_x, torch.stack(columns, 1)


def _shifted_sum(padded: Tensor, weight: Tensor, n: int) -> Tensor:
    out = padded[:, :n] * weight[:, 0]
    for j in range(1, weight.shape[1]):
        out.addcmul_(padded[:, j : j + n], weight[:, j])
    return out


class GatedDeltaNet(nn.Module):
    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        self.shape = s = shape
        d, n_heads = s.hidden_size, s.linear_num_value_heads
        self.in_proj_qkv = nn.Linear(d, s.linear_channels, bias=False)
        self.in_proj_z = nn.Linear(d, s.linear_width, bias=False)
        self.in_proj_b = nn.Linear(d, n_heads, bias=False)
        self.in_proj_a = nn.Linear(d, n_heads, bias=False)
        self.conv1d = ShortConv(s.linear_channels, s.linear_conv_kernel_dim)
        self.A_log = nn.Parameter(torch.empty(n_heads).uniform_(1, 16).log())
        step = torch.exp(torch.empty(n_heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus gives step
        self.norm = RmsNorm(s.linear_head_dim, s.rms_norm_eps, shifted=False)
        self.out_proj = nn.Linear(s.linear_width, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s = self.shape
        n_keys = s.linear_num_key_heads * s.linear_head_dim
        mixed = F.silu(self.conv1d(self.in_proj_qkv(x).float()))
        flat = mixed.split([n_keys, n_keys, s.linear_width], -1)
        heads = [y.unflatten(-1, (-1, s.linear_head_dim)) for y in flat]  # (B, T, H, Dh)
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in heads[:2])
        share = s.linear_num_value_heads // s.linear_num_key_heads
        q, k = (y.repeat_interleave(share, 2) for y in (q * s.linear_head_dim**-0.5, k))
        v = heads[2].transpose(1, 2)
        beta = torch.sigmoid(self.in_proj_b(x).float())
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            out = gated_delta_rule(q.transpose(1, 2), k.transpose(1, 2), v, log_decay.mT, beta.mT)
        z = self.in_proj_z(x).float().unflatten(-1, (-1, s.linear_head_dim))
        gated = self.norm(out.transpose(1, 2)) * F.silu(z)
        written: Tensor = self.out_proj(gated.flatten(2))
        return written


class NanoBlock(nn.Module):
    def __init__(self, shape: NanoShape, *, recurrent: bool) -> None:
        super().__init__()
        eps, shifted = shape.rms_norm_eps, shape.is_hybrid
        self.input_layernorm = RmsNorm(shape.hidden_size, eps, shifted=shifted)
        if recurrent:
            self.linear_attn = GatedDeltaNet(shape)
        else:
            self.self_attn = NanoAttention(shape)
        self.recurrent = recurrent
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, eps, shifted=shifted)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        rows = self.input_layernorm(x)
        x = x + (self.linear_attn(rows) if self.recurrent else self.self_attn(rows, past))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class NanoTrunk(nn.Module):
    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(
            NanoBlock(shape, recurrent=shape.is_recurrent(i))
            for i in range(shape.num_hidden_layers)
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

    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        d, eps = shape.hidden_size, shape.rms_norm_eps
        self.pre_fc_norm_embedding = RmsNorm(d, eps, shifted=True)
        self.pre_fc_norm_hidden = RmsNorm(d, eps, shifted=True)
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList([NanoBlock(shape, recurrent=False)])
        self.norm = RmsNorm(d, eps, shifted=True)

    def forward(self, embedded: Tensor, hidden: Tensor, past: Past | None = None) -> Tensor:
        """Hidden rows again: a draft's next step continues from these."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(pair, -1))
        out: Tensor = self.norm(self.layers[0](x, past))
        return out


class Network(nn.Module):
    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = NanoTrunk(shape)
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
