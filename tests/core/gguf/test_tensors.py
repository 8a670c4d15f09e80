"""Dimensions: whatever they are, a tensor is either exactly inside its file or refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.gguf_bytes import gguf, info
from support.thoroughness import n_examples

from nextn.core.errors import FileFormatError
from nextn.core.gguf.quants import FORMATS
from nextn.core.gguf.reader import open_gguf

# Near the powers of two where 32 and 64 bit arithmetic wraps, and small ones that may fit.
EDGES = [2**k + d for k in (16, 31, 32, 33, 48, 61, 62, 63) for d in (-1, 0, 1)] + [2**64 - 1]
DIMS = st.lists(st.sampled_from(EDGES) | st.integers(0, 9) | st.integers(0, 2**64 - 1), max_size=4)
DATA = bytes(4096)


@settings(max_examples=n_examples(500), deadline=None)
@given(dims=DIMS, kind=st.sampled_from(sorted(FORMATS)))
@example(dims=[2**62, 0], kind=0)
@example(dims=[4194305, 4194305, 211106198978564], kind=0)
@example(dims=[32, 2**59], kind=8)
@example(dims=[3, 5], kind=0)
@example(dims=[256, 2], kind=12)
def test_any_dimensions(
    dims: list[int], kind: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "dims.gguf"
    path.write_bytes(gguf([], [info(dims=dims, kind=kind)], DATA))
    fmt = FORMATS[kind]
    fits = (
        1 <= len(dims) <= 4
        and dims[0] % fmt.block_size == 0
        and fmt.n_bytes(math.prod(dims)) <= len(DATA)
    )
    try:
        with open_gguf(path) as file:
            tensor = file.tensors["a.weight"]
            assert fits
            assert tensor.shape == tuple(reversed(dims))
            assert tensor.floats().shape == tensor.shape
    except FileFormatError:
        # Without elements, but too large for numpy if it had one more in each direction.
        assert not fits or (0 in dims and math.prod(max(n, 1) for n in dims) > 2**40)


@pytest.mark.parametrize("missing", [0, 1])
def test_sum_of_many_tensors_is_exact(missing: int, tmp_path: Path) -> None:
    infos = [info(f"t{k}", (8,), offset=32 * k) for k in range(100)]
    path = tmp_path / "many.gguf"
    path.write_bytes(gguf([], infos, bytes(3200 - missing)))
    if missing:
        with pytest.raises(FileFormatError, match="'t99' ends at byte"):
            open_gguf(path)
    else:
        with open_gguf(path) as file:
            assert len(file.tensors) == 100
