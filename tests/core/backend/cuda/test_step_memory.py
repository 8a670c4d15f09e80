"""Memory that steps share: as much as the largest takes, whatever came before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nextn.core.backend.cuda.attention_layer import Attender
from nextn.core.backend.cuda.counting_device import PlannedDevice
from nextn.core.backend.cuda.step_memory import MOST_REPEATED, Outputs, StepLimits
from nextn.core.backend.cuda.step_sizes import context_bucket
from nextn.core.backend.interface import StateRoom
from nextn.cuda_kernels.attention import AttentionHeads
from nextn.cuda_kernels.kv_pages import KvHeads

HEADS = AttentionHeads(24, KvHeads(4, 256, 256), gated=True)  # of a 27B
LIMITS = StepLimits.of(StateRoom(n_pages=2048, page_len=128, n_slots=1, window=17))
SIZES = [(rows, cells) for cells in (900, 20_000, 262_144) for rows in (1, 3, 9, 17)]


@pytest.fixture
def device() -> PlannedDevice:
    launcher = SimpleNamespace(n_processors=132, shared_of_a_block=227 << 10)
    like: Any = SimpleNamespace(
        name="cuda", details="", reserved_bytes=0, launcher=launcher, taken_bytes=lambda n: n
    )
    return PlannedDevice(like)


def step(n_rows: int, n_cells: int) -> tuple[int, int]:
    return n_rows, context_bucket(n_cells)


def test_attention_of_all_sizes_takes_what_the_largest_takes(device: PlannedDevice) -> None:
    attender = Attender(device)
    attender._room(HEADS, *step(17, 262_144), LIMITS)
    largest = device.live_bytes
    for sizes in (*SIZES, *reversed(SIZES)):
        queries, parts = attender._room(HEADS, *step(*sizes), LIMITS)
        parts.require(HEADS, sizes[0])
        assert queries.shape == HEADS.queries_shape(sizes[0])
    assert device.live_bytes == largest
    smallest_first = Attender(device)
    for sizes in SIZES:
        smallest_first._room(HEADS, *step(*sizes), LIMITS)
    assert device.live_bytes == 2 * largest


def test_logits_of_all_sizes_lie_in_one_memory(device: PlannedDevice) -> None:
    outputs = Outputs(device, LIMITS.n_rows)
    first = outputs.rows("logits", 1, 248_320)
    taken = device.live_bytes
    assert taken == 32 * 248_320 * 4
    for n_rows in range(1, 18):
        assert outputs.rows("logits", n_rows, 248_320).shape == (n_rows, 248_320)
    assert device.live_bytes == taken
    assert first.lease is outputs.rows("logits", 17, 248_320).lease


def test_limits_are_of_what_is_repeated() -> None:
    assert (LIMITS.n_rows, LIMITS.n_cells) == (17, 262_144)
    many = StepLimits.of(StateRoom(n_pages=640, page_len=128, n_slots=64, window=17))
    assert many == StepLimits(MOST_REPEATED, 1280)
