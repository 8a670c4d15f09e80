"""Phi's two sets of rope factors: those for short contexts where a short one is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.converting import convert
from support.hub_checkpoints import HubCheckpoint, build_hub_checkpoint
from support.plain_hub_cases import LONGROPE
from support.running import random_tokens

import nextn.core
from nextn.core.backend.layers import Floats

ORIGINAL, TRAINED = 256, 1024
FACTORS = {
    **LONGROPE,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.5, 2.0, 4.0, 6.0, 8.0, 12.0],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[HubCheckpoint, Path]:
    folder = tmp_path_factory.mktemp("phi")
    checkpoint = build_hub_checkpoint(
        "phi-longrope", folder, as_saved=True, rope_parameters=FACTORS
    )
    path = folder / "phi.gguf"
    convert(checkpoint.folder, path, kind="f32")
    return checkpoint, path


def reference(checkpoint: HubCheckpoint, tokens: list[int]) -> Floats:
    """`transformers` chooses by the length of the text."""
    with torch.no_grad():
        return np.asarray(checkpoint.hf(torch.tensor(tokens)[None]).logits[0].numpy())


@pytest.mark.parametrize(("n_ctx", "n_tokens"), [(ORIGINAL, 60), (TRAINED, 300), (None, 300)])
def test_logits_are_those_of_transformers(
    n_ctx: int | None, n_tokens: int, made: tuple[HubCheckpoint, Path]
) -> None:
    """Of a short text in a short context, and of a long text in a long one."""
    checkpoint, path = made
    tokens = random_tokens(n_tokens, seed=1)
    with nextn.core.load(path, "torch", n_ctx=n_ctx) as runtime:
        got = runtime.logits(tokens)
    assert np.abs(got - reference(checkpoint, tokens)).max() <= 1e-4


def test_the_context_decides_and_slot_files_know_it(made: tuple[HubCheckpoint, Path]) -> None:
    checkpoint, path = made
    tokens = random_tokens(60, seed=2)
    found, prints = {}, {}
    for n_ctx in (64, ORIGINAL, ORIGINAL + 1, TRAINED, None):
        with nextn.core.load(path, "torch", n_ctx=n_ctx) as runtime:
            found[n_ctx], prints[n_ctx] = runtime.logits(tokens), runtime.fingerprint
            assert runtime.model.hparams.n_ctx_train == TRAINED
    short = reference(checkpoint, tokens)
    for n_ctx in (64, ORIGINAL):
        assert np.abs(found[n_ctx] - short).max() <= 1e-4
    for n_ctx in (TRAINED, None):
        assert np.array_equal(found[n_ctx], found[ORIGINAL + 1])
        assert np.abs(found[n_ctx] - short).max() > 1e-2
    assert prints[64] == prints[ORIGINAL] != prints[TRAINED] == prints[None]
