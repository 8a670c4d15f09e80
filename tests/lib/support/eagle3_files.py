"""Random EAGLE3 drafters for a target, and what they compute, in float64 by the formulas alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drafter_files import BASE, EPS, Doubles, draw, draw_d2t, facts_of, rms, write_drafter

H, HK, D, F = 4, 2, 16, 48
PLAIN_DIM, ROPE_DIM, LATENT, Q_RANK = 8, 8, 24, 20  # of attention over latent vectors
N_END = 2  # tokens at the vocabulary's end that end a text, and are not drafted


@dataclass(frozen=True)
class Kind:
    """What differs among EAGLE3 drafters."""

    width: int = 0  # 0: that of the target
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    n_head: int = 96  # rows of the head; 0: the target's head
    own_embedding: bool = False
    shuffled: bool = False  # rows of the head in no order of ids
    n_taps: int = 3
    n_layers: int = 1
    window: int = 0  # of every layer
    head_norms: bool = False
    fc_norm: bool = False  # EAGLE-3.1: a norm for each tap
    norm_output: bool = False  # EAGLE-3.1: drafted rows go on behind the last norm
    is_latent: bool = False  # MLA, as in drafters for DeepSeek's models and Kimi's


PLAIN = Kind()
Weight = Callable[[str], Doubles]


@dataclass
class Eagle3File:
    path: Path
    kind: Kind
    layers: tuple[int, ...]
    tensors: dict[str, Doubles]
    d2t: NDArray[np.int64] | None


def write_eagle3(
    path: Path, target: Path, kind: Kind = PLAIN, seed: int = 0, **keys: Any
) -> Eagle3File:
    """`keys` are written instead of the right ones; None leaves one out."""
    n_target, n_vocab, n_layers, vocabulary = facts_of(target)
    rng, width = np.random.default_rng(seed), kind.width or n_target
    layers: tuple[int, ...] = (1, n_layers // 2, n_layers - 1)
    if kind.n_taps != 3:
        layers = tuple(range(n_layers + 1))[: kind.n_taps]
    joined = kind.n_taps * n_target
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, joined),
        "blk.0.attn_norm_2.weight": (width,),
        "output_norm.weight": (width,),
    }
    for block in range(kind.n_layers):
        shapes |= _block_shapes(block, width, kind)
    if kind.norm_before_fc:
        shapes["enc.output_norm.weight"] = (joined,)
    if kind.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (n_target,) for i in range(kind.n_taps)}
    if kind.n_head:
        shapes["output.weight"] = (kind.n_head, width)
    if kind.own_embedding:
        shapes["token_embd.weight"] = (n_vocab, width)
    values = {name: draw(rng, shape) for name, shape in shapes.items()}
    d2t = None
    if kind.n_head:
        d2t = draw_d2t(rng, n_vocab, kind.n_head, shuffled=kind.shuffled)
    meta: dict[str, Any] = {
        "block_count": kind.n_layers, "context_length": 256, "embedding_length": width,
        "feed_forward_length": F, "attention.head_count": H, "attention.head_count_kv": HK,
        "attention.key_length": D, "attention.value_length": D, "rope.dimension_count": D,
        "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": BASE,
        "target_layers": list(layers), "target_hidden_size": n_target,
        "norm_before_residual": kind.norm_before_residual, "norm_before_fc": kind.norm_before_fc,
        "vocab_size": n_vocab,
    }  # fmt: skip
    if kind.is_latent:
        meta |= {
            "attention.head_count_kv": 1, "attention.key_length": LATENT + ROPE_DIM,
            "attention.value_length": LATENT, "attention.kv_lora_rank": LATENT,
            "attention.q_lora_rank": Q_RANK, "attention.key_length_mla": PLAIN_DIM + ROPE_DIM,
            "attention.value_length_mla": D, "rope.dimension_count": ROPE_DIM,
        }  # fmt: skip
    if kind.fc_norm:
        meta["fc_norm"] = True
    if kind.norm_output:
        meta["norm_output"] = True
    if kind.window:
        meta["attention.sliding_window"] = kind.window
        meta["attention.sliding_window_pattern"] = [True] * kind.n_layers
    meta |= keys
    write_drafter(path, "eagle3", meta, vocabulary, values, d2t)
    doubles = {name: each.astype(np.float64) for name, each in values.items()}
    return Eagle3File(path, kind, layers, doubles, d2t)


def _block_shapes(block: int, width: int, kind: Kind) -> dict[str, tuple[int, ...]]:
    n_in = width if block else 2 * width
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (H * D, n_in),
        "attn_k": (HK * D, n_in),
        "attn_v": (HK * D, n_in),
        "attn_output": (width, H * D),
        "ffn_norm": (width,),
        "ffn_gate": (F, width),
        "ffn_up": (F, width),
        "ffn_down": (width, F),
    }
    if kind.is_latent:
        for name in ("attn_q", "attn_k", "attn_v"):
            del shapes[name]
        shapes |= {
            "attn_q_a": (Q_RANK, n_in),
            "attn_q_a_norm": (Q_RANK,),
            "attn_q_b": (H * (PLAIN_DIM + ROPE_DIM), Q_RANK),
            "attn_kv_a_mqa": (LATENT + ROPE_DIM, n_in),
            "attn_kv_a_norm": (LATENT,),
            "attn_k_b": (H, LATENT, PLAIN_DIM),
            "attn_v_b": (H, D, LATENT),
        }
    if kind.head_norms:
        shapes |= {"attn_q_norm": (D,), "attn_k_norm": (D,)}
    return {f"blk.{block}.{name}.weight": shape for name, shape in shapes.items()}


class Definition:
    """One text, from the first token on."""

    def __init__(self, file: Eagle3File, token_embd: Doubles, output: Doubles) -> None:
        """`token_embd`, `output`: the target's."""
        self.t, self.kind = file.tensors, file.kind
        self.token_embd = self.t.get("token_embd.weight", token_embd)
        self.output = self.t.get("output.weight", output)
        self.ids = np.arange(len(self.output)) if file.d2t is None else file.d2t

    def draft(self, tokens: list[int], features: Doubles, n: int) -> tuple[list[int], Doubles]:
        """n tokens behind a text, and the logits that each was taken from.

        `features` (T - 1, 3 * width): the target's, of all tokens but the last. Position 0 has no
        row: the first one pairs the second token with the features of the first.
        """
        g = self._encode(features)
        rows, made, logits = list(g), [], []
        read = list(tokens[1:])
        for _ in range(n):
            y = self._layers(np.array(read), np.stack(rows))[-1]
            normed = rms(y, self.t["output_norm.weight"])
            row = normed @ self.output.T
            row[self.ids >= len(self.token_embd) - N_END] = -np.inf
            best = int(row.argmax())
            logits.append(row)
            made.append(int(self.ids[best]))
            rows.append(normed if self.kind.norm_output else y)
            read.append(made[-1])
        return made, np.stack(logits)

    def _encode(self, features: Doubles) -> Doubles:
        if self.kind.norm_before_fc:
            features = rms(features, self.t["enc.output_norm.weight"])
        if self.kind.fc_norm:
            taps = np.split(features, self.kind.n_taps, axis=1)
            normed = [rms(tap, self.t[f"fc_norm.{i}.weight"]) for i, tap in enumerate(taps)]
            features = np.concatenate(normed, axis=1)
        out: Doubles = features @ self.t["fc.weight"].T
        return out

    def _layers(self, tokens: NDArray[np.int64], g: Doubles) -> Doubles:
        t = self.t
        b = rms(g, t["blk.0.attn_norm_2.weight"])
        a = rms(self.token_embd[tokens], t["blk.0.attn_norm.weight"])
        both = np.concatenate([a, b], axis=1)
        x = self._layer(0, both, b if self.kind.norm_before_residual else g)
        for block in range(1, self.kind.n_layers):
            x = self._layer(block, rms(x, t[f"blk.{block}.attn_norm.weight"]), x)
        return x

    def _layer(self, block: int, entering: Doubles, x: Doubles) -> Doubles:
        n = len(x)
        positions = np.arange(1, n + 1)

        def weight(name: str) -> Doubles:
            return self.t[f"blk.{block}.{name}.weight"]

        q, k, v = (self._latent if self.kind.is_latent else self._grouped)(weight, entering)
        scores = np.einsum("qhd,khd->hqk", q, k) / D**0.5
        behind = positions[:, None] - positions
        is_hidden = behind < 0
        if self.kind.window:
            is_hidden = is_hidden | (behind >= self.kind.window)
        scores[:, is_hidden] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("hqk,khd->qhd", weights, v).reshape(n, H * D)
        y = x + heads @ weight("attn_output").T
        normed = rms(y, weight("ffn_norm"))
        gate, up = normed @ weight("ffn_gate").T, normed @ weight("ffn_up").T
        out: Doubles = y + (gate / (1 + np.exp(-gate)) * up) @ weight("ffn_down").T
        return out

    def _grouped(self, weight: Weight, entering: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        n, positions = len(entering), np.arange(1, len(entering) + 1)
        q, k, v = (
            (entering @ weight(name).T).reshape(n, -1, D) for name in ("attn_q", "attn_k", "attn_v")
        )
        if self.kind.head_norms:
            q, k = rms(q, weight("attn_q_norm")), rms(k, weight("attn_k_norm"))
        k, v = (np.repeat(each, H // HK, axis=1) for each in (_rotate(k, positions), v))
        return _rotate(q, positions), k, v

    def _latent(self, weight: Weight, entering: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Keys and values of each head, made from the latent vectors."""
        n, positions = len(entering), np.arange(1, len(entering) + 1)
        low = rms(entering @ weight("attn_q_a").T, weight("attn_q_a_norm"))
        q = (low @ weight("attn_q_b").T).reshape(n, H, -1)
        q = np.concatenate([q[..., :PLAIN_DIM], _rotate(q[..., PLAIN_DIM:], positions)], axis=2)
        cells = entering @ weight("attn_kv_a_mqa").T
        latents = rms(cells[:, :LATENT], weight("attn_kv_a_norm"))
        turned = _rotate(cells[:, None, LATENT:], positions)
        plain = np.einsum("tl,hlp->thp", latents, weight("attn_k_b"))
        k = np.concatenate([plain, np.repeat(turned, H, axis=1)], axis=2)
        return q, k, np.einsum("tl,hvl->thv", latents, weight("attn_v_b"))


def _rotate(x: Doubles, positions: NDArray[np.int64]) -> Doubles:
    """Neighbouring elements turn together."""
    width = x.shape[-1]
    angles = positions[:, None] * BASE ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., ::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out
