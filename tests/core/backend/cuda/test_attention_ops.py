"""Attention of all families, steps and prompts: near the reference, the same bits however cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from checked_sources import if_backend_changed
from support.host_device import use_for_cuda
from support.ops_alone import PAGES, PROMPTS, Bench, OpsAlone, relative_error

from nextn.core.backend.interface import Ops, Rows
from nextn.core.backend.layers import (
    Attention,
    Floats,
    KvShape,
    KvSource,
    LatentAttention,
    Norm,
    QueryGrowth,
    RopePairs,
    RotaryPositions,
    StateShape,
)
from nextn.core.backend.step import Step

pytestmark = if_backend_changed

# Half-precision cells cost so much of a result.
NEAR = 1e-3
NEAR_IN_PROMPTS = 0.01
N_ROWS = 27
CUTS = [14, 1, 3, 2, 7]


@dataclass(frozen=True)
class Case:
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (64, 64)  # of keys and values
    n_rot: int = 32
    pairs: RopePairs = RopePairs.HALVES
    normed: bool = False
    v_normed: bool = False
    gated: bool = False
    head_gates: bool = False
    window: int = 0
    chunked: bool = False
    sinks: bool = False
    cap: float = 0.0
    value_scale: float = 1.0
    source: KvSource = KvSource.ROWS
    norms_turned: bool = False
    growth: QueryGrowth | None = None


CASES = {
    "cap": Case(cap=0.8, sinks=True, window=11),
    "norm of values": Case(normed=True, v_normed=True),
    "turned, then normed": Case(normed=True, norms_turned=True),
    "growing queries": Case(growth=QueryGrowth(0.4, 5), n_rot=64),
    "growing queries that do not turn": Case(growth=QueryGrowth(0.4, 5, ahead=1), n_rot=0),
    "chunks": Case(window=6, chunked=True, normed=True, norms_turned=True, n_rot=64),
    "chunks, sinks, 80 elements": Case(dims=(80, 80), window=5, chunked=True, sinks=True),
    "chunks of 512 elements": Case(dims=(512, 512), heads=(4, 1), window=11, chunked=True),
    "gates of heads": Case(head_gates=True, heads=(6, 2), window=20),
    "scaled values, wider keys": Case(dims=(192, 128), value_scale=0.6, sinks=True),
    "values from keys": Case(source=KvSource.KEYS, normed=True, v_normed=True),
    "80 elements": Case(dims=(80, 80), window=9, sinks=True),
    "96 elements": Case(dims=(96, 96), heads=(3, 1)),
    "256 elements": Case(dims=(256, 256), heads=(2, 1), normed=True, v_normed=True, window=18),
    "512 elements": Case(dims=(512, 512), heads=(4, 1), n_rot=128, window=21, sinks=True),
    "512 elements, values from keys": Case(
        dims=(512, 512), heads=(10, 1), source=KvSource.KEYS, normed=True, v_normed=True
    ),
    "capped gates": Case(cap=0.5, gated=True, value_scale=1.5),
}


def attention_of(bench: Bench, case: Case, layer: int = 0) -> Attention:
    (n, n_kv), (key_dim, value_dim) = case.heads, case.dims

    def norm(width: int, *, wanted: bool) -> Norm | None:
        return Norm(bench.vector(width), 1e-6) if wanted else None

    has_keys = case.source is not KvSource.SHARED
    return Attention(
        layer=layer,
        n_heads=n,
        n_kv_heads=n_kv,
        key_dim=key_dim,
        value_dim=value_dim,
        scale=key_dim**-0.5,
        rope=RotaryPositions(case.pairs, 100.0 ** -np.linspace(0, 1, case.n_rot // 2))
        if case.n_rot
        else None,
        q_norm=norm(key_dim, wanted=case.normed),
        k_norm=norm(key_dim, wanted=case.normed and has_keys),
        v_norm=norm(value_dim, wanted=case.v_normed and has_keys),
        gated=case.gated,
        head_gates=case.head_gates,
        window=case.window,
        chunked=case.chunked,
        sinks=bench.vector(n) if case.sinks else None,
        cap=case.cap,
        value_scale=case.value_scale,
        source=case.source,
        norms_turned=case.norms_turned,
        growth=case.growth,
    )


def attending(bench: Bench, case: Case) -> tuple[OpsAlone, int]:
    attention = attention_of(bench, case)
    identity = bench.identity(attention.n_heads * attention.value_dim)

    def body(ops: Ops, step: Step, state: Any) -> Rows:
        rows = ops.given_rows(step, attention.width)
        return ops.matmul(ops.attend(rows, attention, state, step), identity)

    shape = StateShape((KvShape(case.heads[1], *case.dims),))
    return OpsAlone(bench, body, shape), attention.width


def sharing(bench: Bench, case: Case) -> tuple[OpsAlone, int]:
    """A layer, and one that reads its cells."""
    first = attention_of(bench, Case(heads=case.heads, dims=case.dims, normed=True))
    second = attention_of(bench, case)
    identity = bench.identity(second.n_heads * second.value_dim)
    down = bench.matrix(second.width, first.n_heads * first.value_dim)

    def body(ops: Ops, step: Step, state: Any) -> Rows:
        rows = ops.given_rows(step, first.width)
        queries = ops.matmul(ops.attend(rows, first, state, step), down)
        return ops.matmul(ops.attend(queries, second, state, step), identity)

    shape = StateShape((KvShape(case.heads[1], *case.dims),))
    return OpsAlone(bench, body, shape), first.width


def latent(bench: Bench, kind: str) -> tuple[OpsAlone, int]:
    n_heads, width, plain, rope, value = 10, 64, 32, 32, 48
    freqs = 100.0 ** -np.linspace(0, 1, rope // 2)
    attention = LatentAttention(
        layer=0,
        n_heads=n_heads,
        latent=width,
        plain_dim=plain,
        rope_dim=rope,
        value_dim=value,
        scale=0.15,
        rope=RotaryPositions(RopePairs.NEIGHBOURS, freqs, 1.2),
        latent_norm=Norm(bench.vector(width), 1e-6),
        k_b=bench.matrix(n_heads, width, plain, kind=kind, name="blk.0.attn_k_b.weight"),
        v_b=bench.matrix(n_heads, value, width, kind=kind, name="blk.0.attn_v_b.weight"),
    )
    identity = bench.identity(n_heads * value)
    all_rows = attention.q_width + attention.cell_width
    picks = np.eye(all_rows, dtype=np.float32)
    parts = [picks[: attention.q_width], picks[attention.q_width :]]
    q_of, cells_of = (bench.given(part) for part in parts)

    def body(ops: Ops, step: Step, state: Any) -> Rows:
        rows = ops.pack(ops.given_rows(step, all_rows))
        q, cells = ops.matmul(rows, q_of), ops.matmul(rows, cells_of)
        return ops.matmul(ops.attend_latent(q, cells, attention, state, step), identity)

    shape = StateShape((KvShape(1, attention.cell_width, 0),))
    return OpsAlone(bench, body, shape), all_rows


Maker = Callable[[Bench], tuple[OpsAlone, int]]
SHARED = Case(source=KvSource.SHARED, heads=(6, 2), normed=True, head_gates=True)
WIDE_SHARED = Case(source=KvSource.SHARED, dims=(512, 512), n_rot=128, window=12)
ALL: dict[str, Maker] = {
    **{name: lambda bench, case=case: attending(bench, case) for name, case in CASES.items()},  # type: ignore[misc]
    "shared cells": lambda bench: sharing(bench, SHARED),
    "shared cells of 512": lambda bench: sharing(bench, WIDE_SHARED),
    "latent": lambda bench: latent(bench, "F32"),
    "latent, halves": lambda bench: latent(bench, "F16"),
    "latent, quantised": lambda bench: latent(bench, "Q8_0"),
}


def rows_for(width: int) -> Floats:
    return np.random.default_rng(4).standard_normal((N_ROWS, width)).astype(np.float32)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.slow
def test_steps_are_near_the_reference(name: str, shim: None) -> None:
    (ours, width), (reference, _) = ALL[name](Bench("cuda")), ALL[name](Bench("torch"))
    rows = rows_for(width)
    made = ours(rows, CUTS)
    assert relative_error(made, reference(rows, [N_ROWS])) < NEAR
    again, _ = ALL[name](Bench("cuda"))
    assert np.array_equal(again(rows, [6, 5, 16]), made)


@pytest.mark.parametrize("name", ALL)
def test_prompts_are_near_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, prompts=PROMPTS)
    (ours, width), (reference, _) = ALL[name](Bench("cuda")), ALL[name](Bench("torch"))
    rows = rows_for(width)
    expected = reference(rows, [N_ROWS])
    # A piece from the beginning, one behind it, and single rows on their cells.
    assert relative_error(ours(rows, [11, 13, 2, 1]), expected) < NEAR_IN_PROMPTS


@pytest.mark.parametrize("name", ["latent", "512 elements"])
def test_cells_are_saved_and_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers without values too, as half floats and as bytes."""
    use_for_cuda(monkeypatch)
    for device in ("cuda", "cuda q8_0"):
        (first, width), (second, _) = ALL[name](Bench(device)), ALL[name](Bench(device))
        rows, pages = rows_for(width), [4, 1, 0]
        first(rows, [20])
        image = first.backend.save_slot(first.state, 0, PAGES, 20, 0)
        assert ("kv.0.values" in image) == (name != "latent")
        second.backend.load_slot(second.state, 0, pages, image)
        expected = first(rows, [3], past=20)
        assert np.array_equal(second(rows, [3], past=20, pages=pages), expected)
        first.backend.copy_pages(first.state, [PAGES[1]], [4])
        copied = [PAGES[0], 4, PAGES[2]]
        assert np.array_equal(first(rows, [3], past=20, pages=copied), expected)


def test_a_shared_layer_leaves_cells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch)
    alone, width = sharing(Bench("cuda"), SHARED)
    alone(rows_for(width), [5])
    before = alone.backend.save_slot(alone.state, 0, PAGES, 5, 0)
    own = attention_of(Bench("cuda"), SHARED)

    def body(ops: Ops, step: Step, state: Any) -> Rows:
        return ops.matmul(
            ops.attend(ops.given_rows(step, own.width), own, alone.state, step), identity
        )

    bench = Bench("cuda")
    identity = bench.identity(own.n_heads * own.value_dim)
    OpsAlone(bench, body)(rows_for(own.width), [1], past=4)
    after = alone.backend.save_slot(alone.state, 0, PAGES, 5, 0)
    assert all(np.array_equal(after[key], part) for key, part in before.items())
