"""A model of which some layers see a window: qwen3 files read as if they said so."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nextn.core.models import qwen3
from nextn.core.models.block import BlockBuilder
from nextn.core.models.dense import PreNormBlock
from nextn.core.models.layout import Layout
from nextn.core.models.model_weights import Weights
from nextn.core.models.self_attention import SelfAttention


def read_with_windows(
    monkeypatch: pytest.MonkeyPatch, *windows: int, chunked: bool = False
) -> None:
    """From now on layer i of a qwen3 model sees windows[i] cells, in turn; 0: all."""

    class WindowedQwen3(qwen3.Qwen3):
        def block_builder(self, weights: Weights) -> BlockBuilder:
            build = super().block_builder(weights)

            def windowed(scope: Weights, layout: Layout) -> PreNormBlock:
                window = windows[layout.block % len(windows)]
                block = build(scope, layout)
                assert isinstance(block, PreNormBlock)
                attention = block.mixer
                assert isinstance(attention, SelfAttention)
                attention.attention = replace(
                    attention.attention, window=window, chunked=chunked and window > 0
                )
                layout.kv[-1] = replace(layout.kv[-1], window=window)
                return block

            return windowed

    monkeypatch.setattr(qwen3, "Qwen3", WindowedQwen3)
