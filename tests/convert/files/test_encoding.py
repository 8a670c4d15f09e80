"""Types that heads and converted checkpoints are written in, and sizes as people write them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nextn.convert.files.head_types import check_type
from nextn.convert.files.recombine import parse_size
from nextn.convert.quantize.native_quantizer import ENCODED, encode
from nextn.core.errors import ConfigError
from nextn.core.gguf.quants import find_format

EXACT = ["F32", "F16", "BF16", "Q8_0"]
# A block of Q8_0 below 1e-35 has the scale 0: its codes mean nothing, and differ between tools.
finite = st.floats(-1000, 1000, width=32).map(lambda x: x if abs(x) > 1e-30 else 0.0)


@pytest.mark.parametrize("name", EXACT)
@given(values=arrays(np.float32, (3, 64), elements=finite))
def test_bits_are_those_of_the_gguf_package(name: str, values: np.ndarray) -> None:
    got = encode(values, find_format(name)).tobytes()
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).tobytes()
    assert got == want


@pytest.mark.parametrize("name", ENCODED)
def test_what_was_encoded_is_near_what_it_was(name: str) -> None:
    values = np.random.default_rng(0).normal(0, 1, (64, 256)).astype(np.float32)
    form = find_format(name)
    data = np.frombuffer(encode(values, form).tobytes(), np.uint8)
    back = form.dequantize(data.reshape(-1, form.block_bytes)).reshape(values.shape)
    error = float(np.sqrt(np.square(back - values).mean()))
    bits = 8 * form.block_bytes / form.block_size
    assert error <= max(2.3 * 2**-bits, 1e-3 if name == "F16" else 2e-3 if name == "BF16" else 0)


def test_a_type_that_heads_have_not() -> None:
    with pytest.raises(ConfigError, match=r"'iq2_s' is not a type for a head \(known: keep, f32"):
        check_type("iq2_s")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 * 10**9), ("500M", 5 * 10**8), ("2GiB", 2**31), ("1.5k", 1500), ("7", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "4X", "1e9", "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
