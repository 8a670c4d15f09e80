"""What networks in files of their own have in common: their target, its layers, and both ends.

Embedding and head may be the target's. A head over part of the vocabulary comes with `d2t`, the
token of each of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelError
from ..hparams import MAX_WIDTH
from .network import HeadRows

if TYPE_CHECKING:
    from ...backend.interface import Backend
    from ...backend.layers import Matrix
    from ...backend.step import Ints
    from ..hparams import Hparams
    from ..model import Model
    from ..model_weights import Weights


Order = np.ndarray[Any, np.dtype[np.int64]]


class FileEnds:
    """Embedding and head of a network."""

    def __init__(self, target: Model, weights: Weights, h: Hparams) -> None:
        self.token_embd = target.token_embd
        self.is_as_wide = h.n_embd == target.hparams.n_embd  # as the target's embedding
        if weights.has("token_embd"):
            self.token_embd = weights.matrix(h.n_embd, {"token_embd": h.n_vocab})
        self.vocab_subset: Ints | None = None
        self.output = target.output
        self._rows = HeadRows(*target.output_at, h.n_vocab, h.n_embd)
        self.order: Order | None = None  # of the head's rows in the file, if it is short
        if weights.has_tensor("d2t"):
            tokens = _draft_tokens(weights, h.n_vocab)
            self.order = np.argsort(tokens, kind="stable")
            self.vocab_subset = tokens[self.order].astype(np.int32)
            self.output = weights.matrix(
                h.n_embd, {"output": len(tokens)}, row_orders={"output": self.order}
            )
        elif weights.has("output"):
            self.output = weights.matrix(h.n_embd, {"output": h.n_vocab})
            self._rows = HeadRows(weights.file, "output", h.n_vocab, h.n_embd)

    def chosen(self, backend: Backend, vocab_subset: Ints) -> Matrix:
        """The head's rows of these tokens, if it is whole."""
        return self._rows.chosen(backend, vocab_subset)


def check_target(
    target: Model, weights: Weights, h: Hparams, kind: str, *more: tuple[bool, str]
) -> None:
    """A ModelError says with numbers why the network is not one for the target. `more`: what else
    would be wrong, and how to say it."""
    meta, t = weights.file.metadata, target.hparams
    shares = [
        name for name, stem in (("embedding", "token_embd"), ("head", "output"))
        if not weights.has(stem)
    ]  # fmt: skip
    n_target = meta.int("target_hidden_size", t.n_embd, low=1, high=MAX_WIDTH)
    for is_wrong, what in (
        *more,
        (n_target != t.n_embd, f"its target is {n_target} wide, the model {t.n_embd}"),
        (
            bool(shares) and h.n_embd != t.n_embd,
            f"it is {h.n_embd} wide and has no {' and no '.join(shares)} of its own, the model is "
            f"{t.n_embd} wide",
        ),
        (
            h.n_vocab != t.n_vocab,
            f"its vocabulary has {h.n_vocab} rows, the model's {t.n_vocab}",
        ),
    ):
        if is_wrong:
            raise ModelError(
                f"{weights.file.label}: this {kind} drafter is not one for the model: {what}"
            )


def target_layers(target: Model, weights: Weights) -> tuple[int, ...]:
    """Those whose inputs are the features, in their order: as many as `fc` joins."""
    n, meta, label = target.hparams.n_layers, weights.file.metadata, weights.file.label
    layers, key = tuple(meta.ints("target_layers")), meta.full_key("target_layers")
    if not 0 < len(layers) <= n + 1 or not all(0 <= layer <= n for layer in layers):
        raise ModelError(
            f"{label}: {key} is {list(layers)[:8]}, expected layers of the model, 0 to {n}"
        )
    fc, width = weights.file.tensors.get("fc.weight"), target.hparams.n_embd
    if fc is not None and fc.shape[-1] != len(layers) * width:
        raise ModelError(
            f"{label}: {key} names {len(layers)} layers of {width}, and fc.weight joins rows of "
            f"{fc.shape[-1]}"
        )
    return layers


def _draft_tokens(weights: Weights, n_vocab: int) -> Order:
    """Ids of the tokens that the head's rows stand for."""
    tokens = weights.ints("d2t")
    if not len(tokens) or tokens.min() < 0 or tokens.max() >= n_vocab:
        raise ModelError(
            f"{weights.file.label}: d2t must hold token ids below {n_vocab}, one for each row of "
            "the head"
        )
    if len(np.unique(tokens)) < len(tokens):
        raise ModelError(f"{weights.file.label}: d2t names a token twice")
    return tokens
