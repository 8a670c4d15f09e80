"""Operations on rows, steps and prompts: near the reference, and the same bits however cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.host_device import use_for_cuda
from support.ops_alone import PROMPTS, Bench, OpsAlone, relative_error

from nextn.core.backend.interface import Ops, Rows
from nextn.core.backend.layers import Floats, Gate, GateActivation, Norm
from nextn.core.backend.step import Step

WIDTH = 96
N_ROWS = 20
Body = Callable[[Ops, Step, Any], Rows]
LIMITED = Gate(limit=0.7)
LIMITED_GELU = Gate(GateActivation.GELU, limit=0.4)


def norms(bench: Bench, width: int = WIDTH) -> Norm:
    return Norm(bench.vector(width), 1e-5)


def layer_norm(bench: Bench) -> Norm:
    return Norm(bench.vector(WIDTH), 1e-5, centred=True, bias=bench.vector(WIDTH))


def on_rows(make: Callable[[Bench], Callable[[Ops, Rows], Rows]]) -> Callable[[Bench], Body]:
    def body_of(bench: Bench) -> Body:
        do = make(bench)
        return lambda ops, step, state: do(ops, ops.given_rows(step, WIDTH))

    return body_of


def halves(bench: Bench) -> Callable[[Ops, Rows], Rows]:
    """What is packed, as rows again."""
    identity = bench.identity(WIDTH)
    return lambda ops, x: ops.matmul(ops.pack(x), identity)


def twice(ops: Ops, x: Rows) -> tuple[Rows, Rows]:
    return ops.keep(x), x


def sums(bench: Bench) -> Callable[[Ops, Rows], Rows]:
    def do(ops: Ops, x: Rows) -> Rows:
        x, y = twice(ops, x)
        return ops.add(x, y, 0.75)

    return do


def norms_behind(bench: Bench) -> Callable[[Ops, Rows], Rows]:
    norm, after = norms(bench), layer_norm(bench)
    matrix = bench.matrix(WIDTH, WIDTH)

    def do(ops: Ops, x: Rows) -> Rows:
        x = ops.keep(x)
        y = ops.matmul(ops.norm(x, norm), matrix)
        return ops.add_norm(ops.add_norm(x, y, norm, 1.5), y, after)

    return do


def centred(bench: Bench) -> Callable[[Ops, Rows], Rows]:
    norm, identity = layer_norm(bench), bench.identity(WIDTH)
    return lambda ops, x: ops.matmul(ops.norm(x, norm), identity)


def slices(bench: Bench) -> Callable[[Ops, Rows], Rows]:
    norm = norms(bench, 24)
    return lambda ops, x: ops.norm_slices(x, norm)


def columns(bench: Bench) -> Callable[[Ops, Rows], Rows]:
    norm, part = norms(bench), norms(bench, WIDTH // 2)
    matrix = bench.matrix(WIDTH, WIDTH)
    return lambda ops, x: ops.norm_columns(ops.matmul(ops.norm(x, norm), matrix), part, 4)


def gated(gate: Gate, kind: str, name: str) -> Callable[[Bench], Body]:
    def make(bench: Bench) -> Callable[[Ops, Rows], Rows]:
        norm, inner = norms(bench), 64
        parts = bench.backend.matrix(
            [
                bench.part(inner, WIDTH, kind=kind, name=f"blk.0.{name}_{end}.weight")
                for end in ("gate", "up")
            ]
        )
        identity = bench.identity(inner)

        def do(ops: Ops, x: Rows) -> Rows:
            return ops.matmul(ops.gated_ffn(ops.norm(x, norm), parts, gate), identity)

        return do

    return on_rows(make)


def gates_beside(gate: Gate) -> Callable[[Bench], Body]:
    def make(bench: Bench) -> Callable[[Ops, Rows], Rows]:
        norm, matrix, identity = norms(bench), bench.matrix(40, WIDTH), bench.identity(40)

        def do(ops: Ops, x: Rows) -> Rows:
            gates = ops.matmul(ops.norm(x, norm), matrix)
            return ops.matmul(ops.gate_by(gates, x, 50, gate), identity)

        return do

    return on_rows(make)


def capped(bench: Bench) -> Body:
    norm, matrix = norms(bench), bench.matrix(200, WIDTH)

    def body(ops: Ops, step: Step, state: Any) -> Rows:
        x = ops.out_rows(ops.given_rows(step, WIDTH), step)
        logits = ops.head(ops.norm(x, norm), matrix, 1.2)
        return logits.rows if hasattr(logits, "maxima") else logits

    return body


CASES: dict[str, Callable[[Bench], Body]] = {
    "pack": on_rows(halves),
    "add": on_rows(sums),
    "add_norm": on_rows(norms_behind),
    "centred norm": on_rows(centred),
    "norm_slices": on_rows(slices),
    "norm_columns": on_rows(columns),
    "gate_by": gates_beside(Gate(GateActivation.GELU)),
    "gate_by with a limit": gates_beside(LIMITED),
    "limited gates, plain": gated(LIMITED, "F32", "ffn"),
    "limited gates, halves": gated(LIMITED_GELU, "F16", "ffn"),
    "limited gates, tiles": gated(LIMITED, "Q8_0", "ffn"),
    "limited gates of other names": gated(LIMITED_GELU, "Q8_0", "other"),
    "capped logits": capped,
}


def given(n_rows: int = N_ROWS) -> Floats:
    return np.random.default_rng(4).standard_normal((n_rows, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_steps_are_near_the_references(name: str, shim: None) -> None:
    ours, reference = (OpsAlone(b, CASES[name](b)) for b in (Bench("cuda"), Bench("torch")))
    rows = given(7)
    whole = ours(rows, [7])
    assert relative_error(whole, reference(rows, [7])) < 5e-4
    assert np.array_equal(ours(rows, [1, 4, 2]), whole)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_prompts_are_near_the_references(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch, prompts=PROMPTS)
    ours, reference = (OpsAlone(b, CASES[name](b)) for b in (Bench("cuda"), Bench("torch")))
    rows = given()
    assert relative_error(ours(rows, [N_ROWS]), reference(rows, [N_ROWS])) < 0.02


def test_scaled_embeddings(shim: None) -> None:
    def body_of(bench: Bench) -> Body:
        table = bench.matrix(30, WIDTH, name="token_embd.weight")
        return lambda ops, step, state: ops.embed(table, step, 3.25)

    ours, reference = (OpsAlone(b, body_of(b)) for b in (Bench("cuda"), Bench("torch")))
    assert relative_error(ours(given(3), [3]), reference(given(3), [3])) < 1e-6
