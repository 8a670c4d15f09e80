"""What recurrent layers and mixtures lack on CUDA is refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.running import start
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.state import count_state_bytes
from nextn.core.backend.layers import HALF_FLOATS, RecurrentShape, StateShape
from nextn.core.errors import ConfigError

Tiny = Callable[..., TinyModel]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (RecurrentShape.of_heads(1, 4, 512, 16, kernel=4), "keys of 512 values"),
        (RecurrentShape.of_convolution(30, 3), "rows of 30 values"),
    ],
)
def test_sizes_without_kernels(shape: RecurrentShape, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--device cuda: .*{reason}"):
        count_state_bytes(StateShape((), (shape,)), HALF_FLOATS, page_len=16, window=4)


def test_experts_without_gates(tiny: Tiny, shim: None) -> None:
    with pytest.raises(ConfigError, match="--device cuda: experts without gates"):
        start(tiny("nemotron_h_moe", quantise="Q8_0").path, "cuda").append([1, 2, 3])
