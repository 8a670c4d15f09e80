"""Attention, its first half: norm and turn q and k, and put k and v into their cells."""

from __future__ import annotations

from ...layers import KvSource, RopePairs
from ..emit import F32, I64, LANES, Emitter, Value
from .attention_shape import AttentionShape, StepWords
from .mathematics import F32X16
from .row_kernels import norm_row


def place_of_row(
    e: Emitter, step: list[Value], row: Value, page_len: int, table_word: int = StepWords.PAGES
) -> tuple[Value, Value]:
    """The page of a row's own cell, and the cell's number inside of it."""
    b = e.load(I64, step[StepWords.SEQUENCE_OF] + row * 8, 8)
    start = e.load(I64, step[StepWords.STARTS] + b * 8, 8)
    past = e.load(I64, step[StepWords.PAST] + b * 8, 8)
    table = step[table_word] + b * step[StepWords.PAGES_STRIDE]
    cell = past + (row - start)
    return e.load(I64, table + cell // page_len * 8, 8), cell % page_len


def write_append(e: Emitter, s: AttentionShape) -> None:
    """Norm and turn q (in place) and k; put k and v into their cell.

    Arguments: step, qkv rows, norms of q, k and v, rope tables of q and k, key pages, value pages.
    """
    arguments, part, parts = e.parameters
    step_at, qkv, q_norm, k_norm, v_norm, q_rope, k_rope, keys, values = e.words(arguments, 9)
    step = e.words(step_at, StepWords.COUNT)
    n_rows = e.load(I64, step[StepWords.ROW_SET], 8)
    first, last = e.share(n_rows * s.n_kv_heads, part, parts)
    with e.range(first, last) as unit:
        row, kv_head = unit // s.n_kv_heads, unit % s.n_kv_heads
        at = qkv + row * (4 * s.width)
        at_table = e.load(I64, step[StepWords.ROPE_ROWS] + row * 8, 8) * (4 * s.n_rot)
        with e.range(kv_head * s.group, (kv_head + 1) * s.group) as head:
            q = at + head * (4 * s.q_head)
            _place(e, s, q, (q_norm, q_rope + at_table), s.q_eps)
        if s.source is not KvSource.SHARED:
            words = (k_norm, v_norm, keys, values)
            _append_cell(e, s, step, (row, kv_head, at, k_rope + at_table), words)
    e.finish()


def _place(
    e: Emitter, s: AttentionShape, head: Value, words: tuple[Value, Value], eps: float | None
) -> None:
    """Norm and turn one head of q or k, or turn it first. `words`: weight, cosines and sines."""
    weight, angles = words
    if s.norms_turned:
        turn(e, head, angles, s.n_rot, s.pairs)
    if eps is not None:
        norm_row(e, head, weight, s.key_dim, eps, head)
    if not s.norms_turned:
        turn(e, head, angles, s.n_rot, s.pairs)


def _append_cell(
    e: Emitter,
    s: AttentionShape,
    step: list[Value],
    where: tuple[Value, Value, Value, Value],
    words: tuple[Value, Value, Value, Value],
) -> None:
    """One head of a row: its value, norm or not, then its key, which may be made of the same."""
    row, kv_head, at, angles = where
    k_norm, v_norm, keys, values = words
    page, inside = place_of_row(e, step, row, s.page_len, s.table_word)
    k = at + 4 * s.q_width + kv_head * (4 * s.key_dim)
    v = k
    if s.source is KvSource.ROWS:
        v = at + 4 * (s.q_width + s.k_width) + kv_head * (4 * s.value_dim)
    if s.v_eps is not None:
        placed = e.scratch(F32, s.value_dim)
        norm_row(e, v, v_norm, s.value_dim, s.v_eps, placed)
        v = placed
    to = values + page * s.value_page_bytes + kv_head * s.values().head_bytes
    s.values().store(e, v, to, inside)
    _place(e, s, k, (k_norm, angles), s.k_eps)
    to = keys + page * s.key_page_bytes + kv_head * s.keys().head_bytes
    s.keys().store(e, k, to, inside)


def turn(e: Emitter, x: Value, angles: Value, n_rot: int, pairs: RopePairs) -> None:
    """Rotate the first n_rot elements; the table holds all cosines, then all sines."""
    n = n_rot // 2
    vectors = pairs is RopePairs.HALVES and n % LANES == 0
    kind, step = (F32X16, LANES) if vectors else (F32, 1)
    with e.range(0, n, step) as i:
        cos, sin = e.load(kind, angles + i * 4), e.load(kind, angles + (i + n) * 4)
        if pairs is RopePairs.HALVES:
            a_at, b_at = x + i * 4, x + (i + n) * 4
        else:
            a_at, b_at = x + i * 8, x + i * 8 + 4
        a, b = e.load(kind, a_at), e.load(kind, b_at)
        e.store(a * cos - b * sin, a_at)
        e.store(a * sin + b * cos, b_at)
