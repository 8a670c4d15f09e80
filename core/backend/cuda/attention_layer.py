"""Attention of a layer: three launches, and what they share between layers."""

from __future__ import annotations

import math

from ....cuda_kernels.attention import AttentionHeads, Parts, n_splits, parts_shapes
from ....cuda_kernels.attn_combine import attn_combine
from ....cuda_kernels.attn_prefill import PrefillRows, attn_prefill
from ....cuda_kernels.attn_prep import HeadNorm, Preparation, Rope, attn_prep, turns
from ....cuda_kernels.attn_verify import attn_verify
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.kv_pages import KvPages
from ....cuda_kernels.packed import PackedRows
from ..layers import Attention, Norm, RopePairs
from .device_contract import Device
from .device_step import DeviceStep
from .step_memory import StepLimits, rounded_up
from .step_sizes import context_bucket


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
        heads = AttentionHeads(a.n_heads, cache.heads, a.gated, a.window)
        queries, parts = self._room(heads, step, limits)
        launcher, arrays = self._launcher, step.attention
        attn_prep(launcher, heads, self._preparation(a), qkv, arrays, cache, queries)
        attn_verify(launcher, heads, step.shape.max_rows, arrays, cache, queries, parts)
        attn_combine(launcher, heads, arrays, parts, qkv, sinks=a.sinks, packed=out)

    def attend_prompt(
        self, qkv: Array, a: Attention, cache: KvPages, step: DeviceStep, out: Array
    ) -> None:
        """Rows of one prompt, to bfloat16 `out`."""
        heads = AttentionHeads(a.n_heads, cache.heads, a.gated, a.window)
        queries = self._device.empty(heads.queries_shape(step.n_rows), "uint32")
        launcher, arrays = self._launcher, step.attention
        attn_prep(launcher, heads, self._preparation(a), qkv, arrays, cache, queries)
        rows = PrefillRows(queries, qkv, out)
        attn_prefill(launcher, heads, arrays, cache, rows, sinks=a.sinks)

    def _room(
        self, heads: AttentionHeads, step: DeviceStep, limits: StepLimits
    ) -> tuple[Array, Parts]:
        """Layers of one kind, and steps of all sizes, run one after the other in one memory."""
        n_rows, splits = step.n_rows, n_splits(step.shape.cells, heads.splits_per_octave)
        most_rows = rounded_up(max(n_rows, limits.n_rows))
        most_splits = max(splits, n_splits(context_bucket(limits.n_cells), heads.splits_per_octave))
        key = heads.n_heads, heads.kv, most_rows, most_splits
        if key not in self._scratch:
            sums, totals = parts_shapes(heads, most_rows, most_splits)
            empty = self._device.empty
            queries = empty(heads.queries_shape(most_rows), "uint32")
            self._scratch[key] = queries, empty(sums, "float32"), empty(totals, "float32")
        queries, sums, totals = self._scratch[key]
        shapes = parts_shapes(heads, n_rows, splits)
        parts = Parts(_first(sums, shapes[0]), _first(totals, shapes[1]))
        return queries[:n_rows], parts

    def _preparation(self, a: Attention) -> Preparation:
        rope = None
        if a.rope is not None:
            key = a.rope.frequencies.tobytes()
            if key not in self._turns:
                self._turns[key] = self._device.put(turns(a.rope.frequencies))
            halves = a.rope.pairs is RopePairs.HALVES
            rope = Rope(self._turns[key], halves, a.rope.magnitude)
        return Preparation(a.scale, rope, _head_norm(a.q_norm), _head_norm(a.k_norm))


def _first(memory: Array, shape: tuple[int, ...]) -> Array:
    """An array at the beginning of a larger one's memory."""
    return memory.reshape(-1)[: math.prod(shape)].reshape(shape)


def _head_norm(norm: Norm | None) -> HeadNorm | None:
    return None if norm is None else HeadNorm(norm.weight, norm.eps)
