"""The target of a drafter in training: its features, its distributions and both of its ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...core.backend.interface import StateRoom
from ...core.backend.step import StepPart, build_step
from ...core.errors import ConfigError
from ...core.models.model import block_input
from ...core.runtime import Runtime
from ...core.state.sizes import PAGE_LEN
from .draft_loss import frozen_logits
from .network_parts import normed


class TrainingTarget:
    """The features of a token are the rows that enter `layers`, side by side.

    The last of these layers is the one behind the model, so that the target's distributions come
    from the features. Embedding, last norm and head stay as they are.
    """

    def __init__(self, runtime: Runtime) -> None:
        h, file = runtime.model.hparams, runtime.file
        n = h.n_layers
        self.layers = (n // 3, 2 * n // 3, n)
        self.width, self.n_vocab, self.eps = h.n_embd, h.n_vocab, h.eps
        # Drafters learn from texts and distributions of the target, so its licence is theirs.
        self.license = file.metadata.str("general.license", "")
        self.vocabulary = {
            name: file.metadata.entry(name)
            for name in file.metadata
            if name.startswith("tokenizer.ggml.")
        }
        head_file, stem = runtime.model.output_at
        self.embedding, self.norm, self.head = (
            torch.from_numpy(part.tensors[f"{name}.weight"].floats().copy()).float()
            for part, name in ((file, "token_embd"), (file, "output_norm"), (head_file, stem))
        )

    @property
    def n_features(self) -> int:
        return len(self.layers) * self.width

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]

    @torch.no_grad()
    def distributions(self, features: Tensor) -> Tensor:
        """(B, T, V): of the token behind each."""
        hidden = normed(features[..., -self.width :].float(), self.norm, self.eps)
        logits = frozen_logits(hidden, self.head)
        return logits.float().softmax(-1).to(logits.dtype)


def read_features(
    runtime: Runtime, layers: Sequence[int], texts: Sequence[Sequence[int]]
) -> Iterator[Tensor]:
    """(T, n_features) of each text, in half precision."""
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
        yield torch.cat(rows, 1).half()


def balance(features: Sequence[Tensor], width: int) -> Tensor:
    """Factors (n_features,) that bring each tapped row to a mean square of one: the rows of late
    layers are many times as long as those of early ones."""
    squares = torch.stack([one.float().square().mean(0) for one in features]).mean(0)
    return squares.view(-1, width).mean(1).rsqrt().repeat_interleave(width)
