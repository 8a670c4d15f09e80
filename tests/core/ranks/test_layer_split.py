"""Which devices a name means, which layers each gets, and what is said where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.tiny_models import TinyModel

from nextn.core.backend import cuda
from nextn.core.backend.layers import HALF_FLOATS, KvShape, RecurrentShape, StateShape
from nextn.core.errors import ConfigError, ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.load_runtime import load_runtime
from nextn.core.ranks import load as loading
from nextn.core.ranks.backend import RankedBackend
from nextn.core.ranks.devices import OneIsTooSmallError, each_device, n_others
from nextn.core.ranks.images import join_images, split_image
from nextn.core.ranks.layer_split import divide, fill, split_shape
from nextn.core.state.sizes import StateSizes

KV, DELTA = KvShape(2, 4, 4), RecurrentShape.of_heads(2, 4, 8, 8, 4)


def test_names_of_several_devices() -> None:
    assert each_device("cuda:0,1") == ["cuda:0", "cuda:1"]
    assert each_device("cuda:2,0-1") == ["cuda:2", "cuda:0", "cuda:1"]
    assert each_device("cuda:3-3") == ["cuda:3"]
    for one in ("cpu", "cuda", "cuda:1", "torch:cuda:0", "cuda:x"):
        assert each_device(one) == [one]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda:0,", "several GPUs are called"),
        ("cuda:a-b", "several GPUs are called"),
        ("cuda:-1", "several GPUs are called"),
        ("cuda:3-1", "3-1 is no range"),
        ("cuda:0-9999", "no range"),
        ("cuda:0,1,0", "named twice"),
    ],
)
def test_names_that_are_none(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^--device {name}: .*{words}"):
        each_device(name)


def test_a_gpu_that_is_not_there(tiny: Callable[..., TinyModel], monkeypatch: Any) -> None:
    monkeypatch.setattr(
        cuda, "unavailable_reason", lambda index: None if index < 2 else f"no device {index}"
    )
    path = tiny("qwen3", quantise="Q8_0").path
    with pytest.raises(ConfigError, match=r"^--device cuda:2: no device 2$"):
        load_runtime(path, "cuda:0-2")
    with pytest.raises(ConfigError, match="--repack-cache is for --device cpu, not cuda:0,1"):
        load_runtime(path, "cuda:0,1", repack_cache=True)


def test_layers_fill_all_devices_alike() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n_ranks = int(rng.integers(2, 6))
        blocks = rng.integers(1, 100, int(rng.integers(n_ranks, 40))).tolist()
        ends, room = int(rng.integers(0, 300)), (1.0 + 1000 * rng.random(n_ranks)).tolist()
        ranges = divide(ends, blocks, room)
        assert [i for each in ranges for i in each] == list(range(len(blocks)))
        assert all(len(each) for each in ranges)
        used = fill(ends, blocks, ranges)
        assert sum(used) == ends + sum(blocks)
        # No better: moving a boundary by a block makes the fullest device no emptier.
        fullest = degree(used, room)
        for i in range(1, n_ranks):
            for first, last in ((-1, 0), (1, 0)):
                moved = [each.start for each in ranges] + [len(blocks)]
                moved[i] += first - last
                others = [range(a, b) for a, b in pairwise(moved)]
                if all(len(each) for each in others):
                    assert degree(fill(ends, blocks, others), room) >= fullest - 1e-6


def degree(used: list[int], room: list[float]) -> float:
    return max(n / r for n, r in zip(used, room, strict=True))


def test_images_are_taken_apart_as_they_were_put_together() -> None:
    hybrid = [StateShape((), (DELTA,))] * 3 + [StateShape((KV,))]
    shape = split_shape(StateShape((KV,)), hybrid * 2, [range(3), range(3, 5), range(5, 8)])
    assert shape.kv_ranks == (1, 2, 0)
    assert shape.recurrent_ranks == (0, 0, 0, 1, 2, 2)
    assert shape.of_rank(1) == StateShape((KV,), (DELTA,))
    rng = np.random.default_rng(1)
    named = {f"kv.{i}.{what}": rng.random((2, 3)) for i in range(3) for what in ("keys", "values")}
    layered = named | {f"delta.{i}.S": rng.random(5) for i in range(6)}
    stacked = named | {"delta.header": np.arange(4.0), "delta.S": rng.random((6, 5))}
    wholes: list[dict[str, Any]] = [layered, stacked]
    for whole in wholes:
        images = split_image(whole, shape, 3)
        assert sorted(images[2]) != sorted(whole)
        joined = join_images(images, shape)
        assert list(joined) == list(whole)
        for name, array in whole.items():
            assert np.array_equal(joined[name], array), name


class Devices:
    """So many bytes each, and nothing that computes."""

    def __init__(self, free: list[int | None]) -> None:
        self.free = free

    def backend(self) -> RankedBackend:
        ranks = [self._rank(free) for free in self.free]
        devices = [f"cuda:{i}" for i in range(len(ranks))]
        made = SimpleNamespace(n_ranks=len(ranks), ranks=ranks, inner=ranks[0], devices=devices)
        return cast("RankedBackend", made)

    def _rank(self, free: int | None) -> SimpleNamespace:
        return SimpleNamespace(
            matrix_bytes=lambda parts: sum(part.tensor.n_bytes for part in parts),
            state_bytes=lambda shape, **_: (100 * len(shape.kv), 1000 * len(shape.recurrent)),
            free_device_bytes=lambda: free,
        )


@pytest.mark.parametrize(
    ("free", "words"),
    [
        ([1 << 30, 1000], r"cuda:0 would hold .*, 1\.00 GiB are free; cuda:1 would hold"),
        ([1 << 30] * 9, "has 4 layers, which 9 devices cannot share"),
    ],
)
def test_what_fits_nowhere_is_refused(
    free: list[int | None], words: str, tiny: Callable[..., TinyModel]
) -> None:
    file = open_gguf(tiny("qwen35", mtp=True, quantise="Q8_0").path)
    with pytest.raises(ModelError, match=words):
        loading.load_ranked(
            file, Devices(free).backend(), lambda model: StateSizes(64), with_nextn=True
        )


def test_as_many_gpus_as_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one is too small, and no certain one was asked for."""
    monkeypatch.setattr(cuda, "count_devices", lambda: 4)
    assert [n_others(name) for name in ("cuda", "cuda:0", "cuda:1", "cpu")] == [3, 0, 0, 0]
    monkeypatch.setattr(loading, "check_devices", lambda devices: None)
    monkeypatch.setattr(loading, "open_ranks", lambda devices, kv_types, name: (devices, name))

    def load(backend: Any) -> Any:
        if len(backend[0]) < enough:
            raise loading.DoesNotFitError(f"does not fit {backend[1]}")
        return backend

    error = OneIsTooSmallError(ModelError("too large"), 4)
    enough = 3
    made = loading.on_several(error, HALF_FLOATS, load)
    assert made == (["cuda:0", "cuda:1", "cuda:2"], "cuda:0-2")
    enough = 5
    with pytest.raises(ModelError, match=r"^does not fit cuda:0-3$"):
        loading.on_several(error, HALF_FLOATS, load)
