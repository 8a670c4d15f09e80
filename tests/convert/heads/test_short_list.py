"""Heads of the families with a peculiarity each, against what `transformers` computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.attaching import attach_to
from support.llama_cpp import LlamaCpp
from support.running import random_tokens
from support.short_heads import SHORT, short_logits
from support.tiny_heads import TinyHead, build_head

TOLERANCE = 1e-4  # of logits with a standard deviation of about 1
LENGTH = 24  # longer than the windows
WITHOUT_GRAPH = ("glm4", "exaone4")  # llama.cpp loads these heads and never runs them
# It runs these only where layers with a recurrent state, or with sparse attention, are among them.
MIXED_ALONE = ("bailingmoe3", "dots3note")

Made = Callable[[str], tuple[TinyHead, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("short")

    @cache
    def build(name: str) -> tuple[TinyHead, Path]:
        head = build_head(name, folder, kind=SHORT[name])
        path = folder / f"{name}-attached.gguf"
        attach_to(head.trunk, head.checkpoint, path)
        return head, path

    return build


@pytest.mark.parametrize("name", SHORT)
def test_an_attached_head_computes_what_transformers_does(name: str, made: Made) -> None:
    head, path = made(name)
    hidden = np.random.default_rng(0).normal(0, 1, (LENGTH, 64)).astype(np.float32)
    tokens = random_tokens(LENGTH, seed=5)
    want = head.logits(0, hidden, tokens)
    assert 0.5 < want.std() < 2
    assert np.abs(short_logits(path, 0, hidden, tokens) - want).max() <= TOLERANCE
    wrong = short_logits(path, 0, hidden * np.linspace(0.5, 2, 64, dtype=np.float32), tokens)
    assert np.abs(wrong - want).max() > 100 * TOLERANCE


@pytest.mark.peer
@pytest.mark.parametrize("name", [name for name in SHORT if name not in MIXED_ALONE])
def test_llama_cpp_loads_the_file_and_drafts_with_it(
    name: str, made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    path = made(name)[1]
    n_mtp = 0 if name in WITHOUT_GRAPH else 1
    banned = (*range(128, 256), 509, 510, 511)
    with capfd.disabled():
        with LlamaCpp(path) as peer:
            plain = peer.greedy(random_tokens(20), 16, banned=banned)
        with LlamaCpp(path, n_mtp=n_mtp) as peer:
            drafted = peer.greedy(random_tokens(20), 16, banned=banned)
    assert drafted.tokens == plain.tokens
    assert (drafted.timings.get("draft_n", 0) > 0) == bool(n_mtp)
