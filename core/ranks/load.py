"""A model over several devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ..backend import create_backend
from ..backend.interface import Report
from ..backend.layers import KvTypes
from ..errors import ConfigError, ModelError
from ..gguf.reader import GgufFile
from ..models import prepare_model, survey_model
from ..models.model import ENDS, Model, Share
from ..state.sizes import StateSizes
from .backend import RankedBackend
from .devices import OneIsTooSmallError, check_devices, each_device
from .layer_split import Weighed, divide, fill, split_shape, weigh

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
Loaded = TypeVar("Loaded")
SizesOf = Callable[[Model], StateSizes]  # of the state that there has to be room for

logger = logging.getLogger(__name__)


class DoesNotFitError(ModelError):
    """Not on these devices."""


def open_ranks(devices: Sequence[str], kv_types: KvTypes, name: str = "") -> RankedBackend:
    """A backend over all of them; the first is rank 0."""
    backends = [create_backend(device, None, kv_types) for device in devices]
    backends[0].activate()
    return RankedBackend(backends, devices, name or ",".join(devices))


def on_several(
    error: OneIsTooSmallError, kv_types: KvTypes, load: Callable[[RankedBackend], Loaded]
) -> Loaded:
    """As many of the devices as are needed, the first ones."""
    for n in range(2, error.n_devices + 1):
        name = f"cuda:0-{n - 1}"
        try:
            check_devices(each_device(name))
            made = load(open_ranks(each_device(name), kv_types, name))
        except DoesNotFitError as last:
            if n == error.n_devices:
                raise ModelError(str(last)) from None
        except ConfigError as other:
            raise type(error.reason)(f"{error.reason}; nor can several share it: {other}") from None
        else:
            logger.info("one GPU is too small: the layers are on %s", name)
            return made
    raise error.reason


def load_ranked(
    file: GgufFile, backend: RankedBackend, sizes_of: SizesOf, *, with_nextn: bool, reserve: int = 0
) -> Model:
    """Rank 0's part of the model; the backend keeps the others. `reserve`: bytes of the first
    device that another model is going to take."""
    survey = survey_model(file, with_nextn=with_nextn)
    survey.weights.check()
    sizes, n_layers = sizes_of(survey.model), survey.model.hparams.n_layers
    n_ranks, inner = backend.n_ranks, backend.inner
    if n_layers < n_ranks:
        raise ModelError(
            f"{file.label}: has {n_layers} layers, which {n_ranks} devices cannot share"
        )
    ends = weigh(file, inner, sizes, ENDS, with_nextn)
    blocks = [
        weigh(file, inner, sizes, Share(range(i, i + 1), has_ends=False), False)
        for i in range(n_layers)
    ]
    ranges = _divide(file, backend, ends, blocks, reserve)
    models = []
    for rank, each in enumerate(ranges):
        share = Share(each, has_ends=rank == 0)
        own = survey_model(file, with_nextn=with_nextn, share=share)
        with backend.on(rank) as its:
            its.report = _part_of(backend, rank)
            models.append(prepare_model(own, file, its, with_nextn=with_nextn))
            its.report = backend.report
    models[0].state_shape = split_shape(ends.shape, [each.shape for each in blocks], ranges)
    backend.models, backend.trunk = models, models[0].state_shape
    backend.holdings = _holdings(backend, ranges, ends, blocks)
    return models[0]


def _part_of(backend: RankedBackend, rank: int) -> Report:
    """Reports the progress of one rank as a part of the whole."""
    return lambda what, done: backend.report(what, (rank + done) / backend.n_ranks)


def _divide(
    file: GgufFile, backend: RankedBackend, ends: Weighed, blocks: Sequence[Weighed], reserve: int
) -> list[range]:
    """Refused if they do not fit."""
    free = [each.free_device_bytes() for each in backend.ranks]
    fixed, sizes = ends.total + reserve, [each.total for each in blocks]
    known = [float(left) for left in free if left is not None]
    if len(known) < len(free):  # unknown: all the same
        return divide(fixed, sizes, [1.0 + fixed + sum(sizes)] * len(free))
    ranges = divide(fixed, sizes, known)
    needed = fill(fixed, sizes, ranges)
    if all(n <= left for n, left in zip(needed, known, strict=True)):
        return ranges
    each = "; ".join(
        f"{device} would hold {_size(n)}, {_size(left)} are free"
        for device, n, left in zip(backend.devices, needed, known, strict=True)
    )
    raise DoesNotFitError(
        f"{file.label}: does not fit {len(free)} devices with its state: {each}; take more "
        "devices, a smaller -c, or a file with fewer bits per weight"
    )


def _holdings(
    backend: RankedBackend, ranges: Sequence[range], ends: Weighed, blocks: Sequence[Weighed]
) -> list[str]:
    lines = []
    for rank, (device, each) in enumerate(zip(backend.devices, ranges, strict=True)):
        own = [blocks[i] for i in each] + ([ends] if rank == 0 else [])
        weights, state = sum(w.weights for w in own), sum(w.state for w in own)
        layers = f"layers {each.start} to {each.stop - 1}" if len(each) > 1 else f"layer {each[0]}"
        what = f"embedding, {layers}, head" if rank == 0 else layers
        lines.append(f"{device}: {what}: {_size(weights)} of weights, {_size(state)} of state")
    return lines


def _size(n_bytes: float) -> str:
    return f"{n_bytes / _GIB:.2f} GiB" if n_bytes > _GIB / 10 else f"{n_bytes / _MIB:.1f} MiB"
