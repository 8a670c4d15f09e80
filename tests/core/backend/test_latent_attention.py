"""Latent attention alone: CPU against reference, and against itself in any cut and company."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
from support.blocks import identity

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Ops, Output, State, StateRoom, Taps
from nextn.core.backend.layers import (
    Floats,
    KvShape,
    KvType,
    KvTypes,
    LatentAttention,
    MatrixPart,
    Norm,
    RopePairs,
    RotaryPositions,
    StateShape,
)
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.errors import ConfigError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

N_ROWS, PAGE_LEN, N_PAGES = 300, 32, 12  # more than a span of 256


@dataclass(frozen=True)
class Case:
    n_heads: int = 4
    latent: int = 32
    plain: int = 16
    rope: int = 8
    value: int = 24
    pairs: RopePairs = RopePairs.NEIGHBOURS
    kind: str = "F32"  # of the matrices of heads


CASES = {
    "few heads": Case(),
    "twenty heads": Case(n_heads=20, plain=24, pairs=RopePairs.HALVES),
    "odd widths": Case(n_heads=3, latent=24, plain=12, rope=6, value=20),
    "of DeepSeek": Case(n_heads=40, latent=512, plain=128, rope=64, value=128),
    "in bytes": Case(n_heads=16, latent=512, plain=128, rope=64, value=128, kind="Q8_0"),
    "mixed": Case(n_heads=8, latent=256, plain=128, rope=32, value=64, kind="Q4_0"),
}


class LatentAlone:
    def __init__(self, case: Case, device: str, threads: int = 2) -> None:
        rng = np.random.default_rng(3)
        self.backend = create_backend(device, threads)

        def stack(n_out: int, n_in: int) -> object:
            shape = (case.n_heads, n_out, n_in)
            data = (rng.standard_normal(shape) * n_in**-0.5).astype(np.float32)
            rows = gguf.quants.quantize(data, gguf.GGMLQuantizationType[case.kind])
            stored = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
            return self.backend.matrix(
                [MatrixPart(Tensor("t", shape, find_format(case.kind), stored))]
            )

        rope = RotaryPositions(case.pairs, 100.0 ** -np.linspace(0, 1, case.rope // 2))
        weight = self.backend.vector(rng.standard_normal(case.latent).astype(np.float32))
        self.attention = a = LatentAttention(
            0, case.n_heads, case.latent, case.plain, case.rope, case.value,
            (case.plain + case.rope) ** -0.5, rope, Norm(weight, 1e-6),
            stack(case.latent, case.plain), stack(case.value, case.latent),
        )  # fmt: skip
        self.width = a.q_width + a.cell_width
        rows = np.eye(self.width, dtype=np.float32)
        self.split = [
            self.backend.matrix([MatrixPart(_floats(part))]) for part in np.split(rows, [a.q_width])
        ]
        self.identity = self.backend.matrix([MatrixPart(identity(a.n_heads * a.value_dim))])
        self.state = self.backend.new_state(
            StateShape((KvShape(1, a.cell_width, 0),)),
            StateRoom(n_pages=2 * N_PAGES, page_len=PAGE_LEN, n_slots=2, window=1),
        )  # fmt: skip
        self.run = self.backend.compile(self.forward, self.state, max_rows=N_ROWS + 20)
        self.pages = np.random.default_rng(1).permutation(2 * N_PAGES).reshape(2, -1).tolist()

    def forward(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        given = ops.pack(ops.given_rows(step, self.width))
        q, cells = (ops.matmul(given, part) for part in self.split)
        heads = ops.attend_latent(q, cells, self.attention, state, step)
        return Output(ops.matmul(heads, self.identity))

    def step(self, *parts: tuple[int, int, Floats]) -> list[Floats]:
        """Of each (sequence, cells before, rows): the rows' outputs."""
        pieces = [
            StepPart([0] * len(rows), past, self.pages[b], slot=b, n_out=len(rows))
            for b, past, rows in parts
        ]
        logits = self.run(build_step(pieces, np.concatenate([rows for *_, rows in parts]))).logits
        ends = np.cumsum([len(rows) for *_, rows in parts])[:-1]
        return [each.copy() for each in np.split(logits, ends)]


def _floats(values: Floats) -> Tensor:
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return Tensor("t", values.shape, find_format("F32"), data)


def rows_of(made: LatentAlone, n: int = N_ROWS) -> Floats:
    return np.random.default_rng(4).standard_normal((n, made.width)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_cpu_equals_reference_and_itself_in_any_cut(name: str) -> None:
    ours, reference = LatentAlone(CASES[name], "cpu"), LatentAlone(CASES[name], "torch")
    rows = rows_of(ours)
    whole = ours.step((0, 0, rows))[0]
    near = 1e-2 if CASES[name].kind == "F32" else 0.1  # activations are rounded to bytes
    np.testing.assert_allclose(whole, reference.step((0, 0, rows))[0], atol=near)
    past, spoiled = 0, np.full_like(rows, np.nan)
    for n in (1, 6, 16, 230, 4, 43):  # beside a text with a NaN in every row
        got = ours.step((0, 0, spoiled[: 1 + n % 5]), (1, past, rows[past : past + n]))[1]
        assert np.array_equal(got, whole[past : past + n])
        past += n
    for threads in (1, 3):
        other = LatentAlone(CASES[name], "cpu", threads)
        assert np.array_equal(other.step((0, 0, rows[:280]))[0], whole[:280])


def test_a_bad_row_spoils_no_row_before_it() -> None:
    ours = LatentAlone(CASES["twenty heads"], "cpu")
    rows = rows_of(ours)
    want = ours.step((0, 0, rows))[0]
    bad = rows[252:260].copy()
    bad[5:] = np.nan
    got = ours.step((0, 252, bad))[0]
    assert np.array_equal(got[:5], want[252:257])
    assert np.isnan(got[5:]).all()


def test_saved_cells_go_on_elsewhere() -> None:
    ours = LatentAlone(Case(), "cpu")
    rows, n = rows_of(ours), 263
    want = ours.step((0, 0, rows))[0]
    image = ours.backend.save_slot(ours.state, 0, ours.pages[0], n, 0)
    ours.backend.load_slot(ours.state, 1, ours.pages[1], image)
    assert np.array_equal(ours.step((1, n, rows[n : n + 9]))[0], want[n : n + 9])
    per_page, _ = ours.backend.state_bytes(StateShape((KvShape(1, 576, 0),)), page_len=64, window=1)
    assert per_page == 64 * 576 * 2, "a cell is kept once"


def test_bytes_are_refused_by_the_flag_that_asks_for_them() -> None:
    backend = create_backend("cpu", 1, KvTypes(keys=KvType.Q8_0))
    with pytest.raises(ConfigError, match=r"--cache-type-k q8_0: latent attention"):
        backend.state_bytes(StateShape((KvShape(1, 576, 0),)), page_len=64, window=1)
