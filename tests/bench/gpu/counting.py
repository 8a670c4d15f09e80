"""Bytes that a launch asks of memory, by what they are, from its arguments alone.

Weights, states, keys and values come from memory: they are what a step waits for. Rows between
launches are small and new, and stay in the second-level cache; each array of them is counted once
for each launch that has it. Partial sums within a launch are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nextn.core.backend.step import n_kept
from nextn.cuda_kernels.attention import n_splits
from nextn.cuda_kernels.kernel import Argument, Dim
from nextn.cuda_kernels.repack import FORMATS, TILE_ROWS, TILE_WIDTH

from .shadows import ROWS, TABLE, WEIGHTS, Shadow

STATE, RING, FACTORS, HEADER = "state", "ring", "factors", "header"
KEYS_VALUES, SCRATCH = "keys and values", "scratch"
ROWS_OF_A_PASS = 16  # that a quantised product serves for one reading of its weights


@dataclass
class Bytes:
    weights: float = 0.0
    state: float = 0.0  # recurrent: states and factors, read and written
    kv: float = 0.0
    rows: float = 0.0  # those of convolutions too, which one launch leaves in the ring for the next

    def __iadd__(self, other: Bytes) -> Bytes:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    def __mul__(self, times: float) -> Bytes:
        return Bytes(*(times * getattr(self, field.name) for field in fields(self)))

    @property
    def from_memory(self) -> float:
        return self.weights + self.state + self.kv


@dataclass(frozen=True)
class Routing:
    """How many experts rows ask: chance decides, as of independent rows."""

    n_expert: int = 1
    n_used: int = 1

    def distinct(self, n_rows: int) -> float:
        return self.n_expert * (1 - (1 - self.n_used / self.n_expert) ** n_rows)


Rule = Callable[[Sequence[Argument], Dim, Routing], Bytes]


def count(name: str, arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """ValueError of a kernel that is known to nobody and touches what only rules can count."""
    if name.startswith("dequant_"):
        return _unpacked(name, arguments)
    rule = next((rule for prefix, rule in RULES.items() if name.startswith(prefix)), _plain)
    found = rule(arguments, grid, routing)
    found.rows += float(sum(a.nbytes for a in _arrays(arguments, ROWS)))
    if name.startswith("attn_"):
        found.rows -= _unused_parts(name, arguments)
    return found


def _unpacked(name: str, arguments: Sequence[Argument]) -> Bytes:
    """Some rows of a matrix, read as tiles and written as bfloat16: dequant_Q4_K_bf16."""
    (out,) = (a for a in arguments if isinstance(a, Shadow) and a.dtype == np.uint16)
    form = FORMATS[name.removeprefix("dequant_").removesuffix("_bf16")]
    return Bytes(weights=out.size / (TILE_ROWS * TILE_WIDTH) * form.tile_bytes + out.nbytes)


def of_cublas(a: Shadow, w: Shadow, out: Shadow) -> Bytes:
    """A product of many rows, each of its arrays once."""
    return Bytes(weights=w.nbytes, rows=float(a.nbytes + out.nbytes))


def _arrays(arguments: Sequence[Argument], holds: str) -> list[Shadow]:
    return [a for a in arguments if isinstance(a, Shadow) and a.holds == holds]


def _plain(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """Weights are read once, and nothing else is there."""
    for holds in (STATE, RING, FACTORS, KEYS_VALUES, TABLE):
        if _arrays(arguments, holds):
            raise ValueError(f"a kernel that touches {holds}, and no rule says how much of them")
    return Bytes(weights=sum(a.nbytes for a in _arrays(arguments, WEIGHTS)))


def _product(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """Weights once for each 16 rows. The inputs of a convolution are written to its ring."""
    found = Bytes(weights=grid[1] * sum(a.nbytes for a in _arrays(arguments, WEIGHTS)))
    if rings := _arrays(arguments, RING):
        columns = arguments[_place(arguments, rings[0]) - 1]
        found.rows = 4.0 * arguments[5].shape[0] * columns
    return found


def _place(arguments: Sequence[Argument], wanted: Any) -> int:
    return next(i for i, argument in enumerate(arguments) if argument is wanted)


def _experts(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """Matrices of the distinct experts, and the shared one."""
    stacks = _arrays(arguments, WEIGHTS)
    n_rows = _n_rows_of_pairs(arguments)
    total = sum(
        a.nbytes / a.n_expert * (routing.distinct(n_rows) if a.n_expert > 1 else 1) for a in stacks
    )
    return Bytes(weights=total)


def _n_rows_of_pairs(arguments: Sequence[Argument]) -> int:
    """Of the arrays of bundles the last is `columns`, one for each pair; ranks of a row follow."""
    columns = next(
        i
        for i, a in enumerate(arguments)
        if isinstance(a, Shadow) and a.dtype == np.int32 and isinstance(arguments[i + 1], int)
    )
    return int(arguments[columns].shape[0]) // int(arguments[columns + 1])


def _table(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """A row of the table for each of the step."""
    rows = sum(grid[0] * a.shape[1] for a in _arrays(arguments, TABLE))
    return Bytes(weights=rows + sum(a.nbytes for a in _arrays(arguments, WEIGHTS)))


def _delta(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    (state,), (ring,) = _arrays(arguments, STATE), _arrays(arguments, RING)
    factors = _arrays(arguments, FACTORS)
    first = _place(arguments, _arrays(arguments, HEADER)[0]) + 1
    starts, _, past, replay = (np.asarray(a) for a in arguments[first : first + 4])
    window, n_slots = factors[0].shape[2], state.shape[0]
    one_state, one_row = state.nbytes / n_slots, ring.nbytes / n_slots / ring.shape[1]
    one_factor = sum(a.nbytes for a in factors) / n_slots / 2 / window
    conv = _arrays(arguments, WEIGHTS)[0].shape[1]
    moved = inputs = 0.0
    numbers = (np.diff(starts).tolist(), past.tolist(), replay.tolist())
    for n_rows, begun, n_valid in zip(*numbers, strict=True):
        if not n_rows:
            continue
        is_stored = n_valid > 0 and not n_kept(n_valid, n_rows, window)
        moved += one_state * (int(begun > 0) + int(is_stored))
        moved += one_factor * (n_valid + min(n_rows, window))
        inputs += one_row * (n_rows + conv - 1)
    weights = sum(a.nbytes for a in _arrays(arguments, WEIGHTS))
    return Bytes(weights=weights, state=moved, rows=inputs)


def _cells(arguments: Sequence[Argument], n_cells: float) -> float:
    """Bytes of so many cells of a layer."""
    arrays = _arrays(arguments, KEYS_VALUES)
    return sum((n_cells * a.nbytes / (a.shape[0] * a.shape[2]) for a in arrays), 0.0)


def _prepared(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    weights = sum(a.nbytes for a in _arrays(arguments, WEIGHTS))
    return Bytes(weights=weights, kv=_cells(arguments, grid[1]))


def _verified(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """All cells that a sequence sees, once, however many columns share them."""
    starts, past, window = np.asarray(arguments[8]), np.asarray(arguments[9]), int(arguments[12])
    rows = np.diff(starts)
    cells = (past + rows)[rows > 0]
    if window:
        cells = np.minimum(cells, window + rows[rows > 0] - 1)
    return Bytes(kv=_cells(arguments, float(cells.sum())))


def _scored(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """The same by attn_scalar, to which the sizes of a head are arguments."""
    return _verified([*arguments[:5], *arguments[7:]], grid, routing)


def _seen_by_prompt(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """All cells, once."""
    starts, past = np.asarray(arguments[8]), np.asarray(arguments[9])
    return Bytes(kv=_cells(arguments, float((past + np.diff(starts)).sum())))


def _unused_parts(name: str, arguments: Sequence[Argument]) -> float:
    """Parts of results that are there for the longest context of a graph, and that this one does
    not reach."""
    places = {
        "attn_verify": (8, 9, 13),
        "attn_scalar": (10, 11, 15),
        "attn_combine": (10, 11, 3),
    }
    place = next((found for prefix, found in places.items() if name.startswith(prefix)), None)
    if place is None:
        return 0.0
    starts, past = (np.asarray(arguments[i]) for i in place[:2])
    parts = [a for a in _arrays(arguments, ROWS) if a.ndim == 4]
    used = n_splits(int((past + np.diff(starts)).max()), int(arguments[place[2]]))
    return float(sum(a.nbytes * (1 - used / a.shape[2]) for a in parts))


def _ring_rows(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """Rows put into a ring by a launch of their own."""
    (ring,) = _arrays(arguments, RING)
    return Bytes(rows=2.0 * grid[0] * grid[1] * 4 * ring.shape[-1])


def _chunk_inputs(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """The rows before a prompt's piece, which its first convolution sees."""
    (ring,), weights = _arrays(arguments, RING), _arrays(arguments, WEIGHTS)
    before = weights[0].shape[1] - 1
    rows = before * ring.nbytes / (ring.shape[0] * ring.shape[1])
    return Bytes(weights=sum(a.nbytes for a in weights), rows=rows)


