"""Whether a drafter is one for a model, by the sizes of both."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...core.gguf.printable import listing
from .drafter_shapes import DrafterDescription

# With a row for each token of the target.
_TABLES: Final = (
    "token_embd.weight", "markov_w1.weight", "selector_predecessor.weight",
    "selector_successor.weight",
)  # fmt: skip


class TargetSizes(Struct, frozen=True):
    label: str
    architecture: str
    n_layers: int
    n_embd: int
    n_vocab: int


def fit_faults(described: DrafterDescription, target: TargetSizes) -> list[str]:
    """One line each, with the numbers of both."""
    label, layers = target.label, described.layers
    wanted = described.target_architecture
    is_whole = described.n_head == described.n_vocab  # a head for all tokens
    has_table = is_whole or any(name in described.required for name in _TABLES)
    return [
        text
        for is_wrong, text in (
            (
                wanted and wanted != target.architecture,
                f"it drafts for a {wanted}, {label} is a {target.architecture}",
            ),
            (
                described.target_width != target.n_embd,
                f"it reads rows of {described.target_width}, {label} has rows of {target.n_embd}",
            ),
            (
                has_table and described.n_vocab != target.n_vocab,
                f"its vocabulary has {described.n_vocab} rows, that of {label} {target.n_vocab}",
            ),
            (
                any(layer > target.n_layers for layer in layers),
                f"it reads layers {listing(list(map(str, layers)))}, {label} has {target.n_layers}",
            ),
        )
        if is_wrong
    ]
