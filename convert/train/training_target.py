"""The target of a drafter in training: its features, its distributions and both of its ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.backend.interface import StateRoom
from ...core.backend.layers import Floats
from ...core.backend.step import StepPart, build_step
from ...core.errors import ConfigError
from ...core.models.model import block_input
from ...core.models.model_weights import Weights
from ...core.runtime import Runtime
from ...core.state.sizes import PAGE_LEN
from .draft_loss import frozen_logits
from .network_parts import normed

LEAST_LAYERS = 2  # of a target
LEAST_TEMPERATURE = 0.5  # below it too little is left to learn from


class TrainingTarget:
    """The features of a token are the rows that enter `layers`, side by side.

    Read are those of `read_layers`, the last of which is the one behind the model, so that the
    target's distributions come from them. Embedding, last norm and head stay as they are.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokens: Tensor | None = None,
        layers: Sequence[int] = (),
        temperature: float = 1.0,
    ) -> None:
        """`tokens`: those that the drafter's head knows, ascending; None: all. `layers`: that it
        reads; none: a third and two thirds up, and behind the last. `temperature`: at which both
        will write."""
        self.temperature = min(max(temperature, LEAST_TEMPERATURE), 1.0)
        h, file = runtime.model.hparams, runtime.file
        n = h.n_layers
        self.layers = tuple(layers) or (n // 3, 2 * n // 3, n)
        self.read_layers = read_layers(runtime, self.layers)
        self.width, self.n_vocab, self.eps = h.n_embd, h.n_vocab, h.eps
        # Drafters learn from texts and distributions of the target, so its licence is theirs.
        self.license = file.metadata.str("general.license", "")
        self.vocabulary = {
            name: file.metadata.entry(name)
            for name in file.metadata
            if name.startswith("tokenizer.ggml.")
        }
        head_file, stem = runtime.model.output_at
        self.embedding, self.head = (
            torch.from_numpy(part.tensors[f"{name}.weight"].floats().copy()).float()
            for part, name in ((file, "token_embd"), (head_file, stem))
        )
        self.tokens = tokens
        if tokens is not None:
            self.head = self.head[tokens].clone()
        norm = runtime.model.end_norm(Weights(file, _PlainArrays()))
        self.norm, self.is_centred = torch.from_numpy(np.array(norm.weight)), norm.centred
        self.bias = 0.0 if norm.bias is None else torch.from_numpy(np.array(norm.bias))
        self.logit_cap = runtime.model.logit_cap

    @property
    def n_features(self) -> int:
        return len(self.layers) * self.width

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]

    def last_rows(self, features: Tensor, *, is_normed: bool = True) -> Tensor:
        """What the model's head reads of these features, or what it is before the last norm."""
        hidden = features[..., -self.width :].float()
        if not is_normed:
            return hidden
        if self.is_centred:
            hidden = hidden - hidden.mean(-1, keepdim=True)
        return normed(hidden, self.norm, self.eps) + self.bias

    @torch.no_grad()
    def distributions(self, features: Tensor) -> Tensor:
        """(B, T, V): of the token behind each, among those that the head knows."""
        logits = frozen_logits(self.last_rows(features), self.head)
        if self.logit_cap:
            logits = self.logit_cap * (logits.float() / self.logit_cap).tanh()
        return (logits.float() / self.temperature).softmax(-1).to(logits.dtype)


class _PlainArrays:
    """The numbers of a file as they are."""

    def matrix(self, parts: object) -> None:
        return None

    def vector(self, values: Floats) -> Floats:
        return values


def tapped_layers(runtime: Runtime) -> tuple[int, int, int]:
    """Layers that a drafter can read wherever it runs: llama.cpp has no row behind the last layer
    of many families, and then drafts worse without a word."""
    n = runtime.model.hparams.n_layers
    return n // 3, 2 * n // 3, n - 1


def read_layers(runtime: Runtime, layers: Sequence[int]) -> tuple[int, ...]:
    """These and the one behind the model, if it is not the last of them."""
    n = runtime.model.hparams.n_layers
    found = tuple(layers) if layers[-1] == n else (*layers, n)
    if n < LEAST_LAYERS or not runtime.model.taps.issuperset(map(block_input, found)):
        raise ConfigError(
            f"{runtime.file.label}: no drafter can be trained for this model: it would read what "
            f"enters layers {', '.join(map(str, found))}, which cannot be had of these {n}"
        )
    return found


def read_features(
    runtime: Runtime,
    layers: Sequence[int],
    texts: Sequence[Sequence[int]],
    scale: Tensor | float = 1.0,
) -> Iterator[Tensor]:
    """(T, n_features) of each text times `scale`, in half precision."""
    longest = max(map(len, texts))
    if longest > runtime.n_ctx:
        raise ConfigError(f"a text of {longest} tokens is longer than the context")
    names = [block_input(layer) for layer in layers]
    pages = range(-(-longest // PAGE_LEN))
    room = StateRoom(n_pages=len(pages), page_len=PAGE_LEN, n_slots=1, window=1)
    state = runtime.backend.new_state(runtime.model.state_shape.without_windows(), room)
    run = runtime.backend.compile(
        runtime.model.forward, state, max_rows=longest, taps=frozenset(names)
    )
    for tokens in texts:
        found = run(build_step([StepPart(tokens, 0, pages)])).taps
        rows = [torch.from_numpy(found[name].copy()) for name in names]
        yield (torch.cat(rows, 1) * scale).half()


def balance(features: Sequence[Tensor], width: int) -> Tensor:
    """Factors (n_features,) that bring each tapped row to a mean square of one: the rows of late
    layers are many times as long as those of early ones."""
    squares = torch.stack([one.float().square().mean(0) for one in features]).mean(0)
    return squares.view(-1, width).mean(1).rsqrt().repeat_interleave(width)
