"""Rows that the tokens themselves add to every layer: a table's, and a projection of the embedding.

The key `embedding_length_per_layer_input` is their width; 0 or none: the model has no such rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.layers import GELU_GATE

if TYPE_CHECKING:
    from ..backend.interface import Ops, Rows
    from ..backend.step import Step
    from .hparams import Hparams
    from .model_weights import Weights

MAX_WIDTH = 1 << 16


def input_width(weights: Weights) -> int:
    return weights.file.metadata.int("embedding_length_per_layer_input", 0, high=MAX_WIDTH)


class LayerInputs:
    """Those of all layers, side by side, (T, n_layers * width)."""

    def __init__(self, hparams: Hparams, weights: Weights, width: int) -> None:
        h, n = hparams, width * hparams.n_layers
        self.width = width
        self.per_layer_token_embd = weights.matrix(n, {"per_layer_token_embd": h.n_vocab})
        self.per_layer_model_proj = weights.matrix(h.n_embd, {"per_layer_model_proj": n})
        # The projection is to be divided by sqrt(n_embd) first, which only moves epsilon.
        self.per_layer_proj_norm = weights.norm("per_layer_proj_norm", width, h.eps * h.n_embd)

    def __call__(self, ops: Ops, x: Rows, step: Step) -> Rows:
        projected = ops.matmul(ops.pack(x), self.per_layer_model_proj)
        inputs = ops.norm_slices(projected, self.per_layer_proj_norm)
        looked_up = ops.embed(self.per_layer_token_embd, step, self.width**0.5, takes_rows=False)
        return ops.add(inputs, looked_up, 2**-0.5)


class LayerInput:
    """What one layer makes of its own."""

    def __init__(self, hparams: Hparams, weights: Weights, block: int, width: int) -> None:
        h = hparams
        self.column = block * width
        self.inp_gate = weights.matrix(h.n_embd, {"inp_gate": width})
        self.proj = weights.matrix(width, {"proj": h.n_embd})
        self.post_norm = weights.norm("post_norm", h.n_embd, h.eps)

    def __call__(self, ops: Ops, x: Rows, inputs: Rows, scale: float) -> Rows:
        gates = ops.matmul(ops.pack(x), self.inp_gate)
        inner = ops.gate_by(gates, inputs, self.column, GELU_GATE)
        return ops.add_norm(x, ops.matmul(inner, self.proj), self.post_norm, scale)
