"""Rows out of stored tables: bit-equal to the gguf package; and pairs of normed rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from shim.launcher import HostLauncher
from shim.machine import Machine
from support.blocks import random_blocks
from support.packed_rows import (
    WORST,
    empty_packed,
    garbage_packed,
    get_packed,
    pack,
    rows_of,
    same_packed,
    unpack,
)

from nextn.core.backend.layers import Norm
from nextn.core.backend.reference.paged_attention import normed as exact_normed
from nextn.core.gguf.quants import find_format
from nextn.cuda_kernels.embed import (
    GgufTable,
    Side,
    embed,
    embed_concat_quant,
    gguf_to_bf16,
    norm_pair,
)
from nextn.cuda_kernels.gguf_types import GGUF_TYPES
from nextn.cuda_kernels.norm_quant import NormOutputs, RowNorm, norm_quant
from nextn.cuda_kernels.packed import BLOCK, PackedRows

Floats = NDArray[np.float32]
TYPES = list(GGUF_TYPES)
ANY_WIDTH = ("F32", "F16", "BF16")
EPS = 1e-6


def stored(type_name: str, n_rows: int, width: int, *, wild: bool = False) -> GgufTable:
    """`wild`: all bytes at random, with scales that are infinite, subnormal or NaN."""
    if wild:
        shape = (n_rows, GGUF_TYPES[type_name].row_bytes(width))
        raw = np.random.default_rng(width).integers(0, 256, shape, dtype=np.uint8)
    else:
        raw = random_blocks(type_name, n_rows, width, seed=width).reshape(n_rows, -1)
    return GgufTable(np.ascontiguousarray(raw), type_name, width)


def floats_of(table: GgufTable) -> Floats:
    with np.errstate(all="ignore"):
        made: Floats = dequantize(table.bytes, GGMLQuantizationType[table.type])
    return made.reshape(table.n_rows, table.width)


def side(n_rows: int, width: int, seed: int, taken: list[int] | None = None) -> Side:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, width)).astype(np.float32)
    index = None if taken is None else np.array(taken, np.int32)
    return Side(rows, weighted(width, seed), index)


def weighted(width: int, seed: int) -> RowNorm:
    weight = np.random.default_rng(seed + 100).standard_normal(width).astype(np.float32)
    return RowNorm(weight, EPS)


def put_table(machine: Machine, table: GgufTable) -> GgufTable:
    return replace(table, bytes=machine.put(table.bytes))


def put_norm(machine: Machine, norm: RowNorm) -> RowNorm:
    return RowNorm(machine.put(norm.weight), norm.eps)


def put_side(machine: Machine, side: Side) -> Side:
    taken = None if side.taken is None else machine.put(side.taken)
    return Side(machine.put(side.rows), put_norm(machine, side.norm), taken)


def embedded(machine: Machine, table: GgufTable, ids: list[int]) -> Floats:
    x = machine.garbage((len(ids), table.width))
    embed(machine.launcher, put_table(machine, table), machine.put(np.array(ids, np.int32)), x)
    return machine.get(x)


def paired(machine: Machine, first: Side, second: Side) -> PackedRows:
    n_rows = len(first.rows if first.taken is None else first.taken)
    made = garbage_packed(machine, n_rows, first.rows.shape[1] + second.rows.shape[1])
    norm_pair(machine.launcher, put_side(machine, first), put_side(machine, second), made)
    return get_packed(machine, made)


def concatenated(
    machine: Machine, table: GgufTable, ids: list[int], norm: RowNorm, hidden: Side
) -> PackedRows:
    made = garbage_packed(machine, len(ids), table.width + hidden.rows.shape[1])
    embed_concat_quant(
        machine.launcher,
        put_table(machine, table),
        machine.put(np.array(ids, np.int32)),
        put_norm(machine, norm),
        put_side(machine, hidden),
        made,
    )
    return get_packed(machine, made)


def normed(machine: Machine, x: Floats, norm: RowNorm) -> Floats:
    """By the kernel of a row alone."""
    made = machine.garbage(x.shape)
    out = NormOutputs(rows=made)
    norm_quant(machine.launcher, machine.put(x), put_norm(machine, norm), out)
    return machine.get(made)


def test_sizes_are_those_of_the_formats() -> None:
    for name, kind in GGUF_TYPES.items():
        form = find_format(name)
        assert (kind.block_size, kind.block_bytes) == (form.block_size, form.block_bytes)
        assert kind.number == GGMLQuantizationType[name]


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("type_name", TYPES)
def test_rows_have_the_bits_of_the_gguf_package(
    machine: Machine, type_name: str, wild: bool
) -> None:
    table = stored(type_name, 5, 2304, wild=wild)
    exact = floats_of(table)
    x, wanted = embedded(machine, table, [4, 0, 0, 3]), exact[[4, 0, 0, 3]]
    number = ~np.isnan(x)
    assert np.array_equal(number, ~np.isnan(wanted))
    assert np.array_equal(x.view(np.uint32)[number], wanted.view(np.uint32)[number])
    halves = machine.garbage((3, 2304), np.uint16)
    gguf_to_bf16(machine.launcher, put_table(machine, table), 2, halves)
    rounded = torch.from_numpy(exact[2:]).to(torch.bfloat16)
    made = torch.from_numpy(machine.get(halves).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(made.nan_to_num(7), rounded.nan_to_num(7))


@pytest.mark.parametrize("type_name", ANY_WIDTH)
@pytest.mark.parametrize("width", [1, 7, 36, 301, 2049])
def test_ragged_rows(machine: Machine, type_name: str, width: int) -> None:
    table = stored(type_name, 3, width)
    assert np.array_equal(embedded(machine, table, [2, 1]), floats_of(table)[[2, 1]])


def test_a_token_that_is_none(machine: Machine) -> None:
    """Row 3 is in memory, but not of the table."""
    stored_rows = stored("Q4_K", 4, 256)
    whole = put_table(machine, stored_rows)
    table = replace(whole, bytes=whole.bytes[:3])
    ids = np.array([-1, 1, 3, 2**31 - 1], np.int32)
    target = machine.put(np.zeros((4, 256), np.float32))
    embed(machine.launcher, table, machine.put(ids), target)
    x = machine.get(target)
    assert np.isnan(x[[0, 2, 3]]).all()
    assert np.array_equal(x[1], floats_of(stored_rows)[1])


@pytest.mark.parametrize("widths", [(256, 256), (512, 300), (768, 2048), (5, 9), (36, 36)])
def test_pairs_of_norms(machine: Machine, widths: tuple[int, int]) -> None:
    sides = side(3, widths[0], 1), side(3, widths[1], 2)
    made = paired(machine, *sides)
    exact = np.concatenate([reference_norm(s) for s in sides], axis=1)
    values = unpack(made)[:, : sum(widths)]
    assert np.abs(values - exact).max() <= (WORST + 2e-6) * np.abs(exact).max()
    assert not unpack(made)[:, sum(widths) :].any()
    if all(width % BLOCK == 0 for width in widths):
        both = [normed(machine, s.rows, s.norm) for s in sides]
        assert same_packed(made, pack(np.concatenate(both, axis=1)))


def reference_norm(side: Side) -> Floats:
    norm = Norm(torch.from_numpy(side.norm.weight), EPS)
    made: Floats = exact_normed(torch.from_numpy(side.rows), norm).numpy()
    return made


@pytest.mark.parametrize("type_name", TYPES)
def test_embeds_and_concatenates(machine: Machine, type_name: str) -> None:
    table, norm = stored(type_name, 5, 512), weighted(512, 3)
    hidden = side(6, 512, 4, taken=[5, 0, 2])
    made = concatenated(machine, table, [4, 1, 2], norm, hidden)
    first = normed(machine, floats_of(table)[[4, 1, 2]], norm)
    second = normed(machine, hidden.rows[hidden.taken], hidden.norm)
    assert same_packed(made, pack(np.concatenate([first, second], axis=1)))


@pytest.mark.parametrize("width", [8704, 4500])
def test_more_blocks_than_warps(machine: Machine, width: int) -> None:
    """Warps then take several each, of halves or of a whole row."""
    sides = side(2, width, 5), side(2, width, 6)
    exact = np.concatenate([reference_norm(s) for s in sides], axis=1)
    values = unpack(paired(machine, *sides))[:, : 2 * width]
    assert np.abs(values - exact).max() <= (WORST + 2e-6) * np.abs(exact).max()


def test_a_row_is_the_same_in_any_company(machine: Machine) -> None:
    table, norm = stored("Q5_K", 4, 768), weighted(768, 7)
    hidden, ids = side(4, 768, 8), [3, 0, 2, 1]
    together = concatenated(machine, table, ids, norm, hidden)
    for i in range(4):
        taken = replace(hidden, taken=np.array([i], np.int32))
        alone = concatenated(machine, table, ids[i : i + 1], norm, taken)
        assert same_packed(alone, rows_of(together, slice(i, i + 1)))


def test_rows_that_do_not_exist(machine: Machine) -> None:
    """Both sides have one more in memory."""
    whole, more = put_table(machine, stored("Q8_0", 3, 256)), put_side(machine, side(3, 256, 2))
    table = replace(whole, bytes=whole.bytes[:2])
    taken = machine.put(np.array([0, 2, -1], np.int32))
    hidden = replace(more, rows=more.rows[:2], taken=taken)
    made = garbage_packed(machine, 3, 512)
    ids = machine.put(np.array([2, 0, 1], np.int32))
    norm = put_norm(machine, weighted(256, 1))
    embed_concat_quant(machine.launcher, table, ids, norm, hidden, made)
    broken = np.isnan(get_packed(machine, made).d)
    assert broken.tolist() == [[True, False], [False, True], [False, True]]


def test_shapes_are_checked() -> None:
    launcher, table = HostLauncher(), stored("Q4_0", 3, 64)
    ids = np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="IQ1_S: rows of this type"):
        GgufTable(table.bytes, "IQ1_S", 64)
    with pytest.raises(ValueError, match="not whole blocks of 256"):
        GgufTable(table.bytes, "Q4_K", 64)
    with pytest.raises(ValueError, match="Q8_0 table: shape"):
        GgufTable(table.bytes, "Q8_0", 64)
    with pytest.raises(ValueError, match="x: shape"):
        embed(launcher, table, ids, np.zeros((2, 65), np.float32))
    with pytest.raises(ValueError, match="rows 2 to 4 of a table of 3"):
        gguf_to_bf16(launcher, table, 2, np.zeros((2, 64), np.uint16))
    first, second, out = side(2, 64, 0), side(2, 64, 1), empty_packed(2, 128)
    with pytest.raises(ValueError, match="weight: shape"):
        norm_pair(launcher, Side(first.rows, weighted(63, 0)), second, out)
    with pytest.raises(ValueError, match="row numbers: shape"):
        norm_pair(launcher, side(2, 64, 0, taken=[0]), second, out)
    with pytest.raises(ValueError, match="1 rows, expected 2"):
        norm_pair(launcher, side(1, 64, 0), second, out)
    with pytest.raises(ValueError, match="q of packed rows"):
        norm_pair(launcher, first, second, PackedRows(out.q[:, :, :64], out.d, out.s))
