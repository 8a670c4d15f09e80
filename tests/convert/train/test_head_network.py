"""MTP heads in training compute what the runtime computes, for every family that is covered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attaching import attach_to
from support.draft_logits import chained_logits, read_text
from support.every_family import EVERY_WITH_MTP
from support.network_drafts import N_CTX, Tiny, features
from support.running import random_tokens
from support.short_heads import SHORT
from support.tiny_heads import build_head
from support.vocab import N_VOCAB

from nextn.convert.files.output_file import OutputFile
from nextn.convert.files.recombine import extract
from nextn.convert.heads.stored_head import EMBED, OWN_HEAD
from nextn.convert.train.head_ops import HeadOps
from nextn.convert.train.mtp_kind import MtpKind
from nextn.convert.train.training_target import TrainingTarget
from nextn.core.backend.layers import Attention, float_part
from nextn.core.errors import ConfigError, ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import NO_SPECULATION

TOKENS = random_tokens(30, 3, N_VOCAB)
DRAFTED = random_tokens(3, 8, N_VOCAB)
REFUSED = {"mimo2": "3 MTP heads", "step35": "2 MTP heads"}
COVERED = [*(name for name in EVERY_WITH_MTP if name not in REFUSED), "glm4", "exaone4"]


def plain(path: Path) -> Runtime:
    return load_runtime(path, "torch", n_ctx=N_CTX, spec=NO_SPECULATION)


@torch.no_grad()
def trained_logits(path: Path, start_from: Path | None = None) -> Any:
    """Of each drafted token behind the text, in the network that training begins with."""
    with plain(path) as runtime:
        kind = MtpKind(runtime, start_from)
        target = TrainingTarget(runtime, None, kind.layers)
        scale = torch.ones(target.n_features)
        network = kind.network(runtime, target, scale, (1.0, 1.0, 1.0))
        rows = features(runtime, TOKENS, [f"blk.{n}.input" for n in kind.layers])
        hidden = network.begin(target, torch.from_numpy(rows).float()[None])
        past: Any = []
        tokens, logits = torch.tensor([TOKENS]), []
        for token in DRAFTED:
            hidden = network.step(target, tokens, hidden, past)
            logits.append(network.head_rows(hidden)[0, -1] @ network.head(target).T)
            tokens = tokens.clone()
            tokens[0, -1] = token
    return torch.stack(logits)


def with_head(family: str, tiny: Tiny, folder: Path) -> Path:
    if family not in SHORT:
        path: Path = tiny(family, mtp=True).path
        return path
    made, path = build_head(family, folder, kind=SHORT[family]), folder / "whole.gguf"
    attach_to(made.trunk, made.checkpoint, path)
    return path


@pytest.mark.parametrize("family", COVERED)
def test_logits_are_those_of_the_runtime(family: str, tiny: Tiny, tmp_path: Path) -> None:
    assert_same_logits(with_head(family, tiny, tmp_path), tmp_path / "head.gguf")


def test_a_head_with_an_embedding_and_a_matrix_of_its_own(tiny: Tiny, tmp_path: Path) -> None:
    """They are used, and stay as they are."""
    path, rng = tmp_path / "whole.gguf", np.random.default_rng(5)
    with open_gguf(tiny("qwen35", mtp=True).path) as file:
        own = [
            float_part(f"blk.4.{stem}", rng.standard_normal((N_VOCAB, 64), np.float32))
            for stem in (EMBED, OWN_HEAD)
        ]
        tensors = [*file.tensors.values(), *(part.tensor for part in own)]
        write_gguf(path, file.metadata, map(TensorData.of, tensors))
    assert_same_logits(path, tmp_path / "head.gguf")
    with plain(path) as runtime:
        kind = MtpKind(runtime, None)
        target = TrainingTarget(runtime, None, kind.layers)
        network = kind.network(runtime, target, torch.ones(target.n_features), (1.0,))
        kind.write(tmp_path / "trained.gguf", network, target, "F32")
    assert not any(name.endswith((EMBED, OWN_HEAD)) for name in network.stored)
    with open_gguf(tmp_path / "trained.gguf") as file:
        for part in own:
            assert np.array_equal(file.tensors[part.tensor.name].data, part.tensor.data)


def assert_same_logits(path: Path, head: Path) -> None:
    """The network that training begins with, and the runtime's."""
    with open_gguf(path) as file:
        extract(file, OutputFile(head))
    want = torch.from_numpy(chained_logits(read_text(path, head, TOKENS), DRAFTED))
    torch.testing.assert_close(trained_logits(path), want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(trained_logits(path, head), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", REFUSED)
def test_heads_that_are_not_covered(family: str, tiny: Tiny) -> None:
    path = tiny(family, mtp=True).path
    with plain(path) as runtime, pytest.raises(ConfigError, match=REFUSED[family]):
        MtpKind(runtime, None)


@pytest.mark.parametrize("more", [{"window": 39}, {"sinks": torch.ones(2)}, {"cap": 3.0}])
def test_attention_that_is_not_covered(more: dict[str, Any]) -> None:
    layer = Attention(0, 2, 2, 8, 8, 1.0, None, **more)
    with pytest.raises(ConfigError, match="is not trained here"):
        HeadOps(longest=40).attend(torch.ones(3, 48), layer, [], None)


def test_what_no_head_can_be_made_for(tiny: Tiny) -> None:
    with plain(tiny("llama").path) as runtime:
        with pytest.raises(ConfigError, match=r"--kind mtp is for .*qwen35.* llama; --kind eagle3"):
            MtpKind(runtime, None)
        with pytest.raises(ConfigError, match="--kind mtp is for"):
            MtpKind(runtime, tiny("qwen35", mtp=True).path)
    with plain(tiny("qwen35").path) as runtime:
        with pytest.raises(ConfigError, match="is of qwen3next"):
            MtpKind(runtime, tiny("qwen3next", mtp=True).path)
        with pytest.raises(ModelError, match="no MTP head"):
            MtpKind(runtime, tiny("llama").path)


@pytest.mark.parametrize("family", ["qwen35", "qwen3next", "glm4moe", "deepseek2"])
def test_a_new_head_begins_like_the_last_layer(family: str, tiny: Tiny) -> None:
    """It drafts from the hidden row alone: what the token is changes nothing yet."""
    with plain(tiny(family).path) as runtime:
        kind = MtpKind(runtime, None)
        assert not kind.is_trained
        assert "layer" in kind.begins
        target = TrainingTarget(runtime, None, kind.layers)
        scale = torch.full((target.n_features,), 0.5)
        network = kind.network(runtime, target, scale, (1.0,))
        with torch.no_grad():
            hidden = torch.randn(1, 5, target.width)
            first, other = (
                network.step(target, torch.randint(0, N_VOCAB, (1, 5)), hidden, []) for _ in "ab"
            )
        torch.testing.assert_close(first, other)
        network.step(target, torch.zeros(1, 5, dtype=torch.long), hidden, []).sum().backward()
        grads = {name: value.grad for name, value in network.stored.items()}
        assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
