"""Attention steps on random numbers, for the CUDA kernels and for the reference in float64."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from shim.machine import Machine

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import (
    Attention,
    KvShape,
    KvSource,
    Norm,
    RopePairs,
    RotaryPositions,
    StateShape,
)
from nextn.core.backend.reference.paged_attention import attend
from nextn.core.backend.reference.state import KvLayer, ReferenceState
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.cuda_kernels import attn_prep as prep
from nextn.cuda_kernels.attention import (
    AttentionHeads,
    AttentionStep,
    Parts,
    n_splits,
    parts_shapes,
)
from nextn.cuda_kernels.attn_combine import attn_combine
from nextn.cuda_kernels.attn_scalar import attn_scalar
from nextn.cuda_kernels.attn_verify import VerifyVariant, attn_verify
from nextn.cuda_kernels.kv_pages import SCALE_BLOCK, KvHeads, KvPages
from nextn.cuda_kernels.packed import PackedRows, packed_shapes

Numpy = NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """An attention layer, and the pages of its cache."""

    n_heads: int = 4
    n_kv_heads: int = 2
    key_dim: int = 64
    value_dim: int = 64
    int8_keys: bool = False
    int8_values: bool = False
    gated: bool = False
    window: int = 0
    hides_first: bool = False
    causal: bool = True
    chunked: bool = False
    has_sinks: bool = False
    has_norms: bool = False
    pairs: RopePairs | None = RopePairs.HALVES
    n_turned: int = 0  # elements; 0: all
    magnitude: float = 1.0
    page_len: int = 32
    n_pages: int = 24
    seed: int = 0
    v_norms: bool = False
    source: KvSource = KvSource.ROWS
    head_gates: bool = False
    cap: float = 0.0
    value_scale: float = 1.0

    @property
    def heads(self) -> AttentionHeads:
        kv = KvHeads(
            self.n_kv_heads, self.key_dim, self.value_dim, self.int8_keys, self.int8_values
        )
        return AttentionHeads(
            self.n_heads,
            kv,
            self.gated,
            self.window,
            self.chunked,
            self.hides_first,
            self.causal,
            has_keys=self.source is not KvSource.SHARED,
            has_values=self.source is KvSource.ROWS,
            head_gates=self.head_gates,
            cap=self.cap,
            value_scale=self.value_scale,
        )

    @property
    def rope(self) -> RotaryPositions | None:
        if self.pairs is None:
            return None
        pairs = (self.n_turned or self.key_dim) // 2
        return RotaryPositions(self.pairs, 1e4 ** -(np.arange(pairs) / pairs), self.magnitude)

    def attention(self) -> Attention:
        """With weights in float64."""
        rng = np.random.default_rng(self.seed + 1)

        def norm() -> Norm | None:
            weight = torch.from_numpy(rng.uniform(0.5, 1.5, self.key_dim).astype(np.float32))
            return Norm(weight.double(), 1e-6) if self.has_norms else None

        sinks = torch.from_numpy(rng.normal(size=self.n_heads).astype(np.float32)).double()
        v_weight = torch.from_numpy(rng.uniform(0.5, 1.5, self.value_dim).astype(np.float32))
        return Attention(
            layer=0,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            scale=self.key_dim**-0.5,
            rope=self.rope,
            q_norm=norm(),
            k_norm=norm(),
            gated=self.gated,
            window=self.window,
            hides_first=self.hides_first,
            causal=self.causal,
            chunked=self.chunked,
            sinks=sinks if self.has_sinks else None,
            v_norm=Norm(v_weight.double(), 1e-6) if self.v_norms else None,
            head_gates=self.head_gates,
            cap=self.cap,
            value_scale=self.value_scale,
            source=self.source,
        )


@dataclass
class Cache:
    """A layer's arrays on the host: cells that nobody may read are NaN."""

    layer: Layer
    arrays: dict[str, Numpy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layer = self.layer
        for name, shape, dtype in layer.heads.kv.arrays(layer.n_pages, layer.page_len):
            fill = 101 if dtype == "int8" else np.nan
            self.arrays[name] = np.full(shape, fill, dtype)

    def fill(self, pages: Numpy, n_cells: int, rng: np.random.Generator) -> None:
        """The first cells of a sequence with random numbers."""
        for cell in range(n_cells):
            where = pages[cell // self.layer.page_len], slice(None), cell % self.layer.page_len
            for name, array in self.arrays.items():
                shape = array[where].shape
                if array.dtype == np.int8:
                    array[where] = rng.integers(-127, 128, shape)
                elif "scales" in name:
                    array[where] = rng.uniform(0.5, 1.5, shape) / 80
                else:
                    array[where] = rng.normal(size=shape)

    def floats(self, name: str) -> Numpy:
        """Keys or values as float64, (cells, heads, dim)."""
        x = self.arrays[f"{name}s"].astype(np.float64)
        scales = self.arrays.get(f"{name}_scales")
        if scales is not None:
            x *= np.repeat(scales.astype(np.float64), SCALE_BLOCK, axis=-1)
        return x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])


class FrozenCells:
    """A cache that stays as it is, and notes what the reference wants to put there."""

    def __init__(self, cells: Numpy) -> None:
        self.cells = torch.from_numpy(cells)
        self.device = self.cells.device
        self.put: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __getitem__(self, at: torch.Tensor) -> torch.Tensor:
        return self.cells[at]

    def __setitem__(self, at: torch.Tensor, x: torch.Tensor) -> None:
        self.put.append((at, x))


@dataclass
class Result:
    rows: Numpy
    packed: PackedRows
    cache: Cache
    queries: Numpy


