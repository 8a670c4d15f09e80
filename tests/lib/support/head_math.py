"""What an MTP head computes, in plain torch and double precision, straight from a GGUF file.

One text, all rows at once, no cache. Sizes come from keys and tensors, and which parts there are
from tensors alone, as llama.cpp's graphs have it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nextn.core.gguf.reader import GgufFile, open_gguf

Rows = torch.Tensor
NEIGHBOURS = ("deepseek2",)  # rope turns (2i, 2i + 1); elsewhere (i, i + half)
SCALED_SUMS = 1e-20


def head_logits(path: Path, head: int, hidden: Any, tokens: Any) -> Any:
    """For rows at positions 1, 2, ... whose hidden rows are of the positions before, (T, V)."""
    with open_gguf(path) as file:
        return Head(file, head).logits(hidden, tokens).float().numpy()


class Head:
    def __init__(self, file: GgufFile, index: int) -> None:
        self.file, self.meta = file, file.metadata
        n_blocks = self.meta.int("block_count")
        self.block = n_blocks - self.meta.int("nextn_predict_layers") + index
        self.n_blocks = n_blocks
        self.eps = self.meta.float("attention.layer_norm_rms_epsilon")
        pattern = "attention.sliding_window_pattern"
        kinds = self.meta.bools(pattern, length=n_blocks) if self.meta.has(pattern) else None
        self.is_windowed = bool(kinds and kinds[self.block])

    @property
    def turns_pairs(self) -> bool:
        return self.meta.architecture in NEIGHBOURS

    # Tensors and keys ----------------------------------------------------------------------------

    def has(self, stem: str, kind: str = "weight") -> bool:
        return f"blk.{self.block}.{stem}.{kind}" in self.file.tensors

    def tensor(self, stem: str, kind: str = "weight") -> torch.Tensor:
        return self.whole(f"blk.{self.block}.{stem}.{kind}")

    def whole(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.file.tensors[name].floats()).double()

    def number(self, key: str) -> int:
        return self.meta.per_layer_ints(key, self.n_blocks)[self.block]

    # The head ------------------------------------------------------------------------------------

    def logits(self, hidden: Any, tokens: Any) -> torch.Tensor:
        embedding = "token_embd.weight"
        if self.has("nextn.embed_tokens"):
            embedding = f"blk.{self.block}.nextn.embed_tokens.weight"
        e = self.whole(embedding)[torch.as_tensor(tokens)]
        h = torch.as_tensor(hidden).double()
        joined = [self.norm(e, "nextn.enorm"), self.norm(h, "nextn.hnorm")]
        x = torch.cat(joined, -1) @ self.tensor("nextn.eh_proj").T
        x = self.block_of(x)
        x = self.last_norm(x)
        if self.has("nextn.shared_head_head"):
            return x @ self.tensor("nextn.shared_head_head").T
        own = "output.weight" in self.file.tensors
        return x @ self.whole("output.weight" if own else "token_embd.weight").T

    def block_of(self, x: Rows) -> Rows:
        x = x + self.attention(self.norm(x, "attn_norm"))
        before = "post_attention_norm" if self.has("post_attention_norm") else "ffn_norm"
        return x + self.ffn(self.norm(x, before))

    def last_norm(self, x: Rows) -> Rows:
        own = ("nextn.shared_head_norm", "layer_output_norm")
        stem = next((n for n in own if self.has(n)), None)
        return self.norm_of(
            x, self.whole("output_norm.weight") if stem is None else self.tensor(stem)
        )

    def norm_of(self, x: Rows, weight: torch.Tensor) -> Rows:
        return rms(x, weight, self.eps)

    def norm(self, x: Rows, stem: str) -> Rows:
        return rms(x, self.tensor(stem), self.eps)

    # Attention -----------------------------------------------------------------------------------

    def attention(self, x: Rows) -> Rows:
        return self.latent(x) if self.has("attn_kv_a_mqa") else self.grouped(x)

    def grouped(self, x: Rows) -> Rows:
        n, n_kv = self.number("attention.head_count"), self.number("attention.head_count_kv")
        key, value = self.meta.int("attention.key_length"), self.meta.int("attention.value_length")
        q, k, v = self.projected(x, n * key, n_kv * key)
        q, k, v = (y.reshape(len(x), -1, width) for y, width in ((q, key), (k, key), (v, value)))
        if self.has("attn_q_norm"):
            q, k = self.norm(q, "attn_q_norm"), self.norm(k, "attn_k_norm")
        q, k = self.rope(q), self.rope(k)
        k, v = (y.repeat_interleave(n // n_kv, 1) for y in (k, v))
        o = self.attend(q, k, v, key**-0.5)
        if self.has("attn_gate"):
            o = o * torch.sigmoid(x @ self.tensor("attn_gate").T)[..., None]
        scale = self.meta.float("attention.value_scale", 1.0)
        return scale * o.reshape(len(x), -1) @ self.tensor("attn_output").T

    def projected(self, x: Rows, n_q: int, n_k: int) -> tuple[Rows, ...]:
        stems = ["attn_qkv"] if self.has("attn_qkv") else ["attn_q", "attn_k", "attn_v"]
        parts = []
        for stem in stems:
            y = x @ self.tensor(stem).T
            parts.append(y + self.tensor(stem, "bias") if self.has(stem, "bias") else y)
        whole = torch.cat(parts, -1)
        return whole[:, :n_q], whole[:, n_q : n_q + n_k], whole[:, n_q + n_k :]

    def latent(self, x: Rows) -> Rows:
        """MLA in its absorbed form: one key-value head for all."""
        rank, width = self.meta.int("attention.kv_lora_rank"), self.meta.int("rope.dimension_count")
        nope = self.meta.int("attention.key_length_mla") - width
        qa = self.norm(x @ self.tensor("attn_q_a").T, "attn_q_a_norm")
        q = (qa @ self.tensor("attn_q_b").T).reshape(len(x), -1, nope + width)
        kv = x @ self.tensor("attn_kv_a_mqa").T
        latent = self.norm(kv[:, :rank], "attn_kv_a_norm")
        absorbed = torch.einsum("thn,hrn->thr", q[..., :nope], self.tensor("attn_k_b"))
        q = torch.cat([absorbed, self.rope(q[..., nope:])], -1)
        k = torch.cat([latent[:, None], self.rope(kv[:, None, rank:])], -1)
        n = q.shape[1]
        o = self.attend(
            q, k.expand(-1, n, -1), latent[:, None].expand(-1, n, -1), (nope + width) ** -0.5
        )
        o = torch.einsum("thr,hvr->thv", o, self.tensor("attn_v_b"))
        return o.reshape(len(x), -1) @ self.tensor("attn_output").T

    def attend(self, q: Rows, k: Rows, v: Rows, scale: float) -> Rows:
        scores = scale * torch.einsum("qhd,khd->hqk", q, k)
        behind = torch.arange(len(q))[:, None] - torch.arange(len(q))[None]
        hidden = behind < 0
        if self.is_windowed:
            hidden = hidden | (behind >= self.meta.int("attention.sliding_window"))
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.has("attn_sinks"):
            sinks = self.tensor("attn_sinks").reshape(-1, 1, 1).expand(-1, len(q), 1)
            weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
        else:
            weights = torch.softmax(scores, -1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def rope(self, x: Rows) -> Rows:
        """Of the first numbers of each head. K-EXAONE's full attention has none."""
        arch = self.meta.architecture
        if arch == "exaone-moe" and not self.is_windowed:
            return x
        n = self.meta.int("rope.dimension_count", x.shape[-1])
        base = self.meta.float("rope.freq_base")
        if self.is_windowed:
            base = self.meta.float("rope.freq_base_swa", base)
        elif arch == "step35":
            n //= 2
        positions = torch.arange(1, len(x) + 1, dtype=torch.float64)
        angle = positions[:, None] * base ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        turned, rest = x[..., :n], x[..., n:]
        if self.turns_pairs:
            a, b = turned[..., 0::2], turned[..., 1::2]
            pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
            return torch.cat([pairs.flatten(-2), rest], -1)
        a, b = turned.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)

    # Feed-forward --------------------------------------------------------------------------------

    def ffn(self, x: Rows) -> Rows:
        if not self.has("ffn_gate_inp"):
            return self.gated(x, "ffn_gate", "ffn_up", "ffn_down", "swiglu_clamp_shexp")
        y = self.routed(x)
        if self.has("ffn_gate_shexp"):
            y = y + self.gated(x, "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "")
        return y

    def gated(self, x: Rows, gate: str, up: str, down: str, clamp: str) -> Rows:
        g = torch.nn.functional.silu(x @ self.tensor(gate).T)
        u = x @ self.tensor(up).T
        if (
            clamp
            and self.meta.has(clamp)
            and (limit := self.meta.floats(clamp, length=self.n_blocks)[self.block])
        ):
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        return (g * u) @ self.tensor(down).T

    def routed(self, x: Rows) -> Rows:
        p = torch.sigmoid(x @ self.tensor("ffn_gate_inp").T)
        chosen = p + self.router_bias()
        groups = self.meta.int("expert_group_count", 1)
        if groups > 1:
            of_group = chosen.reshape(len(x), groups, -1)
            best = of_group.topk(2, -1).values.sum(-1)
            kept = best.topk(self.meta.int("expert_group_used_count"), -1).indices
            mask = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
            chosen = of_group.masked_fill(mask[..., None], -torch.inf).reshape(chosen.shape)
        picked = chosen.topk(self.meta.int("expert_used_count"), -1).indices
        w = p.gather(1, picked)
        if self.meta.bool("expert_weights_norm", False):
            w = w / (w.sum(-1, keepdim=True) + SCALED_SUMS)
        w = w * self.meta.float("expert_weights_scale", 1.0)
        if self.has("ffn_gate_up_exps"):
            gate, up = self.tensor("ffn_gate_up_exps").chunk(2, 1)
        else:
            gate, up = self.tensor("ffn_gate_exps"), self.tensor("ffn_up_exps")
        down = self.tensor("ffn_down_exps")[picked]
        g = torch.nn.functional.silu(torch.einsum("te,tkfe->tkf", x, gate[picked]))
        u = torch.einsum("te,tkfe->tkf", x, up[picked])
        return torch.einsum("tk,tkef,tkf->te", w, down, g * u)

    def router_bias(self) -> torch.Tensor:
        """Which one family names without an ending."""
        name = f"blk.{self.block}.exp_probs_b"
        return self.whole(name if name in self.file.tensors else f"{name}.bias")


def rms(x: Rows, weight: torch.Tensor, eps: float) -> Rows:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight
