"""Gemma 4's assistant, GGUF architecture `gemma4-assistant`: a few narrow layers of Gemma 4, which
read the keys and values of their target and leave none.

A layer reads the target's last layer of its kind that keeps its own: with a window, or without. All
rows of a draft are at the position of the newest token, whose own cell is not there yet, and see
the same cells; each continues from the hidden row of the one before, as wide as the target's.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ...backend.interface import Output, Taps
from ...backend.layers import RopePairs
from ...errors import ModelError
from ..gemma4 import Gemma4, Gemma4Block
from ..hparams import MAX_WIDTH, Hparams
from ..rope import WINDOWED_ROPE, build_rope
from ..self_attention import AttentionTraits, SelfAttention
from ..window_keys import read_windows
from .mtp_network import H_NEXTN
from .network import DraftNetwork, HeadRows

if TYPE_CHECKING:
    from ...backend.interface import Backend, Ops, State
    from ...backend.layers import Attention
    from ...backend.step import Ints, Step
    from ..layout import Layout
    from ..model import Model
    from ..model_weights import Weights

TAP = "gemma4-assistant.hidden"


class Gemma4Assistant(DraftNetwork):
    taps, tap, encode, fills_cells = (H_NEXTN,), TAP, None, False

    def __init__(self, target: Model, weights: Weights, layout: Layout) -> None:
        if not isinstance(target, Gemma4):
            raise _misfit(weights, f"it is for gemma4, the model is {target.hparams.architecture}")
        h = Hparams.from_gguf(weights.file, target.hparams.n_vocab, n_nextn=0)
        _check_sizes(target, weights, h)
        self.vocab_subset: Ints | None = None
        self.n_embd = self.n_features = target.hparams.n_embd
        self.token_embd, self.embedding_scale = target.token_embd, target.embedding_scale
        self.from_token, self.from_hidden = weights.columns(
            "nextn.pre_projection", h.n_embd, [self.n_embd, self.n_embd]
        )
        self.blk = _blocks(target, weights, h, layout)
        self.output_norm = weights.norm("output_norm", h.n_embd, h.eps)
        self.post_projection = weights.matrix(h.n_embd, {"nextn.post_projection": self.n_embd})
        self.output = weights.matrix(h.n_embd, {"token_embd": h.n_vocab})
        self._rows = HeadRows(weights.file, "token_embd", h.n_vocab, h.n_embd)
        weights.leave_out("masked_embd_")  # a head over clusters of tokens, beside the whole one

    def forward(self, ops: Ops, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        e = ops.embed(self.token_embd, step, self.embedding_scale)
        x = ops.matmul(ops.pack(e), self.from_token)
        hidden = ops.given_rows(step, self.n_embd)
        x = ops.matmul(ops.pack(hidden), self.from_hidden, add_to=x)
        for block in self.blk:
            x = block(ops, x, step, state)
        logits = ops.head(ops.norm(ops.out_rows(x, step), self.output_norm), self.output)
        if TAP not in wanted:
            return Output(logits)
        hidden = ops.matmul(ops.norm(x, self.output_norm), self.post_projection)
        return Output(logits, {TAP: ops.keep(hidden)})

    def shortened(self, backend: Backend, vocab_subset: Ints) -> Gemma4Assistant:
        twin = copy(self)
        twin.vocab_subset, twin.output = vocab_subset, self._rows.chosen(backend, vocab_subset)
        return twin


def _blocks(target: Gemma4, weights: Weights, h: Hparams, layout: Layout) -> list[Gemma4Block]:
    meta, windows = weights.file.metadata, read_windows(weights.file.metadata, h)
    narrow = meta.int("attention.key_length_swa", h.key_dim, low=1, high=MAX_WIDTH)
    wide_rope = build_rope(weights, h.key_dim, RopePairs.HALVES)
    narrow_rope = build_rope(weights, narrow, RopePairs.HALVES, WINDOWED_ROPE)
    made = []
    for layout.block, window in enumerate(windows):
        head_dim, rope = (narrow, narrow_rope) if window else (h.key_dim, wide_rope)
        source = _source(target, weights, h, layout.block, head_dim, is_windowed=bool(window))
        traits = AttentionTraits(
            head_norms=True,
            window=_seen(weights, min(window, source.window)) if window else 0,
            head_dim=head_dim,
            scale=1.0,
            shared_layer=source.layer,
        )
        scope = weights.scope(f"blk.{layout.block}")
        mixer = SelfAttention(h, scope, layout, rope, traits)
        made.append(Gemma4Block(h, scope, mixer, layout.block, None))
    return made


def _source(
    target: Gemma4, weights: Weights, h: Hparams, block: int, head_dim: int, *, is_windowed: bool
) -> Attention:
    """The layer of the target whose cells this one reads."""
    found = target.newest.get(is_windowed)
    if found is None:
        kind = "with" if is_windowed else "without"
        raise _misfit(
            weights, f"its block {block} reads a layer {kind} a window, the model has none"
        )
    for what, here, there in (
        ("{} key-value heads", h.n_kv_heads[block], found.n_kv_heads),
        ("heads of {}", head_dim, found.key_dim),
    ):
        if here != there:
            raise _misfit(
                weights, f"its block {block} reads {what.format(here)}, the model has {there}"
            )
    return found


def _seen(weights: Weights, window: int) -> int:
    """Cells in the window of a row whose own one is not there."""
    if window < 2:
        raise _misfit(weights, f"a row with a window of {window} sees no cell but its own")
    return window - 1


def _check_sizes(target: Gemma4, weights: Weights, h: Hparams) -> None:
    meta, t = weights.file.metadata, target.hparams
    n_target = meta.int("embedding_length_out", t.n_embd, low=1, high=MAX_WIDTH)
    if n_target != t.n_embd:
        raise _misfit(weights, f"its target is {n_target} wide, the model {t.n_embd}")
    if h.n_vocab != t.n_vocab:
        raise _misfit(weights, f"its vocabulary has {h.n_vocab} rows, the model's {t.n_vocab}")


def _misfit(weights: Weights, what: str) -> ModelError:
    return ModelError(
        f"{weights.file.label}: this Gemma 4 assistant is not one for the model: {what}"
    )
