"""Random EAGLE3 drafters for a target, and what they compute, in float64 by the formulas alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drafter_files import BASE, EPS, Doubles, draw, draw_d2t, facts_of, rms, write_drafter

H, HK, D, F = 4, 2, 16, 48


@dataclass(frozen=True)
class Kind:
    """What differs among EAGLE3 drafters."""

    width: int = 0  # 0: that of the target
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    n_head: int = 96  # rows of the head; 0: the target's head
    own_embedding: bool = False
    shuffled: bool = False  # rows of the head in no order of ids


PLAIN = Kind()


@dataclass
class Eagle3File:
    path: Path
    kind: Kind
    layers: tuple[int, int, int]
    tensors: dict[str, Doubles]
    d2t: NDArray[np.int64] | None


def write_eagle3(
    path: Path, target: Path, kind: Kind = PLAIN, seed: int = 0, **keys: Any
) -> Eagle3File:
    """`keys` are written instead of the right ones; None leaves one out."""
    n_target, n_vocab, n_layers, vocabulary = facts_of(target)
    rng, width = np.random.default_rng(seed), kind.width or n_target
    layers = (1, n_layers // 2, n_layers - 1)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, 3 * n_target),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,),
        "blk.0.attn_q.weight": (H * D, 2 * width),
        "blk.0.attn_k.weight": (HK * D, 2 * width),
        "blk.0.attn_v.weight": (HK * D, 2 * width),
        "blk.0.attn_output.weight": (width, H * D),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (F, width),
        "blk.0.ffn_up.weight": (F, width),
        "blk.0.ffn_down.weight": (width, F),
        "output_norm.weight": (width,),
    }
    if kind.norm_before_fc:
        shapes["enc.output_norm.weight"] = (3 * n_target,)
    if kind.n_head:
        shapes["output.weight"] = (kind.n_head, width)
    if kind.own_embedding:
        shapes["token_embd.weight"] = (n_vocab, width)
    values = {name: draw(rng, shape) for name, shape in shapes.items()}
    d2t = None
    if kind.n_head:
        d2t = draw_d2t(rng, n_vocab, kind.n_head, shuffled=kind.shuffled)
    meta: dict[str, Any] = {
        "block_count": 1, "context_length": 256, "embedding_length": width,
        "feed_forward_length": F, "attention.head_count": H, "attention.head_count_kv": HK,
        "attention.key_length": D, "attention.value_length": D, "rope.dimension_count": D,
        "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": BASE,
        "target_layers": list(layers), "target_hidden_size": n_target,
        "norm_before_residual": kind.norm_before_residual, "norm_before_fc": kind.norm_before_fc,
        "vocab_size": n_vocab,
    } | keys  # fmt: skip
    write_drafter(path, "eagle3", meta, vocabulary, values, d2t)
    doubles = {name: each.astype(np.float64) for name, each in values.items()}
    return Eagle3File(path, kind, layers, doubles, d2t)


class Definition:
    """One text, from the first token on."""

    def __init__(self, file: Eagle3File, token_embd: Doubles, output: Doubles) -> None:
        """`token_embd`, `output`: the target's."""
        self.t, self.kind = file.tensors, file.kind
        self.token_embd = self.t.get("token_embd.weight", token_embd)
        self.output, self.d2t = self.t.get("output.weight", output), file.d2t

    def draft(self, tokens: list[int], features: Doubles, n: int) -> tuple[list[int], Doubles]:
        """n tokens behind a text, and the logits that each was taken from.

        `features` (T - 1, 3 * width): the target's, of all tokens but the last. Position 0 has no
        row: the first one pairs the second token with the features of the first.
        """
        g = self._encode(features)
        rows, made, logits = list(g), [], []
        read = list(tokens[1:])
        for _ in range(n):
            y = self._layer(np.array(read), np.stack(rows))
            row = rms(y[-1], self.t["output_norm.weight"]) @ self.output.T
            best = int(row.argmax())
            logits.append(row)
            made.append(best if self.d2t is None else int(self.d2t[best]))
            rows.append(y[-1])
            read.append(made[-1])
        return made, np.stack(logits)

    def _encode(self, features: Doubles) -> Doubles:
        if self.kind.norm_before_fc:
            features = rms(features, self.t["enc.output_norm.weight"])
        out: Doubles = features @ self.t["fc.weight"].T
        return out

    def _layer(self, tokens: NDArray[np.int64], g: Doubles) -> Doubles:
        t, positions = self.t, np.arange(1, len(tokens) + 1)
        b = rms(g, t["blk.0.attn_norm_2.weight"])
        a = rms(self.token_embd[tokens], t["blk.0.attn_norm.weight"])
        both = np.concatenate([a, b], axis=1)
        q = _rotate((both @ t["blk.0.attn_q.weight"].T).reshape(-1, H, D), positions)
        k = _rotate((both @ t["blk.0.attn_k.weight"].T).reshape(-1, HK, D), positions)
        v = (both @ t["blk.0.attn_v.weight"].T).reshape(-1, HK, D)
        k, v = (np.repeat(x, H // HK, axis=1) for x in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / D**0.5
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("hqk,khd->qhd", weights, v).reshape(len(g), H * D)
        y = (b if self.kind.norm_before_residual else g) + heads @ t["blk.0.attn_output.weight"].T
        n = rms(y, t["blk.0.ffn_norm.weight"])
        gate, up = n @ t["blk.0.ffn_gate.weight"].T, n @ t["blk.0.ffn_up.weight"].T
        out: Doubles = y + (gate / (1 + np.exp(-gate)) * up) @ t["blk.0.ffn_down.weight"].T
        return out


def _rotate(x: Doubles, positions: NDArray[np.int64]) -> Doubles:
    """Neighbouring elements turn together."""
    angles = positions[:, None] * BASE ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., ::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out
