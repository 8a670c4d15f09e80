"""Tiles hold the file's bits, all of them, in another order."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.blocks import form_of

from nextn.cuda_kernels.repack import FORMATS, gated_order, repack, tiles_of, unpack

SHAPES = ((16, 256), (37, 512), (130, 768), (272, 1024))


def values_of(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return form_of("MXFP4").dequantize(blocks)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_what_was_repacked_comes_back(form: str, rows: int, width: int) -> None:
    if FORMATS[form].block_size < 256:
        width -= FORMATS[form].block_size  # a tail of less than 256
    row_bytes = form_of(form).n_bytes(width)
    data = np.random.default_rng(rows).integers(0, 256, (rows, row_bytes), dtype=np.uint8)
    packed = repack(form, data, width)
    if form == "NVFP4":
        heads = data.reshape(rows, -1, 36)[..., :4]  # what 0x7f and the sign mean is kept
        heads[:] = np.where(heads == 0x7F, 0, heads & 0x7F)
    if form == "MXFP4":
        blocks = data.reshape(-1, 17)
        above = blocks[:, 0] == 255
        back = unpack(form, packed, rows, width).reshape(-1, 17)
        assert above.any()
        assert np.array_equal(values_of(back[above]), values_of(blocks[above]))
        blocks[above] = back[above]
    assert np.array_equal(unpack(form, packed, rows, width), data)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_size_as_in_the_file(form: str) -> None:
    """5120 x 17408; every tile begins where 16-byte loads may."""
    tiles = tiles_of(form, 5120, 17408)
    assert tiles.n_bytes == form_of(form).n_bytes(5120 * 17408)
    assert tiles.form.tile_bytes % 16 == 0


@pytest.mark.parametrize("form", FORMATS)
def test_block_sizes_are_those_of_the_format(form: str) -> None:
    ours, real = FORMATS[form], form_of(form)
    assert (ours.block_size, ours.block_bytes) == (real.block_size, real.block_bytes)


def test_into_memory_that_is_there() -> None:
    data = np.random.default_rng(0).integers(0, 256, (40, 144), dtype=np.uint8)
    out = np.empty(tiles_of("Q4_K", 40, 256).n_bytes, np.uint8)
    assert repack("Q4_K", data, 256, out) is out
    assert np.array_equal(out, repack("Q4_K", data, 256))


def test_threads_make_the_same() -> None:
    data = np.random.default_rng(0).integers(0, 256, (700, 420), dtype=np.uint8)
    assert np.array_equal(repack("Q6_K", data, 512, threads=3), repack("Q6_K", data, 512))


def test_groups_of_eight_tiles_lie_together() -> None:
    """[group][k block][tile]: the second k block of the first group follows its eight tiles."""
    data = np.zeros((160, 2 * 144), np.uint8)
    data[:128, 144:] = 1
    packed = repack("Q4_K", data, 512)
    eight = 8 * 2304
    assert not packed[:eight].any()
    assert packed[eight : 2 * eight].all()
    assert not packed[2 * eight :].any()


def test_gates_lie_beside_their_ups() -> None:
    order = gated_order(24)
    assert order[:16].tolist() == [*range(8), *range(24, 32)]
    assert sorted(order) == list(range(48))
    with pytest.raises(ValueError, match="multiple of 8"):
        gated_order(20)


def test_what_has_no_tiles_is_refused() -> None:
    with pytest.raises(ValueError, match=r"IQ1_S has no tiles.*Q4_K"):
        tiles_of("IQ1_S", 16, 256)
    with pytest.raises(ValueError, match="blocks of 256"):
        tiles_of("Q4_K", 16, 128)
    with pytest.raises(ValueError, match="rows of 100 bytes"):
        repack("Q4_K", np.zeros((16, 100), np.uint8), 256)
