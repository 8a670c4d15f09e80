"""Types without tiles, as types that have them: the same numbers, to the bit, and what it costs."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from support.blocks import form_of, random_blocks

from nextn.core.backend.cuda.expanded_types import EXPANSIONS, expand, say_if_expanded, tile_type
from nextn.core.gguf.quants import FORMATS as STORED
from nextn.core.gguf.quants import find_format
from nextn.cuda_kernels.repack import FORMATS

PLAIN = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}


def test_every_type_of_a_file_has_tiles_or_is_plain() -> None:
    for form in STORED.values():
        assert tile_type(form.name) in FORMATS or form.name in PLAIN, form.name


@pytest.mark.parametrize("name", EXPANSIONS)
def test_the_same_numbers(name: str) -> None:
    rows = random_blocks(name, 7, 512).reshape(7, -1)
    stored, kept = find_format(name), form_of(EXPANSIONS[name].to)
    made = expand(name, rows)
    assert made.shape == (7, 512 // kept.block_size * kept.block_bytes)
    expected = stored.dequantize(rows.reshape(-1, stored.block_bytes)).reshape(7, 512)
    found = kept.dequantize(made.reshape(-1, kept.block_bytes)).reshape(7, 512)
    assert np.array_equal(found, expected)  # a zero may have another sign


def test_what_needs_no_expansion_stays_as_it_is() -> None:
    rows = random_blocks("Q2_K", 3, 512).reshape(3, -1)
    assert expand("Q2_K", rows) is rows


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    said: set[str] = set()
    with caplog.at_level(logging.WARNING):
        for name in ("IQ2_XXS", "Q4_K", "IQ2_XXS", "TQ2_0"):
            say_if_expanded(name, said)
    assert [record.getMessage() for record in caplog.records] == [
        "IQ2_XXS tensors have no kernel of their own on CUDA: expanded to int8 with exact scales, "
        "4.2 times their size in the file",
        "TQ2_0 tensors have no kernel of their own on CUDA: expanded to Q4_0 with exact scales, "
        "2.2 times their size in the file",
    ]