@dataclass
class Case:
    """New rows of some sequences."""

    layer: Layer
    past: list[int]
    pages: list[Numpy]
    qkv: list[Numpy]  # (rows, width) of each
    cache: Cache
    first_position: int = 0  # of cell 0

    @property
    def n_rows(self) -> list[int]:
        return [len(rows) for rows in self.qkv]

    def only(self, b: int, rows: slice, cache: Cache | None = None) -> Case:
        """A few rows of one sequence. `cache`: with what the rows before have left there."""
        first = range(self.n_rows[b])[rows].start
        return replace(
            self,
            past=[self.past[b] + first],
            pages=[self.pages[b]],
            qkv=[self.qkv[b][rows]],
            cache=cache or self.cache,
        )

    def step(self, spare_pages: int = 0) -> Step:
        pieces = [
            StepPart(
                [0] * rows,
                past,
                [*map(int, pages), *[2**30] * spare_pages],
                first_position=self.first_position + past,
            )
            for past, rows, pages in zip(self.past, self.n_rows, self.pages, strict=True)
        ]
        return build_step(pieces)

    def reference(self, cache: Cache) -> tuple[Numpy, FrozenCells, FrozenCells]:
        """Rows in float64 over the cells as they are."""
        layer = self.layer
        shape = StateShape((KvShape(layer.n_kv_heads, layer.key_dim, layer.value_dim),))
        sizes = StateRoom(layer.n_pages, layer.page_len, 1, 1)
        state = ReferenceState(shape, sizes, torch.device("cpu"), torch.float64)
        keys, values = FrozenCells(cache.floats("key")), FrozenCells(cache.floats("value"))
        state.kv[0] = cast(KvLayer, _FrozenLayer(keys, values))
        qkv = torch.from_numpy(np.concatenate(self.qkv)).double()
        return attend(qkv, layer.attention(), state, self.step()).numpy(), keys, values


@dataclass
class _FrozenLayer:
    keys: FrozenCells
    values: FrozenCells


def random_case(layer: Layer, past: list[int], n_rows: list[int], first_position: int = 0) -> Case:
    """A sequence for each pair. Pages lie anywhere, and have room for the new rows."""
    rng = np.random.default_rng(layer.seed)
    cache, pages, qkv = Cache(layer), [], []
    order = rng.permutation(layer.n_pages)
    for n_past, n_new in zip(past, n_rows, strict=True):
        need = -(-(n_past + n_new) // layer.page_len)
        pages.append(order[:need])
        order = order[need:]
        cache.fill(pages[-1], n_past, rng)
        qkv.append(rng.normal(size=(n_new, layer.heads.width)).astype(np.float32))
    return Case(layer, past, pages, qkv, cache, first_position)


def run(
    machine: Machine,
    case: Case,
    *,
    context: int = 0,
    spare_rows: int = 0,
    variant: VerifyVariant | None = None,
) -> Result:
    """All three kernels. `context`: that the launch is made for; `spare_rows` belong to nobody."""
    layer, heads, launcher = case.layer, case.layer.heads, machine.launcher
    step = case.step(spare_pages=1)
    qkv = np.concatenate([*case.qkv, np.full((spare_rows, heads.width), np.nan, np.float32)])
    positions = np.concatenate([step.positions, np.zeros(spare_rows, np.int32)])
    arrays = (machine.put(x) for x in (positions, step.starts, step.past, step.pages))
    on_device = AttentionStep(*arrays)
    n_rows = len(qkv)
    cells = {name: machine.put(array) for name, array in case.cache.arrays.items()}
    cache = KvPages(heads.kv, **cells)
    rows_in, queries = machine.put(qkv), machine.garbage(heads.queries_shape(n_rows), np.uint32)
    prep.attn_prep(launcher, heads, preparation(machine, layer), rows_in, on_device, cache, queries)
    most = max(p + r for p, r in zip(case.past, case.n_rows, strict=True))
    splits = n_splits(max(context, most), heads.splits_per_octave)
    parts = Parts(*(machine.garbage(shape) for shape in parts_shapes(heads, n_rows, splits)))
    if heads.is_scalar:
        attn_scalar(launcher, heads, max(case.n_rows), on_device, cache, queries, parts)
    else:
        attn_verify(
            launcher, heads, max(case.n_rows), on_device, cache, queries, parts,
            variant=variant,
        )  # fmt: skip
    rows = machine.garbage((n_rows, heads.out_width))
    shapes = packed_shapes(n_rows, heads.out_width)
    types = np.int8, np.float32, np.int16
    packed = [machine.garbage(s, t) for s, t in zip(shapes, types, strict=True)]
    sinks = layer.attention().sinks
    attn_combine(
        launcher, heads, on_device, parts, rows_in,
        sinks=None if sinks is None else machine.put(sinks.float().numpy()),
        packed=PackedRows(*packed), rows=rows,
    )  # fmt: skip
    after = Cache(layer, {})
    after.arrays = {name: machine.get(array) for name, array in cells.items()}
    results = [machine.get(x) for x in (rows, *packed, queries)]
    return Result(results[0], PackedRows(*results[1:4]), after, results[4])


def preparation(machine: Machine, layer: Layer) -> prep.Preparation:
    attention, rope = layer.attention(), None

    def norm(of: Norm | None) -> prep.HeadNorm | None:
        return None if of is None else prep.HeadNorm(machine.put(of.weight.float().numpy()), of.eps)

    if layer.rope is not None:
        turns = machine.put(prep.turns(layer.rope.frequencies))
        rope = prep.Rope(turns, layer.rope.pairs is RopePairs.HALVES, layer.rope.magnitude)
    norms = (norm(of) for of in (attention.q_norm, attention.k_norm, attention.v_norm))
    return prep.Preparation(attention.scale, rope, *norms)