def _chunks(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """One state, as it was and as it becomes, and the factors that hold."""
    (state,), factors = _arrays(arguments, STATE), _arrays(arguments, FACTORS)
    first = _place(arguments, _arrays(arguments, HEADER)[0]) + 1
    _, past, replay = (int(np.asarray(a)[0]) for a in arguments[first : first + 3])
    one_state = state.nbytes / state.shape[0]
    one_factor = sum(a.nbytes / (a.shape[0] * 2 * a.shape[2]) for a in factors)
    return Bytes(state=one_state * (1 + int(past > 0)) + one_factor * replay)


def _vocab_subset(arguments: Sequence[Argument], grid: Dim, routing: Routing) -> Bytes:
    """Rows of a table that lies in tiles, for each of the step."""
    tiles, n_rows = arguments[0], int(arguments[1])
    return Bytes(weights=grid[0] * tiles.nbytes / n_rows)


RULES: dict[str, Rule] = {
    "gdn_chunk_prepare": _chunk_inputs,
    "gdn_chunk_run": _chunks,
    "qmm_moe_": _experts,
    "mm_moe_": _experts,
    "qmm_": _product,
    "embed": _table,
    "take_": _vocab_subset,
    "gdn_step": _delta,
    "gdn_keep_rows": _ring_rows,
    "attn_prep": _prepared,
    "attn_verify": _verified,
    "attn_scalar": _scored,
    "attn_prefill": _seen_by_prompt,
}
