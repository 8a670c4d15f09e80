"""A drafter that the project does not know: a network of its own over three taps of the target.

Built as EAGLE3 is: an encoder over three hidden rows, one attention layer with keys and values of
its own, a head over part of the vocabulary. Its weights are random, in a file beside the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from nextn.core.backend.interface import Output
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.models.drafters.network import DraftNetwork
from nextn.core.models.model import Model, block_input, check_taps
from nextn.core.models.model_weights import Weights
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.setting import Setting

NAME = "three-taps"
N_HEAD = 128  # tokens that the head knows
STEP = 2  # between their ids
FEATURES = "features"  # tap of the encoder, for tests


class ThreeTaps(DraftNetwork):
    tap = "three-taps.hidden"

    def __init__(self, target: Model, weights: Weights) -> None:
        h, n = target.hparams, target.hparams.n_layers
        self.taps = (block_input(1), block_input(n // 2), block_input(n))
        self.n_embd, self.n_features = h.n_embd, 3 * h.n_embd
        self.vocab_subset = np.arange(0, STEP * N_HEAD, STEP, dtype=np.int32)
        self.layout = target.layout.copy()
        self.layout.block = n - 1  # an attention layer in every family
        self.block = target.block_builder(weights)(weights.scope(f"blk.{n - 1}"), self.layout)
        self.token_embd = target.token_embd
        self.fc = weights.matrix(3 * h.n_embd, {"fc": h.n_embd})
        self.fc_norm = weights.norm("fc_norm", 3 * h.n_embd, h.eps)
        self.embd_norm = weights.norm("embd_norm", h.n_embd, h.eps)
        self.hidden_norm = weights.norm("hidden_norm", h.n_embd, h.eps)
        self.join = weights.matrix(2 * h.n_embd, {"join": h.n_embd})
        self.output_norm = weights.norm("output_norm", h.n_embd, h.eps)
        self.output = weights.matrix(h.n_embd, {"output": N_HEAD})

    def encode(self, ops: Any, step: Any, state: Any, wanted: frozenset[str]) -> Output:
        x = ops.given_rows(step, self.n_features)
        return Output(ops.head(ops.norm(x, self.fc_norm), self.fc))

    def forward(self, ops: Any, step: Any, state: Any, wanted: frozenset[str]) -> Output:
        check_taps(wanted, {self.tap})
        hidden, e = ops.given_rows(step, self.n_embd), ops.embed(self.token_embd, step)
        x = ops.matmul(ops.norm_pair(e, self.embd_norm, hidden, self.hidden_norm), self.join)
        x = self.block(ops, x, step, state)
        logits = ops.head(ops.norm(ops.out_rows(x, step), self.output_norm), self.output)
        return Output(logits, {self.tap: ops.keep(x)} if wanted else {})

    def shortened(self, backend: Any, vocab_subset: Any) -> ThreeTaps:
        raise AssertionError("its head is short already")


def make(setting: Setting) -> HiddenStateDrafter:
    model, target = setting.target.model, setting.target.file
    if NAME not in model.drafters:
        file = open_gguf(file_beside(target.path))
        network = ThreeTaps(model, Weights(file, setting.backend))
        model.add_drafter(NAME, [network], network.layout)
    return HiddenStateDrafter(NAME, model.drafters[NAME], setting)


def file_beside(path: Path) -> Path:
    return path.with_suffix(".three-taps.gguf")


def write_network(target: GgufFile, model: Model, seed: int = 0) -> None:
    """Random weights; the layer is shaped like the target's last attention layer."""
    rng, d, n = np.random.default_rng(seed), model.hparams.n_embd, model.hparams.n_layers
    shapes = {
        name: tensor.shape
        for name, tensor in target.tensors.items()
        if name.startswith(f"blk.{n - 1}.")
    }
    shapes |= {
        "fc.weight": (d, 3 * d), "fc_norm.weight": (3 * d,), "embd_norm.weight": (d,),
        "hidden_norm.weight": (d,), "join.weight": (d, 2 * d), "output_norm.weight": (d,),
        "output.weight": (N_HEAD, d),
    }  # fmt: skip
    writer = gguf.GGUFWriter(file_beside(target.path), "three-taps")
    for name, shape in shapes.items():
        if len(shape) == 1:
            values = rng.normal(1.0, 0.2, shape)
        else:
            values = rng.normal(0.0, shape[-1] ** -0.5, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
