"""Attention of a layer: three launches, and what they share between layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ....cuda_kernels.attention import (
    AttentionHeads,
    AttentionStep,
    Parts,
    n_splits,
    parts_shapes,
)
from ....cuda_kernels.attn_combine import attn_combine
from ....cuda_kernels.attn_prefill import PrefillRows, attn_prefill
from ....cuda_kernels.attn_prep import HeadNorm, Preparation, Rope, attn_prep, turns
from ....cuda_kernels.attn_scalar import attn_scalar
from ....cuda_kernels.attn_verify import attn_verify
from ....cuda_kernels.head_products import head_products
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.kv_pages import KvPages
from ....cuda_kernels.norm_quant import NormOutputs
from ....cuda_kernels.packed import PackedRows
from ....cuda_kernels.sum_rows import sum_rows
from ...errors import ConfigError
from ..layers import (
    Attention,
    KvSource,
    LatentAttention,
    Norm,
    QueryGrowth,
    RopePairs,
    RotaryPositions,
)
from .device_contract import Device
from .device_step import DeviceStep
from .step_memory import StepLimits, rounded_up
from .step_sizes import context_bucket


class AttentionLayer(Struct, frozen=True):
    heads: AttentionHeads
    cache: KvPages
    preparation: Preparation
    sinks: Array | None = None


class AttendedRows(Struct, frozen=True):
    """Rows of a step, or of a piece of a prompt."""

    qkv: Array | None
    step: AttentionStep
    max_rows: int  # of a sequence
    n_cells: int  # that a context may have
    cells: Array | None = None  # of latent attention: what becomes keys

    @classmethod
    def of(cls, step: DeviceStep, qkv: Array | None = None) -> AttendedRows:
        return cls(qkv, step.attention, step.shape.max_rows, step.shape.cells)


class LatentRows(NamedTuple):
    q: Array
    cells: Array


# Rows of a prompt that go through the kernels of steps at once, where attn_prefill cannot run them.
PIECE = 64


class Attender:
    def __init__(self, device: Device) -> None:
        self._device, self._launcher = device, device.launcher
        self._turns: dict[bytes, Array] = {}  # by frequencies
        self._scratch: dict[tuple[object, ...], tuple[Array, Array, Array]] = {}

    def attend(
        self,
        qkv: Array,
        a: Attention,
        cache: KvPages,
        step: DeviceStep,
        out: PackedRows,
        limits: StepLimits,
    ) -> None:
        rows = AttendedRows.of(step, qkv)
        self._attend(self._layer(a, cache), rows, limits, out)

    def append(self, qkv: Array, a: Attention, cache: KvPages, step: DeviceStep) -> None:
        layer = self._layer(a, cache)
        heads, what, arrays = layer.heads, layer.preparation, step.attention
        queries = self._device.empty(heads.queries_shape(step.n_rows), "uint32")
        attn_prep(self._launcher, heads, what, qkv, arrays, cache, queries)

    def attend_prompt(
        self, qkv: Array, a: Attention, cache: KvPages, step: DeviceStep, out: Array
    ) -> None:
        """Rows of one prompt, to bfloat16 `out`."""
        layer = self._layer(a, cache)
        heads = layer.heads
        assert a.causal, "pieces of a prompt do not see what follows"
        if heads.is_scalar or not heads.ends_plainly:
            for own, piece in self._pieces(step):
                made = self._made(layer, replace(piece, qkv=qkv[own]), StepLimits(PIECE, 0))
                sum_rows(self._launcher, made, NormOutputs(halves=out[own]))
            return
        queries = self._device.empty(heads.queries_shape(step.n_rows), "uint32")
        launcher, arrays = self._launcher, step.attention
        attn_prep(launcher, heads, layer.preparation, qkv, arrays, cache, queries)
        rows = PrefillRows(queries, qkv, out)
        attn_prefill(launcher, heads, arrays, cache, rows, sinks=a.sinks)

    def attend_latent(
        self,
        rows: LatentRows,
        a: LatentAttention,
        cache: KvPages,
        step: DeviceStep,
        limits: StepLimits,
    ) -> Array:
        """float32 (T, heads * value_dim)."""
        return self._latent(self._latent_layer(a, cache), rows, a, AttendedRows.of(step), limits)

    def attend_latent_prompt(
        self, rows: LatentRows, a: LatentAttention, cache: KvPages, step: DeviceStep, out: Array
    ) -> None:
        """The same of one prompt, to bfloat16 `out`."""
        layer, limits = self._latent_layer(a, cache), StepLimits(PIECE, 0)
        for own, piece in self._pieces(step):
            of_piece = LatentRows(rows.q[own], rows.cells[own])
            made = self._latent(layer, of_piece, a, piece, limits)
            sum_rows(self._launcher, made, NormOutputs(halves=out[own]))

    def _latent(
        self,
        layer: AttentionLayer,
        rows: LatentRows,
        a: LatentAttention,
        place: AttendedRows,
        limits: StepLimits,
    ) -> Array:
        """Attention of the latents, between k_b for queries and v_b for what comes out."""
        n_rows = int(rows.q.shape[0])
        absorbed = self._device.empty((n_rows, a.n_heads * a.cell_width), "float32")
        head_products(self._launcher, rows.q, a.k_b.of_heads, absorbed, n_copied=a.rope_dim)
        latents = self._made(layer, replace(place, qkv=absorbed, cells=rows.cells), limits)
        found = self._device.empty((n_rows, a.n_heads * a.value_dim), "float32")
        head_products(self._launcher, latents, a.v_b.of_heads, found)
        return found

    def _made(self, layer: AttentionLayer, rows: AttendedRows, limits: StepLimits) -> Array:
        out = self._device.empty((rows.step.n_rows, layer.heads.out_width), "float32")
        self._attend(layer, rows, limits, out)
        return out

    def _attend(
        self,
        layer: AttentionLayer,
        rows: AttendedRows,
        limits: StepLimits,
        out: PackedRows | Array,
    ) -> None:
        heads, cache, qkv, step = layer.heads, layer.cache, rows.qkv, rows.step
        queries, parts = self._room(heads, step.n_rows, rows.n_cells, limits)
        launcher = self._launcher
        attn_prep(launcher, heads, layer.preparation, qkv, step, cache, queries, kv_rows=rows.cells)
        scores = attn_scalar if heads.is_scalar else attn_verify
        scores(launcher, heads, rows.max_rows, step, cache, queries, parts)
        packed, floats = (out, None) if isinstance(out, PackedRows) else (None, out)
        attn_combine(
            launcher, heads, step, parts, qkv, sinks=layer.sinks, packed=packed, rows=floats
        )

    def _pieces(self, step: DeviceStep) -> Iterator[tuple[slice, AttendedRows]]:
        """Of a prompt, whose place is known to the host."""
        whole, past = step.attention, int(step.past[0])
        for first in range(0, step.n_rows, PIECE):
            own = slice(first, min(first + PIECE, step.n_rows))
            n_rows, name = own.stop - first, f"rows from {first}"
            if name not in step.made:
                numbers = np.array([0, n_rows, past + first], np.int32)
                step.made[name] = self._device.put(numbers)
            numbers = step.made[name]
            arrays = AttentionStep(whole.positions[own], numbers[:2], numbers[2:], whole.pages)
            yield own, AttendedRows(None, arrays, n_rows, step.shape.cells)

    def _room(
        self, heads: AttentionHeads, n_rows: int, n_cells: int, limits: StepLimits
    ) -> tuple[Array, Parts]:
        """Layers of one kind, and steps of all sizes, run one after the other in one memory."""
        splits = n_splits(n_cells, heads.splits_per_octave)
        most_rows = rounded_up(max(n_rows, limits.n_rows))
        most_splits = max(splits, n_splits(context_bucket(limits.n_cells), heads.splits_per_octave))
        key = heads.n_heads, heads.kv, heads.value_dim, most_rows, most_splits
        if key not in self._scratch:
            sums, totals = parts_shapes(heads, most_rows, most_splits)
            empty = self._device.empty
            queries = empty(heads.queries_shape(most_rows), "uint32")
            self._scratch[key] = queries, empty(sums, "float32"), empty(totals, "float32")
        queries, sums, totals = self._scratch[key]
        shapes = parts_shapes(heads, n_rows, splits)
        parts = Parts(_first(sums, shapes[0]), _first(totals, shapes[1]))
        return queries[:n_rows], parts

    def _layer(self, a: Attention, cache: KvPages) -> AttentionLayer:
        heads = AttentionHeads(
            a.n_heads,
            cache.heads,
            a.gated,
            a.window,
            a.chunked,
            a.hides_first,
            a.causal,
            has_keys=a.source is not KvSource.SHARED,
            has_values=a.source is KvSource.ROWS,
            head_gates=a.head_gates,
            cap=a.cap,
            value_scale=a.value_scale,
        )
        norms = (_head_norm(norm) for norm in (a.q_norm, a.k_norm, a.v_norm))
        growth = a.growth or QueryGrowth(0.0, 1)
        what = Preparation(
            a.scale,
            self._rope(a.rope),
            *norms,
            norms_turned=a.norms_turned,
            growth=growth.factor,
            trained=growth.trained,
            ahead=growth.ahead,
        )
        return AttentionLayer(heads, cache, what, a.sinks)

    def _latent_layer(self, a: LatentAttention, cache: KvPages) -> AttentionLayer:
        """All heads share one cell, which rows of their own bring."""
        heads = AttentionHeads(
            a.n_heads, cache.heads, hides_first=a.hides_first, has_keys=False, has_values=False,
            latent=a.latent,
        )  # fmt: skip
        what = Preparation(a.scale, self._rope(a.rope), k_norm=_head_norm(a.latent_norm))
        return AttentionLayer(heads, cache, what)

    def _rope(self, rope: RotaryPositions | None) -> Rope | None:
        if rope is None:
            return None
        key = rope.frequencies.tobytes()
        if key not in self._turns:
            self._turns[key] = self._device.put(turns(rope.frequencies))
        return Rope(self._turns[key], rope.pairs is RopePairs.HALVES, rope.magnitude)


def _first(memory: Array, shape: tuple[int, ...]) -> Array:
    """An array at the beginning of a larger one's memory."""
    return memory.reshape(-1)[: math.prod(shape)].reshape(shape)


def _head_norm(norm: Norm | None) -> HeadNorm | None:
    if norm is None:
        return None
    if norm.centred or norm.bias is not None:
        raise ConfigError(
            "--device cuda: norms of heads with a mean or a bias cannot be run; use --device cpu"
        )
    return HeadNorm(norm.weight, norm.eps)
