"""DFlash, DFlash2 and DSpark, GGUF architecture `dflash`: a block of tokens in one pass.

An encoder joins the features of a row, and each layer makes a key and a value of what comes out:
that is all the network keeps of accepted rows. A draft is a block: the newest token, then masks;
its rows see all these cells and each other, and each predicts the token at its own place, or the
one behind. DSpark corrects the logits of a row by the token before it, one row after the other, and
may say how sure it is.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from ...backend.interface import Output, Taps
from ...backend.layers import GELU_GATE, SILU_GATE, Gate, RopePairs
from ...errors import ModelError
from ..ffn import DenseFfn
from ..hparams import Hparams
from ..model import block_input
from ..rope import build_rope
from ..self_attention import AttentionTraits, SelfAttention
from ..window_keys import read_windows
from .dflash_convolution import BlockConvolution
from .dflash_selector import Selector
from .file_ends import FileEnds, check_target, target_layers
from .markov_head import MarkovHead
from .network import BlockNetwork, RowCorrection

if TYPE_CHECKING:
    from ...backend.interface import Backend, Ops, Packed, Rows, State
    from ...backend.layers import Norm
    from ...backend.step import Ints, Step
    from ..layout import Layout
    from ..model import Model
    from ..model_weights import Weights

MAX_BLOCK = 65  # rows
BLOCK_SIZE = 16  # where the file does not say
HIDDEN = "dflash.hidden"  # tap: rows behind the last norm


class DFlash(BlockNetwork):
    def __init__(self, target: Model, weights: Weights, layout: Layout) -> None:
        meta, n_target = weights.file.metadata, target.hparams.n_embd
        h = Hparams.from_gguf(weights.file, target.hparams.n_vocab)
        check_target(target, weights, h, "DFlash")
        layers = target_layers(target, weights)
        self.taps = tuple(map(block_input, layers))
        self.n_embd = self.n_features = len(layers) * n_target
        block_size = meta.int("block_size", BLOCK_SIZE, low=2, high=MAX_BLOCK)
        self.mask_token = meta.int("tokenizer.ggml.mask_token_id", high=h.n_vocab - 1)
        self.fc = weights.matrix(self.n_features, {"fc": h.n_embd})
        self.enc_output_norm = weights.norm("enc.output_norm", h.n_embd, h.eps)
        self.blk = _blocks(h, weights, layout)
        self.embedding_scale = meta.float("embedding_scale", 1.0, low=1e-6)
        scale = meta.float("logit_scale", 1.0, low=1e-6)
        self.output_norm = weights.norm("output_norm", h.n_embd, h.eps, scale=scale)
        self.logit_cap = meta.float("final_logit_softcapping", 0.0, low=0.0)
        self.ends = FileEnds(target, weights, h)
        self.vocab_subset, self.output = self.ends.vocab_subset, self.ends.output
        self.n_unread = 1
        self.correction: RowCorrection | None = None
        if weights.has("selector_hidden"):
            self.correction = Selector(weights, h, self.ends, HIDDEN, scale)
        elif weights.has("markov_w1"):
            self.n_unread = not meta.bool("sample_from_anchor", True)
            self.correction = MarkovHead(weights, h, self.ends, HIDDEN, scale)
        self.most_drafted = block_size - self.n_unread

    def read(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        joined = ops.matmul(ops.pack(ops.given_rows(step, self.n_features)), self.fc)
        context = ops.norm(joined, self.enc_output_norm)
        for block in self.blk:
            block.append(ops, context, step, state)
        # Of no row: every pass ends in a head.
        last = ops.norm(ops.out_rows(joined, step), self.enc_output_norm)
        return Output(ops.head(last, self.output))

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        x = ops.embed(self.ends.token_embd, step, self.embedding_scale)
        for block in self.blk:
            x = block(ops, x, step, state)
        taps = {HIDDEN: ops.norm_rows(x, self.output_norm)} if HIDDEN in wanted else {}
        last = ops.norm(ops.out_rows(x, step), self.output_norm)
        return Output(ops.head(last, self.output, self.logit_cap), taps)

    def shortened(self, backend: Backend, vocab_subset: Ints) -> DFlash:
        twin = copy(self)
        twin.vocab_subset, twin.output = vocab_subset, self.ends.chosen(backend, vocab_subset)
        if self.correction is not None:
            twin.correction = self.correction.shortened(backend, vocab_subset)
        return twin


def _blocks(h: Hparams, weights: Weights, layout: Layout) -> list[DFlashBlock]:
    meta = weights.file.metadata
    windows, gate = read_windows(meta, h), _gate(weights)
    blocks = []
    for layout.block in range(h.n_layers):
        scope = weights.scope(f"blk.{layout.block}")
        rope = build_rope(
            scope if scope.has("rope_freqs") else weights, h.key_dim, RopePairs.HALVES
        )
        traits = AttentionTraits(
            head_norms=None,
            sinks=None,
            window=windows[layout.block],
            hides_first=True,
            causal=meta.bool("attention.causal", False),
            value_scale=meta.float("attention.value_scale", 1.0, low=1e-6),
            norms_values=not scope.has("attn_v"),
        )
        mixer = SelfAttention(h, scope, layout, rope, traits)
        blocks.append(DFlashBlock(h, scope, mixer, DenseFfn(h, scope, layout.block, gate)))
    return blocks


def _gate(weights: Weights) -> Gate:
    meta, key = weights.file.metadata, "hidden_activation"
    name = meta.str(key, "silu")
    if name == "silu":
        return SILU_GATE
    if name.startswith("gelu"):
        return GELU_GATE
    raise ModelError(
        f"{weights.file.label}: {meta.full_key(key)} is {name!r}, expected silu or gelu"
    )


class DFlashBlock:
    """Norm, attention, norm, feed-forward layer; with norms behind these if the file has them, and
    with convolutions before and behind them (DFlash2)."""

    def __init__(
        self, hparams: Hparams, weights: Weights, mixer: SelfAttention, ffn: DenseFfn
    ) -> None:
        h, self.mixer, self.ffn = hparams, mixer, ffn
        self.attn_norm, self.ffn_norm = (
            weights.norm(name, h.n_embd, h.eps) for name in ("attn_norm", "ffn_norm")
        )
        self.post_attention_norm, self.post_ffw_norm = (
            weights.norm(name, h.n_embd, h.eps) if weights.has(name) else None
            for name in ("post_attention_norm", "post_ffw_norm")
        )
        self.attn_conv, self.ffn_conv = (
            BlockConvolution(h, weights, layer) if weights.has(f"{layer}_conv_proj") else None
            for layer in ("attn", "ffn")
        )
        self.output_scale = 1.0
        if weights.has("layer_output_scale"):
            self.output_scale = float(weights.floats("layer_output_scale.weight", 1)[0])

    def append(self, ops: Ops, context: Packed, step: Step, state: State) -> None:
        """Keys and values of accepted rows."""
        rows = ops.matmul(context, self.mixer.attn_qkv)
        ops.append(rows, self.mixer.attention, state, step)

    def __call__(self, ops: Ops, x: Rows, step: Step, state: State) -> Rows:
        def attend(a: Packed) -> Rows:
            return self.mixer(ops, a, None, step, state)

        y = _convolved(ops, x, self.attn_norm, self.attn_conv, attend, step)
        x = _added(ops, x, y, self.post_attention_norm)
        y = _convolved(ops, x, self.ffn_norm, self.ffn_conv, lambda a: self.ffn(ops, a, None), step)
        return _added(ops, x, y, self.post_ffw_norm, self.output_scale)


def _convolved(
    ops: Ops,
    x: Rows,
    norm: Norm,
    conv: BlockConvolution | None,
    layer: Callable[[Packed], Rows],
    step: Step,
) -> Rows:
    """What a layer makes of normed rows, with the convolutions around it, if there are any."""
    if conv is None:
        return layer(ops.norm(x, norm))
    entering = ops.norm_rows(x, norm)
    factors = conv.factors(ops, entering)
    y = layer(ops.pack(conv.enter(ops, entering, factors, step)))
    return conv.leave(ops, y, factors, step)


def _added(ops: Ops, x: Rows, y: Rows, norm: Norm | None, scale: float = 1.0) -> Rows:
    return ops.add(x, y, scale) if norm is None else ops.add_norm(x, y, norm, scale)
