"""Recurrent layers that have no kernels on CUDA are refused before anything is loaded."""

from __future__ import annotations

import pytest

from nextn.core.backend.cuda.state import count_state_bytes
from nextn.core.backend.layers import HALF_FLOATS, RecurrentShape, StateShape
from nextn.core.errors import ConfigError


@pytest.mark.parametrize(
    "shape",
    [
        RecurrentShape.of_convolution(32, 3),
        RecurrentShape.of_heads(1, 4, 32, 16, kernel=4),
        RecurrentShape.of_heads(2, 4, 16, 16, kernel=4, decay_dim=16),
    ],
    ids=["convolution", "other sizes", "decays of channels"],
)
def test_its_memory_is_not_planned(shape: RecurrentShape) -> None:
    with pytest.raises(ConfigError, match="--device cuda: recurrent layers other than those of"):
        count_state_bytes(StateShape((), (shape,)), HALF_FLOATS, page_len=16, window=4)
