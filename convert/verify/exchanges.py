"""Whether a head that hardly drafts anything right does so with two of its parts exchanged.

Swapped halves of a projection, or keys for values, have the right shapes, and numbers like others:
only drafting shows them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import Tensor
from ...core.gguf.writer import TensorData, write_gguf
from ...core.load_runtime import load_runtime
from ...core.speculation.options import MTP, SpecOptions
from ...core.try_drafter import try_drafter
from ..files.gguf_facts import GgufFacts
from .verdict import TrialFacts

_POOR: Final = 0.1  # share of drafted tokens that are accepted
_GOOD: Final = 0.2
_PAIRS: Final = (("attn_k", "attn_v"), ("nextn.enorm", "nextn.hnorm"))

Tensors = dict[str, Tensor]


class Exchange(NamedTuple):
    text: str
    apply: Callable[[Tensors], None]


def is_poor(trial: TrialFacts) -> bool:
    return trial.draft_n >= 30 and trial.draft_n_accepted < _POOR * trial.draft_n


def find_exchange(model: Path, head: GgufFile) -> str | None:
    """What has to be exchanged in the `head`, a file that has one, for many more drafted tokens of
    two texts to be accepted; None if nothing helps. Loads the model for each attempt."""
    found: tuple[float, str] | None = None
    for exchange in _exchanges(head):
        share = _accepted(model, head, exchange)
        if share >= _GOOD and (found is None or share > found[0]):
            found = share, exchange.text
    return (
        None if found is None else f"{found[1]}: {found[0]:.0%} of drafted tokens are accepted so"
    )


def _exchanges(head: GgufFile) -> Iterator[Exchange]:
    blocks = [f"blk.{n}" for n in GgufFacts(head, has_numbers=True).marked]
    projections = [head.tensors.get(f"{block}.nextn.eh_proj.weight") for block in blocks]
    whole = [t for t in projections if t is not None and _has_halves(t)]
    if whole:

        def exchange_halves(tensors: Tensors) -> None:
            for tensor in whole:
                tensors[tensor.name] = _with_halves_exchanged(tensor)

        names = ", ".join(tensor.name for tensor in whole)
        yield Exchange(f"the halves of {names}", exchange_halves)
    for first, second in _PAIRS:
        pairs = [
            (f"{block}.{first}.weight", f"{block}.{second}.weight")
            for block in blocks
            if _are_alike(head.tensors, f"{block}.{first}.weight", f"{block}.{second}.weight")
        ]
        if pairs:
            yield Exchange(" and ".join(pairs[0]), _exchanging(pairs))


def _exchanging(pairs: list[tuple[str, str]]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        for first, second in pairs:
            one, other = tensors[first], tensors[second]
            tensors[first] = replace(other, name=first)
            tensors[second] = replace(one, name=second)

    return apply


def _are_alike(tensors: Tensors, first: str, second: str) -> bool:
    one, other = tensors.get(first), tensors.get(second)
    if one is None or other is None:
        return False
    return (one.shape, one.format.name) == (other.shape, other.format.name)


def _has_halves(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and tensor.shape[1] % (2 * tensor.format.block_size) == 0


def _with_halves_exchanged(tensor: Tensor) -> Tensor:
    rows = tensor.data.reshape(tensor.shape[0], 2, -1)
    return replace(tensor, data=np.ascontiguousarray(rows[:, ::-1]).reshape(-1))


def _accepted(model: Path, head: GgufFile, exchange: Exchange) -> float:
    """Share of drafted tokens, with the exchange in a file of the head alone."""
    prefixes = tuple(f"blk.{n}." for n in GgufFacts(head, has_numbers=True).marked)
    tensors = {name: t for name, t in head.tensors.items() if name.startswith(prefixes)}
    exchange.apply(tensors)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exchanged.gguf"
        keys = {key: head.metadata.typed(key) for key in head.metadata}
        data = [TensorData(t.name, t.shape, t.format, t.data) for t in tensors.values()]
        write_gguf(path, keys, data)
        with load_runtime(model, "cpu", draft=path, spec=SpecOptions()) as runtime:
            found = try_drafter(runtime, MTP, keeps=False)
    return found.accepted / found.drafted if found.drafted else 0.0
