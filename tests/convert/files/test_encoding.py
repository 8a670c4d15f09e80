"""Types that a head is written in: to the bit what the `gguf` package makes of the same numbers."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specdec.convert.files.encoding import Rule, check_type, encode
from specdec.convert.files.sharding import parse_size
from specdec.core.errors import ConfigError
from specdec.core.gguf.quants import find_format

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
finite = st.floats(-1000, 1000, width=32)


@pytest.mark.parametrize("name", TYPES)
@given(values=arrays(np.float32, (3, 64), elements=finite))
def test_bits_are_those_of_the_gguf_package(name: str, values: np.ndarray) -> None:
    got = encode(values, find_format(name)).tobytes()
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).tobytes()
    assert got == want


@pytest.mark.parametrize("name", TYPES)
def test_what_was_encoded_is_near_what_it_was(name: str) -> None:
    values = np.random.default_rng(0).normal(0, 1, (64, 256)).astype(np.float32)
    form = find_format(name)
    data = np.frombuffer(encode(values, form).tobytes(), np.uint8)
    back = form.dequantize(data.reshape(-1, form.block_bytes)).reshape(values.shape)
    error = float(np.sqrt(np.square(back - values).mean()))
    allowed = {"F32": 0, "F16": 1e-3, "BF16": 2e-3, "Q8_0": 8e-3, "Q5_0": 0.06, "Q5_1": 0.06}
    assert error <= allowed.get(name, 0.12)


@pytest.mark.parametrize("text", ["ffn", "=q8_0", "(=q8_0", "ffn=q9", "ffn=", "ffn=as is"])
def test_rules_that_mean_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match="is not"):
        Rule.parse(text)


def test_a_type_that_heads_have_not() -> None:
    with pytest.raises(ConfigError, match=r"'q4_k' is not a type for a head \(known: as-is, f32"):
        check_type("q4_k")


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
