"""Random assistants for a tiny Gemma 4, and what they compute, in float64 by the formulas alone."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

from .tiny_gemma import GLOBAL, NAMES

Doubles = NDArray[np.float64]
F32 = find_format("F32")
WIDTH, HEADS, F, EPS = 32, 4, 48, 1e-6
ARCH = "gemma4-assistant"


@dataclass(frozen=True)
class Kind:
    """What differs among assistants."""

    windowed: tuple[bool, ...] = (True, True, False)  # layers
    window: int = 8
    n_vocab: int = 0  # 0: that of the target
    likely: tuple[int, ...] = ()  # tokens whose rows of the head are much larger than others


PLAIN = Kind()


@dataclass
class AssistantFile:
    path: Path
    kind: Kind
    head_dims: dict[bool, int]  # of layers with a window, and without
    bases: dict[bool, float]
    tensors: dict[str, Doubles]


def write_assistant(
    path: Path, target: Path, kind: Kind = PLAIN, seed: int = 0, **keys: Any
) -> AssistantFile:
    """`keys` are written instead of the right ones; None leaves one out."""
    with open_gguf(target) as file:
        return _write(path, file, kind, seed, keys)


def _write(
    path: Path, target: GgufFile, kind: Kind, seed: int, keys: dict[str, Any]
) -> AssistantFile:
    meta, n_layers = target.metadata, len(kind.windowed)
    n_vocab, n_target = target.tensors["token_embd.weight"].shape
    wide = meta.int("attention.key_length")
    dims = {True: meta.int("attention.key_length_swa", wide), False: wide}
    n_blocks = meta.int("block_count")
    counts = meta.per_layer_ints("attention.head_count_kv", n_blocks)
    kinds = meta.bools("attention.sliding_window_pattern", length=n_blocks)
    n_kv = dict(zip(kinds, counts, strict=True))
    bases = {True: meta.float("rope.freq_base_swa", 1e4), False: meta.float("rope.freq_base")}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (kind.n_vocab or n_vocab, WIDTH),
        "output_norm.weight": (WIDTH,),
        "nextn.pre_projection.weight": (WIDTH, 2 * n_target),
        "nextn.post_projection.weight": (n_target, WIDTH),
    }
    for i, is_windowed in enumerate(kind.windowed):
        n = HEADS * dims[is_windowed]
        for name, shape in {
            "attn_norm": (WIDTH,), "attn_q": (n, WIDTH), "attn_q_norm": (dims[is_windowed],),
            "attn_output": (WIDTH, n), "post_attention_norm": (WIDTH,), "ffn_norm": (WIDTH,),
            "ffn_gate": (F, WIDTH), "ffn_up": (F, WIDTH), "ffn_down": (WIDTH, F),
            "post_ffw_norm": (WIDTH,), "layer_output_scale": (1,),
        }.items():  # fmt: skip
            shapes[f"blk.{i}.{name}.weight"] = shape
    rng = np.random.default_rng(seed)
    values = {name: _draw(rng, shape) for name, shape in shapes.items()}
    if kind.likely:
        table = values["token_embd.weight"]
        others = [token for token in range(n_vocab) if token not in kind.likely]
        table[others] *= 0.01
    if "rope_freqs.weight" in target.tensors:
        values["rope_freqs.weight"] = target.tensors["rope_freqs.weight"].floats()
    own: dict[str, Any] = {
        "block_count": n_layers, "nextn_predict_layers": n_layers, "context_length": 256,
        "embedding_length": WIDTH, "embedding_length_out": n_target, "feed_forward_length": F,
        "attention.head_count": HEADS,
        "attention.head_count_kv": [n_kv[is_windowed] for is_windowed in kind.windowed],
        "attention.key_length": wide, "attention.value_length": wide,
        "attention.key_length_swa": dims[True], "attention.value_length_swa": dims[True],
        "attention.layer_norm_rms_epsilon": EPS, "attention.shared_kv_layers": n_layers,
        "attention.sliding_window": kind.window,
        "attention.sliding_window_pattern": list(kind.windowed),
        "rope.dimension_count": wide, "rope.dimension_count_swa": dims[True],
        "rope.freq_base": bases[False], "rope.freq_base_swa": bases[True],
        "embedding_length_per_layer_input": 0,
    } | keys  # fmt: skip
    named = {f"{ARCH}.{name}": value for name, value in own.items() if value is not None}
    vocabulary = {name: meta.entry(name) for name in meta if name.startswith("tokenizer.ggml.")}
    made = [TensorData(name, each.shape, F32, each) for name, each in values.items()]
    write_gguf(path, {"general.architecture": ARCH} | named | vocabulary, made, overwrite=True)
    doubles = {name: each.astype(np.float64) for name, each in values.items()}
    return AssistantFile(path, kind, dims, bases, doubles)


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if len(shape) == 1:
        return rng.normal(1.0, 0.2, shape).astype(np.float32)
    return rng.normal(0.0, shape[-1] ** -0.5, shape).astype(np.float32)


class TargetRows:
    """What a text leaves in the target, in float64 by `transformers`."""

    def __init__(self, hf: Any, n_shared: int, tokens: Sequence[int]) -> None:
        import transformers

        hf = deepcopy(hf).double()
        hf.config._experts_implementation = "eager"  # others are for floats
        self.tokens, self.cache = list(tokens), transformers.DynamicCache()
        with torch.no_grad():
            out = hf(
                torch.tensor([self.tokens]), cache=self.cache, use_cache=True,
                output_hidden_states=True,
            )  # fmt: skip
        self.hidden: Doubles = out.hidden_states[-1][0].numpy()  # behind the last norm
        self.table: Doubles = hf.get_input_embeddings().weight.detach().numpy()
        kinds, last = hf.config.layer_types, hf.config.num_hidden_layers - n_shared
        self.layers = {
            name == "sliding_attention": self.cache.layers[i] for i, name in enumerate(kinds[:last])
        }

    def cells(self, is_windowed: bool) -> tuple[Doubles, Doubles]:
        """Keys and values (T, heads, width) of the last layer of a kind that has its own."""
        layer = self.layers[is_windowed]
        return layer.keys[0].transpose(0, 1).numpy(), layer.values[0].transpose(0, 1).numpy()


class Definition:
    def __init__(self, file: AssistantFile, target: TargetRows) -> None:
        self.t, self.file, self.target = file.tensors, file, target

    def draft(self, n_tokens: int, n: int) -> tuple[list[int], Doubles]:
        """n tokens behind the first `n_tokens` of the text, of which the target has not run the
        last, and the logits that each was taken from."""
        position = n_tokens - 1
        hidden, token = self.target.hidden[position - 1], self.target.tokens[position]
        made, logits = [], []
        for _ in range(n):
            row, hidden = self.row(token, hidden, position)
            token = int(row.argmax())
            made.append(token)
            logits.append(row)
        return made, np.stack(logits)

    def row(self, token: int, hidden: Doubles, position: int) -> tuple[Doubles, Doubles]:
        """Logits, and the hidden row that the next one continues from."""
        table, t = self.target.table, self.t
        e = table[token] * table.shape[1] ** 0.5
        x = t["nextn.pre_projection.weight"] @ np.concatenate([e, hidden])
        for i in range(len(self.file.kind.windowed)):
            x = self._layer(i, x, position)
        x = _rms(x, t["output_norm.weight"])
        return t["token_embd.weight"] @ x, t["nextn.post_projection.weight"] @ x

    def _layer(self, i: int, x: Doubles, position: int) -> Doubles:
        def weight(name: str) -> Doubles:
            return self.t[f"blk.{i}.{name}.weight"]

        o = self._attend(i, weight("attn_q") @ _rms(x, weight("attn_norm")), position)
        a = x + _rms(weight("attn_output") @ o, weight("post_attention_norm"))
        n = _rms(a, weight("ffn_norm"))
        y = weight("ffn_down") @ (_gelu(weight("ffn_gate") @ n) * (weight("ffn_up") @ n))
        out: Doubles = (a + _rms(y, weight("post_ffw_norm"))) * weight("layer_output_scale")
        return out

    def _attend(self, i: int, q: Doubles, position: int) -> Doubles:
        is_windowed = self.file.kind.windowed[i]
        d, base = self.file.head_dims[is_windowed], self.file.bases[is_windowed]
        first = max(0, position - self.file.kind.window + 1) if is_windowed else 0
        k, v = (cells[first:position] for cells in self.target.cells(is_windowed))
        factors = np.ones(d // 2) if is_windowed else self.t["rope_freqs.weight"]
        angles = position * base ** (-np.arange(0, d, 2) / d) / factors
        q = _turn(_rms(q.reshape(HEADS, d), self.t[f"blk.{i}.attn_q_norm.weight"]), angles)
        k, v = (np.repeat(cells, HEADS // cells.shape[1], axis=1) for cells in (k, v))
        scores = np.einsum("hd,khd->hk", q, k)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out: Doubles = np.einsum("hk,khd->hd", weights, v).reshape(-1)
        return out


def _rms(x: Doubles, weight: Doubles) -> Doubles:
    out: Doubles = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight
    return out


def _gelu(x: Doubles) -> Doubles:
    out: Doubles = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return out


def _turn(heads: Doubles, angles: Doubles) -> Doubles:
    """The halves of a head turn together."""
    first, second = np.split(heads, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def as_hf(file: AssistantFile, n_target: int, window: int) -> Any:
    """The same weights in `transformers`, in float64. `window`: that of its configuration."""
    import transformers

    kinds = {True: "sliding_attention", False: "full_attention"}
    n_layers = len(file.kind.windowed)
    text = transformers.Gemma4TextConfig(
        vocab_size=len(file.tensors["token_embd.weight"]), hidden_size=WIDTH, intermediate_size=F,
        num_hidden_layers=n_layers, num_attention_heads=HEADS, num_key_value_heads=2,
        head_dim=file.head_dims[True], global_head_dim=file.head_dims[False], rms_norm_eps=EPS,
        sliding_window=window, layer_types=[kinds[each] for each in file.kind.windowed],
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
        num_kv_shared_layers=n_layers, tie_word_embeddings=True,
    )  # fmt: skip
    text._attn_implementation = "eager"
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=n_target)
    hf = transformers.Gemma4AssistantForCausalLM(config).eval().double()
    names = {f"model.{theirs}": ours for theirs, ours in GLOBAL.items()}
    names |= {"lm_head.weight": "token_embd.weight"}
    names |= {
        f"{kind}_projection.weight": f"nextn.{kind}_projection.weight" for kind in ("pre", "post")
    }
    for name, value in hf.state_dict().items():
        ours = names.get(name)
        if ours is None:
            _, _, block, inner = name.split(".", 3)
            ours = f"blk.{block}.{NAMES[inner]}"
        value.copy_(torch.from_numpy(file.tensors[ours]))
    return hf
