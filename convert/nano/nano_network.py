"""The two models: a trunk, a head, and for the hybrid one MTP block behind it.

Parameter names are those of the `transformers` implementations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from .chunked_delta_rule import DeltaTerms, gated_delta_rule
from .draft_attention import Past, draft_attention
from .fusion import fused
from .nano_shapes import NanoShape


class RmsNorm(nn.Module):
    """`shifted`: the weight is stored minus one, as Qwen3.5 does except after the delta rule."""

    def __init__(self, width: int, eps: float, *, shifted: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if shifted else torch.ones(width))
        self.eps, self.shifted = eps, shifted

    @property
    def scale(self) -> Tensor:
        return 1 + self.weight if self.shifted else self.weight

    def forward(self, x: Tensor) -> Tensor:
        return _norm_for_products(x, self.scale, self.eps, product_type(x))


def product_type(x: Tensor) -> torch.dtype:
    """What matrices are multiplied in: bfloat16 in training."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale


@fused
def _norm_for_products(x: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return normed(x.float(), scale, eps).to(dtype)


def product(x: Tensor, *layers: nn.Linear) -> Tensor:
    """The outputs of several layers beside each other."""
    weights = [layer.weight for layer in layers]
    return F.linear(x, weights[0] if len(weights) == 1 else torch.cat(weights))


class Mlp(nn.Module):
    def __init__(self, shape: NanoShape) -> None:
        super().__init__()
        d, f = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(_gated(product(x, self.gate_proj, self.up_proj)))
        return out


@fused
def _gated(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


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
        angles = rope_angles(self.shape, x.shape[1], x.device, first=len(past or ()))
        rows = product(x, self.q_proj, self.k_proj, self.v_proj)
        scales = self.q_norm.scale, self.k_norm.scale
        q, k, v, gate = _attention_heads(rows, *angles, *scales, self.shape)
        past = [] if past is None else past
        past.append((k, v))
        out = draft_attention(q, past).transpose(1, 2).flatten(2)
        mixed: Tensor = self.o_proj(out if gate is None else _opened(out, gate))
        return mixed


@fused
def _attention_heads(
    rows: Tensor, cos: Tensor, sin: Tensor, q_scale: Tensor, k_scale: Tensor, shape: NanoShape
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v as (B, H, T, Dh), rotated and repeated; and the gate of the output, (B, T, H Dh)."""
    width, n_kv = shape.head_dim, shape.num_key_value_heads
    n_q = shape.num_attention_heads * width
    q, k, v = rows.split([(1 + shape.is_hybrid) * n_q, n_kv * width, n_kv * width], -1)
    q, k, v = (y.unflatten(-1, (-1, width)) for y in (q, k, v))
    gate = None
    if shape.is_hybrid:  # each head's query and gate lie side by side
        pairs = q.unflatten(2, (-1, 2))
        q, gate = pairs[..., 0, :], pairs[..., 1, :].flatten(2)
    q, k = (
        rotate(normed(y.float(), scale, shape.rms_norm_eps), (cos, sin))
        for y, scale in ((q, q_scale), (k, k_scale))
    )
    share = shape.num_attention_heads // n_kv
    q = q.to(rows.dtype).transpose(1, 2).contiguous()
    k, v = (y.to(rows.dtype).repeat_interleave(share, 2).transpose(1, 2) for y in (k, v))
    return q, k.contiguous(), v.contiguous(), gate


@fused
def _opened(out: Tensor, gate: Tensor) -> Tensor:
    return out * torch.sigmoid(gate)


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


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """(B, T, channels) with a kernel (channels, 1, K): shifted products."""
    kernel, n = weight.shape[2], x.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    return torch.stack([padded[:, j : j + n] * weight[:, 0, j] for j in range(kernel)]).sum(0)


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
        layers = self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a
        rows = product(x, *layers)
        rates = self.A_log, self.dt_bias
        terms, z = _delta_rule_terms(rows, self.conv1d.weight, *rates, self.shape)
        with torch.autocast(x.device.type, enabled=False):
            out = gated_delta_rule(terms)
        written: Tensor = self.out_proj(_gated_norm(out, z, self.norm.scale, self.norm.eps))
        return written


@fused
def _delta_rule_terms(
    rows: Tensor, kernel: Tensor, a_log: Tensor, dt_bias: Tensor, shape: NanoShape
) -> tuple[DeltaTerms, Tensor]:
    """What `gated_delta_rule` takes, and the gate z."""
    n_heads, width = shape.linear_num_value_heads, shape.linear_head_dim
    n_keys = shape.linear_num_key_heads * width
    sizes = [shape.linear_channels, shape.linear_width, n_heads, n_heads]
    mixed, z, b, a = rows.split(sizes, -1)
    mixed = F.silu(convolved(mixed.float(), kernel))
    q, k, v = (
        y.unflatten(-1, (-1, width)) for y in mixed.split([n_keys, n_keys, shape.linear_width], -1)
    )
    q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    share = n_heads // shape.linear_num_key_heads
    q, k = (y.repeat_interleave(share, 2) for y in (q * width**-0.5, k))
    log_decay = -a_log.exp() * F.softplus(a.float() + dt_bias)
    return DeltaTerms(q, k, v, log_decay, torch.sigmoid(b.float())), z


@fused
def _gated_norm(out: Tensor, z: Tensor, scale: Tensor, eps: float) -> Tensor:
    gate: Tensor = F.silu(z.float()).unflatten(-1, (-1, out.shape[-1]))
    return (normed(out, scale, eps) * gate).flatten(2).to(z.dtype)


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
