"""Random DFlash and DSpark drafters for a target, and what they compute, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drafter_files import BASE, EPS, Doubles, draw, draw_d2t, facts_of, rms, write_drafter

H, HK, D, F, RANK, BLOCK = 4, 2, 16, 48, 8, 6


@dataclass(frozen=True)
class Kind:
    """What differs among these drafters."""

    n_layers: int = 2
    n_taps: int = 2
    n_head: int = 96  # rows of the head; 0: the target's head
    shuffled: bool = False  # rows of the head in no order of ids
    own_embedding: bool = False
    window: int = 0  # of the first layer
    causal: bool = False
    gemma: bool = False  # norms behind the layers, output scales, GELU, sinks, no values, a cap
    markov: bool = False
    anchored: bool = True  # the first row predicts, too
    confidence: bool = False
    kernel: int = 0  # of dynamic convolutions
    group: int = 16  # channels that share their coefficients
    top_k: int = 0  # candidates of a selector

    @property
    def n_unread(self) -> int:
        return 0 if self.markov and self.anchored else 1


PLAIN = Kind()


@dataclass
class DFlashFile:
    path: Path
    kind: Kind
    layers: tuple[int, ...]
    tensors: dict[str, Doubles]
    d2t: NDArray[np.int64] | None
    mask: int


def write_dflash(
    path: Path, target: Path, kind: Kind = PLAIN, seed: int = 0, **keys: Any
) -> DFlashFile:
    """`keys` are written instead of the right ones; None leaves one out."""
    width, n_vocab, n_layers, vocabulary = facts_of(target)
    rng = np.random.default_rng(seed)
    last = n_layers if kind.n_taps > 2 else n_layers - 1  # llama.cpp has no row behind the last
    layers = tuple(np.linspace(1, last, kind.n_taps).astype(int).tolist())
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, kind.n_taps * width),
        "enc.output_norm.weight": (width,),
        "output_norm.weight": (width,),
    }
    for i in range(kind.n_layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in _block(kind, width).items()}
    shapes |= _ends(kind, width, n_vocab)
    values = {name: draw(rng, shape) for name, shape in shapes.items()}
    d2t = None
    if kind.n_head:
        d2t = draw_d2t(rng, n_vocab, kind.n_head, shuffled=kind.shuffled)
    mask = n_vocab - 3
    meta: dict[str, Any] = {
        "block_count": kind.n_layers, "context_length": 256, "embedding_length": width,
        "feed_forward_length": F, "attention.head_count": H, "attention.head_count_kv": HK,
        "attention.key_length": D, "attention.value_length": D, "rope.dimension_count": D,
        "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": BASE,
        "target_layers": list(layers), "block_size": BLOCK, "vocab_size": n_vocab,
        "tokenizer.ggml.mask_token_id": mask,
    }  # fmt: skip
    if kind.window:
        pattern = [True] + [False] * (kind.n_layers - 1)
        meta |= {
            "attention.sliding_window": kind.window,
            "attention.sliding_window_pattern": pattern,
        }
    if kind.causal:
        meta["attention.causal"] = True
    if kind.gemma:
        meta |= {
            "hidden_activation": "gelu_pytorch_tanh", "embedding_scale": 1.5, "logit_scale": 0.7,
            "final_logit_softcapping": 4.0, "attention.value_scale": 0.8, "attention.scale": 0.3,
        }  # fmt: skip
    if kind.markov:
        meta |= {"sample_from_anchor": kind.anchored, "has_confidence_head": kind.confidence}
    if kind.kernel:
        meta |= {"conv_kernel_size": kind.kernel, "conv_group_size": kind.group}
    if kind.top_k:
        meta |= {"selector_rank": RANK, "selector_top_k": kind.top_k}
    meta |= keys
    vocabulary["tokenizer.ggml.mask_token_id"] = meta.pop("tokenizer.ggml.mask_token_id")
    if vocabulary["tokenizer.ggml.mask_token_id"] is None:
        del vocabulary["tokenizer.ggml.mask_token_id"]
    write_drafter(path, "dflash", meta, vocabulary, values, d2t)
    doubles = {name: each.astype(np.float64) for name, each in values.items()}
    return DFlashFile(path, kind, layers, doubles, d2t, mask)


def _block(kind: Kind, width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (H * D, width),
        "attn_k.weight": (HK * D, width),
        "attn_v.weight": (HK * D, width),
        "attn_q_norm.weight": (D,),
        "attn_k_norm.weight": (D,),
        "attn_output.weight": (width, H * D),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (F, width),
        "ffn_up.weight": (F, width),
        "ffn_down.weight": (width, F),
    }
    if kind.gemma:
        del shapes["attn_v.weight"]
        shapes |= {
            "post_attention_norm.weight": (width,),
            "post_ffw_norm.weight": (width,),
            "layer_output_scale.weight": (1,),
            "attn_sinks.weight": (H,),
        }
    if kind.kernel:
        n = 2 * kind.kernel
        for layer in ("attn", "ffn"):
            shapes[f"{layer}_conv_base"] = (2, kind.kernel, width)
            shapes[f"{layer}_conv_proj.weight"] = (n * (width // kind.group), width)
    return shapes


def _ends(kind: Kind, width: int, n_vocab: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if kind.n_head:
        shapes["output.weight"] = (kind.n_head, width)
    if kind.own_embedding:
        shapes["token_embd.weight"] = (n_vocab, width)
    if kind.markov:
        shapes["markov_w1.weight"] = (n_vocab, RANK)
        shapes["markov_w2.weight"] = (kind.n_head or n_vocab, RANK)
    if kind.confidence:
        shapes["conf_proj.weight"] = (1, width + RANK)
        shapes["conf_proj.bias"] = (1,)
    if kind.top_k:
        shapes["selector_predecessor.weight"] = (n_vocab, RANK)
        shapes["selector_successor.weight"] = (n_vocab, RANK)
        shapes["selector_hidden.weight"] = (RANK, width)
    return shapes


class Definition:
    """One text, from the first token on."""

    def __init__(self, file: DFlashFile, token_embd: Doubles, output: Doubles) -> None:
        """`token_embd`, `output`: the target's."""
        self.t, self.kind, self.mask = file.tensors, file.kind, file.mask
        self.token_embd = self.t.get("token_embd.weight", token_embd)
        self.output = self.t.get("output.weight", output)
        self.ids = file.d2t if file.d2t is not None else np.arange(len(self.output))

    def draft(
        self, tokens: list[int], features: Doubles, n: int
    ) -> tuple[list[int], Doubles, list[float]]:
        """n tokens behind a text, the scores that each was taken from, and the confidences.

        `features` (T - 1, taps * width): the target's, of all tokens but the last.
        """
        t, kind = self.t, self.kind
        context = rms(features @ t["fc.weight"].T, t["enc.output_norm.weight"])
        n_rows = n + kind.n_unread
        block = [tokens[-1], *[self.mask] * (n_rows - 1)]
        x = self.token_embd[block] * (1.5 if kind.gemma else 1.0)
        for i in range(kind.n_layers):
            x = self._layer(i, x, context)
        hidden = rms(x, t["output_norm.weight"])
        logits = hidden @ self.output.T * (0.7 if kind.gemma else 1.0)
        if kind.gemma:
            logits = 4.0 * np.tanh(logits / 4.0)
        made, scores, chances = [], [], []
        before = tokens[-1]
        for row in range(kind.n_unread, n_rows):
            score = logits[row].copy()
            if kind.markov:
                score += t["markov_w2.weight"] @ t["markov_w1.weight"][before]
            if kind.confidence:
                both = np.concatenate([hidden[row], t["markov_w1.weight"][before]])
                total = t["conf_proj.weight"][0] @ both + t["conf_proj.bias"][0]
                chances.append(float(1 / (1 + np.exp(-total))))
            if kind.top_k:
                score = self._selected(score, hidden[row], before)
            before = int(self.ids[score.argmax()])
            made.append(before)
            scores.append(score)
        return made, np.stack(scores), chances

    def _selected(self, logits: Doubles, hidden: Doubles, before: int) -> Doubles:
        t, k = self.t, self.kind.top_k
        best = np.argsort(-logits, kind="stable")
        if logits[best[k - 1]] - logits[best[k]] < 5e-3:
            return np.zeros_like(logits)  # rounding may choose other candidates: a tie of all
        best = best[:k]
        gated = t["selector_predecessor.weight"][before] * (t["selector_hidden.weight"] @ hidden)
        scores = np.full_like(logits, -np.inf)
        scores[best] = logits[best] + t["selector_successor.weight"][self.ids[best]] @ gated
        return scores

    def _layer(self, i: int, x: Doubles, context: Doubles) -> Doubles:
        t, kind = self.t, self.kind
        u = rms(x, t[f"blk.{i}.attn_norm.weight"])
        a = self._convolved(i, "attn", 0, u, u)
        y = self._attention(i, a, context) @ t[f"blk.{i}.attn_output.weight"].T
        y = self._convolved(i, "attn", 1, y, u)
        if kind.gemma:
            y = rms(y, t[f"blk.{i}.post_attention_norm.weight"])
        x = x + y
        u = rms(x, t[f"blk.{i}.ffn_norm.weight"])
        y = self._convolved(i, "ffn", 1, self._ffn(i, self._convolved(i, "ffn", 0, u, u)), u)
        if not kind.gemma:
            return x + y
        y = rms(y, t[f"blk.{i}.post_ffw_norm.weight"])
        return (x + y) * t[f"blk.{i}.layer_output_scale.weight"]

    def _ffn(self, i: int, u: Doubles) -> Doubles:
        t = self.t
        gate, up = u @ t[f"blk.{i}.ffn_gate.weight"].T, u @ t[f"blk.{i}.ffn_up.weight"].T
        if self.kind.gemma:
            bent = np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3))
            gate = 0.5 * gate * (1 + bent)
        else:
            gate = gate / (1 + np.exp(-gate))
        out: Doubles = (gate * up) @ t[f"blk.{i}.ffn_down.weight"].T
        return out

    def _convolved(self, i: int, layer: str, side: int, x: Doubles, u: Doubles) -> Doubles:
        kind = self.kind
        if not kind.kernel:
            return x
        base = self.t[f"blk.{i}.{layer}_conv_base"][side]
        n_groups = x.shape[1] // kind.group
        made = (u @ self.t[f"blk.{i}.{layer}_conv_proj.weight"].T).reshape(
            len(u), 2, kind.kernel, n_groups
        )[:, side]
        out = np.zeros_like(x)
        for tap in range(min(kind.kernel, len(x))):
            factors = base[tap] + np.repeat(made[tap:, tap], kind.group, axis=1)
            out[tap:] += factors * x[: len(x) - tap]
        return out

    def _attention(self, i: int, a: Doubles, context: Doubles) -> Doubles:
        t, kind, past = self.t, self.kind, len(context)
        q = rms(
            (a @ t[f"blk.{i}.attn_q.weight"].T).reshape(-1, H, D), t[f"blk.{i}.attn_q_norm.weight"]
        )
        raw = np.concatenate([context, a]) @ t[f"blk.{i}.attn_k.weight"].T
        raw = raw.reshape(-1, HK, D)
        k = _rotate(rms(raw, t[f"blk.{i}.attn_k_norm.weight"]), np.arange(len(raw)))
        q = _rotate(q, past + np.arange(len(a)))
        if kind.gemma:
            v = rms(raw)
        else:
            v = (np.concatenate([context, a]) @ t[f"blk.{i}.attn_v.weight"].T).reshape(-1, HK, D)
        k, v = (np.repeat(x, H // HK, axis=1) for x in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * (0.3 if kind.gemma else D**-0.5)
        row, cell = past + np.arange(len(a))[:, None], np.arange(len(k))[None]
        hidden = cell > row if kind.causal else np.zeros((len(a), len(k)), bool)
        if kind.window and i == 0:
            hidden = hidden | (row - cell >= kind.window)
        scores[:, hidden] = -np.inf
        if kind.gemma:
            sinks = np.broadcast_to(t[f"blk.{i}.attn_sinks.weight"][:, None, None], (H, len(a), 1))
            scores = np.concatenate([scores, sinks], axis=2)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("hqk,khd->qhd", weights[..., : len(k)], v).reshape(len(a), H * D)
        out: Doubles = heads * (0.8 if kind.gemma else 1.0)
        return out


def _rotate(x: Doubles, positions: NDArray[np.int64]) -> Doubles:
    """Element i of the first half turns with element i of the second."""
    angles = positions[:, None] * BASE ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
