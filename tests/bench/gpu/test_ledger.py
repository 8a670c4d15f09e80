"""Bytes and launches of a step: those of the large models are held to the plan, and what is counted
without running is what runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from shim.machine import host_problem
from support.host_device import HostDevice
from support.llama_quantize import mixture_types
from support.random_shapes import QWEN36_27B, QWEN36_35B_A3B, Sizes, tensor_shapes, tiny
from support.sparse_file import write_sparse

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.interface import StateRoom
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.state.sizes import PAGE_LEN

TESTS = Path(__file__).parents[2]
NOW = {"27B": 484, "35B-A3B": 344}  # launches of a plain step, at most
ROUNDS_NOW = {"27B": 543, "35B-A3B": 388}  # of a round with the draft that the plan has
Part = Callable[[str], ModuleType]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Part]:
    """A module of the benchmark by its name."""
    monkeypatch.syspath_prepend(str(TESTS))
    yield lambda name: importlib.import_module(f"bench.gpu.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]


@pytest.mark.parametrize("i", [0, 1], ids=["27B", "35B-A3B"])
@pytest.mark.slow
def test_a_step_moves_what_was_planned(i: int, part: Part) -> None:
    plan = part("plan").PLANS[i]
    ledger = part("ledger").Ledger(plan.sizes)
    for n_rows, ms in plan.weights_ms.items():
        account = ledger.step(n_rows)
        assert account.launches <= NOW[plan.name]
        assert 1e3 * account.total.weights / 4.3e12 == pytest.approx(ms, rel=0.03)
    for n_rows, ms in plan.state_ms.items():
        assert 1e3 * ledger.step(n_rows).total.state / 4.3e12 == pytest.approx(ms, rel=0.03)
    figures = {f.name: f for f in part("ledger_report").figures(plan, ledger)}
    if plan.name == "27B":
        # 16 layers keep half floats of 2 x 4 x 256 values for each cell.
        assert ledger.step(1, 32768).total.kv == 16 * 2 * 4 * 256 * 2 * (32768 + 2)
        assert figures["factors of a token"].measured == pytest.approx(1.58, rel=0.03)
        assert figures["factors for 16 draft tokens"].verdict == "met"
        (delta,) = (
            f for name, f in figures.items() if name.startswith("launches of recurrent layers (47")
        )
        assert delta.measured == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [tiny(QWEN36_27B), tiny(QWEN36_35B_A3B)], ids=["dense", "mixture"]
)
def test_what_is_counted_is_what_runs(sizes: Sizes, part: Part, tmp_path: Path) -> None:
    if reason := host_problem():
        pytest.skip(reason)
    device = HostDevice()
    backend = CudaBackend(device)
    kinds = mixture_types(tensor_shapes(sizes), "Q4_K_M")
    path = write_sparse(tmp_path / "zeros.gguf", sizes, kinds, {})
    with open_gguf(path) as file:
        model = build_model(file, backend)
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=2, page_len=PAGE_LEN, n_slots=1, window=4)
    )
    run = backend.compile(model.forward, state, max_rows=3)
    step = part("ledger")._step(3, 40, 1, 2, 0)
    run(step)
    ran = [(one.name, one.grid) for one in device.launcher.launches]

    counted: list[tuple[str, Any]] = []
    ledger = part("ledger").Ledger(sizes)
    ledger.device.launcher.n_processors = device.launcher.n_processors
    ledger.device.launcher.note = lambda kernel, grid, _: counted.append((kernel.name, grid))
    run = ledger.backend.compile(ledger.model.forward, ledger.new_state(100, 1, 4), max_rows=3)
    run(step)
    assert counted == ran


@pytest.mark.parametrize("i", [0, 1], ids=["27B", "35B-A3B"])
@pytest.mark.slow
def test_a_round_is_a_step_and_its_drafts(i: int, part: Part) -> None:
    plan = part("plan").PLANS[i]
    ledger, account = part("ledger").Ledger(plan.sizes), part("round_ledger").round_account
    found = account(ledger, plan.n_draft)
    assert found.launches <= ROUNDS_NOW[plan.name]
    assert found.copies == 0
    step, draft = ledger.step(plan.n_draft + 1).total, ledger.draft_step().total
    drafts = plan.n_draft * draft.weights
    assert found.total.weights == pytest.approx(step.weights + drafts, rel=0.02)
    assert found.total.kv == pytest.approx(step.kv + plan.n_draft * draft.kv, rel=0.02)
    assert account(ledger, 0).total.weights == pytest.approx(ledger.step(1).total.weights)


@pytest.mark.slow
def test_a_prompt_multiplies_what_was_planned(part: Part) -> None:
    ledger = part("ledger").Ledger(QWEN36_27B)
    account = ledger.prompt(2048, past=2048)
    # 24.35 billion weights for each row; read as tiles, written as bfloat16, read again: 111 GB.
    assert account.flops / 2048 == pytest.approx(48.7e9, rel=0.03)
    head = ledger.step(1).lines["qmm_Q6_K_4"].bytes.weights
    assert account.total.weights < 111e9 * 1.03 + head
    products = account.lines[part("ledger").CUBLAS].bytes.weights
    assert products == pytest.approx(2 * 24.35e9, rel=0.03)
    assert account.total.kv == 16 * 2 * 4 * 256 * 2 * (2048 + 4096)
    assert ledger.prompt(1024).flops == account.flops / 2


def test_states_are_stored_every_fourth_plain_step(part: Part) -> None:
    replays = part("ledger").replays
    assert replays(1, 65) == [1, 2, 3, 4]
    assert replays(4, 65) == [4]
    ledger = part("ledger").Ledger(tiny(QWEN36_27B))
    state, factor = 3 * 4 * 8 * 32 * 32, 3 * 4 * ((4 + 8) * 32 + 8)
    plain = ledger.step(1).total.state
    assert plain == pytest.approx(1.25 * state + (2.5 + 1) * factor)
    assert ledger.step(4).total.state == 2 * state + 8 * factor


def test_a_kernel_without_a_rule_is_told(part: Part) -> None:
    counting, shadows = part("counting"), part("shadows")
    array = shadows.shadow((2, 8), "float32", counting.STATE)
    with pytest.raises(ValueError, match="touches state"):
        counting.count("gdn_new", [array], (1, 1, 1), counting.Routing())


def test_experts_that_rows_ask(part: Part) -> None:
    routing = part("counting").Routing(256, 8)
    assert [round(routing.distinct(n), 1) for n in (1, 2, 4, 8, 16)] == [8, 15.8, 30.5, 57.4, 102]


def test_large_arrays_take_no_room(part: Part) -> None:
    array = part("shadows").shadow((1 << 20, 1 << 20), "float32", "rows")
    array[3:5] = 1.0
    assert array.reshape(-1)[: 1 << 30].reshape(1 << 10, 1 << 20).nbytes == 4 << 30
    small = part("shadows").shadow((4,), "int32", "rows")
    small[1:] = np.arange(3)
    assert small.tolist() == [0, 0, 1, 2]
