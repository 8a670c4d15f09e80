"""The int8 activations of the CPU backend cost a real model next to nothing."""

from __future__ import annotations

import pytest
from support.real_model import smollm2

from nextn.convert.measure.sample_text import sample_text
from nextn.convert.measure.side_by_side import score
from nextn.convert.measure.text_chunks import cut
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime

pytestmark = pytest.mark.real


def test_distance_to_float32(runtime: Runtime) -> None:
    """3e-3 and 0.964 over the whole text."""
    chunks = cut(sample_text(), runtime.tokenizer, 256, 3)
    with load_runtime(smollm2(), "torch") as exact:
        tokens = score(runtime, exact, chunks, lambda *_: None)
    assert 0 < tokens.kl.mean() < 4.5e-3
    assert tokens.same_top.mean() > 0.94
