"""A sequence as a `SequenceSnapshot`, and the checks of one that is read."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
from msgspec import Struct, to_builtins

from ..backend.interface import SlotImage
from ..errors import ConfigError, FileFormatError
from ..generation import ContextShift, GenerateParams
from ..sampling.params import SamplingParams
from ..sampling.thought_limit import ThoughtLimit
from ..speculation.request_spec import RequestSpec
from ..state.embedded_rows import ModelPrompt
from ..state.prefix_export import Origin, check_fit
from ..state.snapshot import SequenceSnapshot
from ..state.store import StateStore
from .sequence import Sequence

SAMPLER: Final = "sampler"
_REQUEST: Final = "request"
_DRAFTER: Final = "drafter."
_ROWS: Final = "rows"


class SavedRequest(Struct, frozen=True):
    """The parameters of a saved sequence."""

    params: GenerateParams
    index: int

    def write(self) -> bytes:
        return json.dumps(to_builtins(self)).encode()

    @classmethod
    def read(cls, snapshot: SequenceSnapshot) -> SavedRequest:
        try:
            fields = _with_tuples(json.loads(snapshot.blobs[_REQUEST]))
            params = fields["params"]
            sampling = SamplingParams(**params.pop("sampling"))
            spec = RequestSpec(**params.pop("spec", {}))
            thinking = params.pop("thinking_spec", None)
            params["thinking_spec"] = None if thinking is None else RequestSpec(**thinking)
            thoughts = params.pop("thoughts", None)
            params["thoughts"] = None if thoughts is None else ThoughtLimit(**thoughts)
            shift = params.pop("shift", None)
            params["shift"] = None if shift is None else ContextShift(**shift)
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
    blobs[_REQUEST] = SavedRequest(sequence.params, sequence.sampler.sequence).write()
    blobs[SAMPLER] = sequence.sampler.save()
    if sequence.prompt.runs:
        blobs[_ROWS] = sequence.prompt.rows_to_bytes()
    return SequenceSnapshot(
        origin.model,
        origin.backend,
        origin.window,
        tokens=np.array(sequence.tokens, np.int32),
        n_prompt=sequence.n_prompt,
        n_cells=state.n_cells if state else 0,
        n_pending_accepted=state.n_pending_accepted if state else 0,
        image=image,
        blobs=blobs,
    )


def prompt_of(snapshot: SequenceSnapshot) -> ModelPrompt:
    tokens = snapshot.tokens[: snapshot.n_prompt].tolist()
    return ModelPrompt.from_saved(tokens, snapshot.blobs.get(_ROWS, b""))


def drafter_blobs(snapshot: SequenceSnapshot) -> dict[str, bytes]:
    return {
        name.removeprefix(_DRAFTER): blob
        for name, blob in snapshot.blobs.items()
        if name.startswith(_DRAFTER)
    }


def check(origin: Origin, snapshot: SequenceSnapshot, store: StateStore, n_vocab: int) -> None:
    """Refuse what comes from another model or backend, and what does not fit together."""
    origin.check(snapshot)
    check_fit(store, snapshot, n_vocab)
    if len(snapshot.tokens) >= store.sizes.n_ctx:
        raise ConfigError(
            f"the saved sequence has {len(snapshot.tokens)} tokens, which exceeds the available "
            f"context size of {store.sizes.n_ctx}; give a larger -c"
        )


def _with_tuples(value: Any) -> Any:
    """JSON has lists only; parameters have tuples only."""
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return value
