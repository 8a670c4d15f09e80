"""Gated DeltaNet layers with random weights: on the kernels, and on the reference in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from shim.machine import Machine

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import DeltaRule, HeadOrder, Norm, RecurrentShape, StateShape
from nextn.core.backend.reference.delta_rule import delta_rule
from nextn.core.backend.reference.state import ReferenceState
from nextn.core.backend.step import StepPart, build_step, pending_accepted_after
from nextn.cuda_kernels.gdn_layout import GdnSequences, GdnShape, GdnState
from nextn.cuda_kernels.gdn_rows import keep_rows
from nextn.cuda_kernels.gdn_step import (
    GdnRows,
    GdnWeights,
    GdnWorkspace,
    gdn_step,
    n_arrivals,
    raw_shape,
)
from nextn.cuda_kernels.norm_quant import NormOutputs
from nextn.cuda_kernels.packed import PackedRows, packed_shapes

from .packed_rows import rows_of

Floats = NDArray[np.float32]
EPS = 1e-6
PARTS = ("state", "ring", "keys", "updates", "decays", "header")


def gdn_shape(
    heads: tuple[int, int], head_dim: int, *, window: int = 16, tiled: bool = False, **more: int
) -> GdnShape:
    kernel = more.get("kernel", 4)
    ring = more.get("ring_rows", window + kernel - 1)
    return GdnShape(*heads, head_dim, kernel, window, ring, tiled)


class GdnLayer:
    """Weights, and rows that are true or drafted in vain."""

    def __init__(self, shape: GdnShape, *, seed: int = 3, n_rows: int = 160) -> None:
        rng = np.random.default_rng(seed)

        def numbers(*size: int) -> Floats:
            return rng.standard_normal(size).astype(np.float32)

        self.shape = shape
        self.conv = numbers(shape.channels, shape.kernel)
        self.dt_bias = numbers(shape.n_value_heads)
        self.a = -np.exp(numbers(shape.n_value_heads) - 2)
        self.norm = numbers(shape.head_dim)
        # Rows of an even width, so that they begin at 16 bytes; what fills them up is nobody's.
        self.width = shape.channels + shape.gates_width
        filled = -(-self.width // 4) * 4
        self.true_rows, self.wrong_rows = numbers(n_rows, filled), numbers(n_rows, filled)
        self.true_rows[:, self.width :] = self.wrong_rows[:, self.width :] = np.nan

    def delta(self) -> DeltaRule:
        """For the reference, in float64."""
        s = self.shape
        order = HeadOrder.TILED if s.tiled else HeadOrder.GROUPED
        conv, dt_bias, a, norm = (
            torch.from_numpy(x).double() for x in (self.conv, self.dt_bias, self.a, self.norm)
        )
        heads = s.n_key_heads, s.n_value_heads
        sizes = RecurrentShape.of_heads(*heads, s.head_dim, s.head_dim, s.kernel)
        return DeltaRule(0, sizes, order, conv, dt_bias, a, Norm(norm, EPS))


@dataclass(frozen=True)
class Part:
    """A sequence's part of a step."""

    slot: int
    past: int
    n_pending_accepted: int
    rows: Floats


class ReferenceRun:
    def __init__(self, layer: GdnLayer, n_slots: int) -> None:
        self.delta, self.width = layer.delta(), layer.width
        sizes = StateRoom(1, 1, n_slots, layer.shape.window)
        shape = StateShape((), (self.delta.shape,))
        self.state = ReferenceState(shape, sizes, torch.device("cpu"), torch.float64)

    def step(self, parts: Sequence[Part]) -> NDArray[np.float64]:
        """Outputs of all rows."""
        step = build_step([_piece(part) for part in parts if len(part.rows)])
        rows = torch.from_numpy(
            np.concatenate([part.rows for part in parts])[:, : self.width]
        ).double()
        out: NDArray[np.float64] = delta_rule(rows, self.delta, self.state, step).numpy()
        return out


def _piece(part: Part) -> StepPart:
    return StepPart(
        [0] * len(part.rows),
        part.past,
        [0],
        slot=part.slot,
        n_pending_accepted=part.n_pending_accepted,
    )


@dataclass
class Made:
    rows: Floats
    halves: NDArray[np.uint16]
    packed: PackedRows

    def part(self, start: int, end: int) -> Made:
        at = slice(start, end)
        return Made(self.rows[at], self.halves[at], rows_of(self.packed, at))

    @staticmethod
    def join(parts: Sequence[Made]) -> Made:
        def of(arrays: Iterable[Any]) -> Any:
            return np.concatenate(list(arrays))

        packed = (of(getattr(p.packed, name) for p in parts) for name in ("q", "d", "s"))
        rows, halves = of(p.rows for p in parts), of(p.halves for p in parts)
        return Made(rows, halves, PackedRows(*packed))


