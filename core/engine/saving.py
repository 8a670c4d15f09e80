"""A sequence as a `SequenceSnapshot`, and the checks before one is believed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ..backend.interface import SlotImage
from ..errors import ConfigError, FileFormatError
from ..generation import GenerateParams
from ..sampling.params import SamplingParams
from ..speculation.per_text import TextSpec
from ..state.snapshot import SequenceSnapshot
from ..state.store import StateStore
from .sequence import Sequence

SAMPLER: Final = "sampler"
_REQUEST: Final = "request"
_DRAFTER: Final = "drafter."


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a snapshot can be used: only where all of this is the same."""

    model: str
    backend: str
    window: int


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    params: GenerateParams
    index: int

    def write(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, snapshot: SequenceSnapshot) -> Request:
        try:
            fields = _with_tuples(json.loads(snapshot.blobs[_REQUEST]))
            params = fields["params"]
            sampling = SamplingParams(**params.pop("sampling"))
            spec = TextSpec(**params.pop("spec", {}))
            thinking = params.pop("thinking_spec", None)
            params["thinking_spec"] = None if thinking is None else TextSpec(**thinking)
            index = fields["index"]
            if not isinstance(index, int) or not 0 <= index < 1 << 32:
                raise ConfigError(f"sequence index {index!r}")
            return cls(GenerateParams(sampling, spec=spec, **params), index)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, ConfigError):
            raise FileFormatError("the saved sequence holds no valid request") from None


def take(
    origin: Origin, sequence: Sequence, image: SlotImage, drafter: dict[str, bytes]
) -> SequenceSnapshot:
    state = sequence.state
    blobs = {f"{_DRAFTER}{name}": blob for name, blob in drafter.items()}
    blobs[_REQUEST] = Request(sequence.params, sequence.sampler.sequence).write()
    blobs[SAMPLER] = sequence.sampler.save()
    return SequenceSnapshot(
        origin.model,
        origin.backend,
        origin.window,
        tokens=np.array(sequence.tokens, np.int32),
        n_prompt=sequence.n_prompt,
        n_cells=state.n_cells if state else 0,
        replay=state.replay if state else 0,
        image=image,
        blobs=blobs,
    )


def drafter_blobs(snapshot: SequenceSnapshot) -> dict[str, bytes]:
    return {
        name.removeprefix(_DRAFTER): blob
        for name, blob in snapshot.blobs.items()
        if name.startswith(_DRAFTER)
    }


def check(origin: Origin, snapshot: SequenceSnapshot, store: StateStore, n_vocab: int) -> None:
    """Refuse what comes from another model or backend, and what does not fit together."""
    for what in ("model", "backend", "window"):
        saved, here = getattr(snapshot, what), getattr(origin, what)
        if saved != here:
            raise ConfigError(f"the saved sequence has another {what}: {saved!r}, here {here!r}")
    tokens = snapshot.tokens
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        raise FileFormatError("the saved sequence holds tokens outside the vocabulary")
    if len(tokens) >= store.sizes.n_ctx:
        raise ConfigError(
            f"the saved sequence has {len(tokens)} tokens, which exceeds the available context "
            f"size of {store.sizes.n_ctx}; give a larger -c"
        )
    if _kinds(snapshot.image) != _kinds(_blank(store, snapshot)):
        raise FileFormatError("the saved sequence's state does not have this model's shape")


def _blank(store: StateStore, snapshot: SequenceSnapshot) -> SlotImage:
    """What the image of such a sequence looks like, whatever numbers it holds."""
    n_cells = snapshot.n_cells
    if not n_cells:
        return {}
    pages = [0] * store.pool.pages_for(n_cells)
    return store.backend.save_slot(store.state, 0, pages, n_cells, snapshot.replay)


def _kinds(image: SlotImage) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape) for name, array in image.items()}


def _with_tuples(value: Any) -> Any:
    """JSON has lists only; parameters have tuples only."""
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return value
