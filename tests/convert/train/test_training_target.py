"""What a drafter in training sees of its target is what the target computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.network_drafts import N_CTX, Tiny
from support.running import random_tokens
from support.vocab import N_VOCAB

from nextn.convert.train.drafter_shape import shape_for
from nextn.convert.train.eagle3_network import Eagle3Network
from nextn.convert.train.last_layer import start_from_last_layer
from nextn.convert.train.training_target import TrainingTarget, read_features
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import NO_SPECULATION

TOKENS = random_tokens(20, 3, N_VOCAB)


def plain(path: Path) -> Runtime:
    return load_runtime(path, "torch", n_ctx=N_CTX, spec=NO_SPECULATION)


@pytest.mark.parametrize("family", ["llama", "gemma2", "cohere2", "granite", "qwen35"])
def test_distributions_are_those_of_the_model(family: str, tiny: Tiny) -> None:
    """With norms of other kinds, scales and caps; and of a head that knows some tokens."""
    with plain(tiny(family).path) as runtime:
        (features,) = read_features(runtime, TrainingTarget(runtime).layers, [TOKENS])
        logits = torch.from_numpy(np.array(runtime.logits(TOKENS)))
        for tokens in (None, torch.arange(3, N_VOCAB, 7)):
            found = TrainingTarget(runtime, tokens).distributions(features.float())
            chosen = logits if tokens is None else logits[:, tokens]
            torch.testing.assert_close(found, chosen.softmax(-1), atol=2e-3, rtol=0)


@pytest.mark.parametrize(("family", "n_taken"), [("llama", 7), ("qwen2", 7), ("qwen3", 3)])
def test_the_last_layer_is_taken_over_where_it_fits(family: str, n_taken: int, tiny: Tiny) -> None:
    with plain(tiny(family).path) as runtime:
        target = TrainingTarget(runtime)
        network = Eagle3Network(shape_for(runtime), target, torch.ones(target.n_features))
        assert len(start_from_last_layer(network, runtime)) == n_taken
        narrow = replace(shape_for(runtime), intermediate_size=32, head_dim=8)
        network = Eagle3Network(narrow, target, torch.ones(target.n_features))
        assert start_from_last_layer(network, runtime) == []