class KernelRun:
    """One layer on a machine. Whatever nobody has written yet is NaN."""

    def __init__(self, machine: Machine, layer: GdnLayer, n_slots: int, **options: Any) -> None:
        """`plain`: inputs are given as rows; `rows_per_thread`: of the kernel."""
        self.machine, self.layer = machine, layer
        self.plain = options.pop("plain", False)
        self.options = options
        self.state = garbage_state(machine, layer.shape, n_slots)
        put = machine.put
        self.weights = GdnWeights(
            layer.shape, put(layer.conv), put(layer.dt_bias), put(layer.a), put(layer.norm), EPS
        )

    def step(self, parts: Sequence[Part]) -> Made:
        m, s, put = self.machine, self.layer.shape, self.machine.put
        rows = np.concatenate([part.rows for part in parts])
        starts = np.cumsum([0, *(len(part.rows) for part in parts)])
        columns = (
            [p.slot for p in parts],
            [p.past for p in parts],
            [p.n_pending_accepted for p in parts],
        )
        sequences = GdnSequences(*(put(np.array(x, np.int32)) for x in (starts, *columns)))
        given = put(rows)
        workspace = GdnWorkspace(
            m.garbage(raw_shape(s, len(rows))),
            put(np.zeros(n_arrivals(s, len(rows), len(parts)), np.int32)),
        )
        shapes = packed_shapes(len(rows), s.value_width)
        kinds = (np.int8, np.float32, np.int16)
        packed = [m.garbage(*pair) for pair in zip(shapes, kinds, strict=True)]
        size = (len(rows), s.value_width)
        out = NormOutputs(PackedRows(*packed), m.garbage(size), m.garbage(size, np.uint16))
        if not self.plain:
            keep_rows(m.launcher, s, sequences, given, self.state.ring)
        most = max(len(part.rows) for part in parts)
        inputs = GdnRows(given, s.channels, given if self.plain else None, most)
        launch = (self.weights, self.state, sequences, inputs, workspace, out)
        gdn_step(m.launcher, *launch, **self.options)
        if self.plain:
            keep_rows(m.launcher, s, sequences, given, self.state.ring)
        assert not m.get(workspace.arrivals).any()
        made = PackedRows(*(m.get(x) for x in packed))
        return Made(m.get(out.rows), m.get(out.halves), made)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return {name: self.machine.get(getattr(self.state, name)) for name in PARTS}

    def poison(self, texts: Sequence[Text]) -> None:
        """Make NaN of all that a next step must not read."""
        s, arrays = self.layer.shape, self.snapshot()
        for text in texts:
            half = arrays["header"][text.slot, 0]
            for name in ("keys", "updates", "decays"):
                arrays[name][text.slot, 1 - half] = np.nan
                arrays[name][text.slot, half, text.n_pending_accepted :] = np.nan
            read = [(text.past - i) % s.ring_rows for i in range(1, s.kernel)]
            arrays["ring"][text.slot, np.setdiff1d(np.arange(s.ring_rows), read)] = np.nan
        self.state = GdnState(**{name: self.machine.put(x) for name, x in arrays.items()})


def garbage_state(
    machine: Machine, shape: GdnShape, n_slots: int, n_layers: int | None = None
) -> GdnState:
    first = () if n_layers is None else (n_layers,)
    arrays = {
        name: machine.garbage((*first, *size)) for name, size in shape.array_shapes(n_slots).items()
    }
    arrays["header"] = machine.put(np.zeros((*first, n_slots, 2), np.int32))
    return GdnState(**arrays)


class Text:
    """A sequence on a KernelRun: the true rows of its layer, with drafts that fail."""

    def __init__(self, layer: GdnLayer, slot: int) -> None:
        self.layer, self.slot = layer, slot
        self.past, self.n_pending_accepted = 0, 0

    def part(self, n_rows: int, n_valid: int) -> Part:
        """The first `n_valid` rows will hold."""
        rows = self.layer.wrong_rows[self.past : self.past + n_rows].copy()
        rows[:n_valid] = self.layer.true_rows[self.past : self.past + n_valid]
        return Part(self.slot, self.past, self.n_pending_accepted, rows)

    def settle(self, n_rows: int, n_valid: int) -> None:
        if n_rows:
            self.past += n_valid
            self.n_pending_accepted = pending_accepted_after(
                self.n_pending_accepted, n_rows, n_valid, self.layer.shape.window
            )


def error(got: NDArray[Any], want: NDArray[Any]) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def bits(x: NDArray[Any]) -> NDArray[np.uint32]:
    """NaN equals itself then."""
    words: NDArray[np.uint32] = np.ascontiguousarray(x).view(np.uint32)
    return words
