"""llama.cpp loads the files that are made of every layout, and drafts with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import build_checkpoint
from support.converting import convert
from support.draft_checkpoints import (
    CASES,
    N_TARGET_LAYERS,
    Arrays,
    Config,
    build_draft_checkpoint,
)
from support.llama_cpp import LlamaCpp
from support.running import random_tokens
from support.tiny_gemma import build_gemma

from nextn.convert.hf.drafters import open_target

pytestmark = pytest.mark.peer
N, N_DRAFT = 16, 3
OF_GEMMA = ("dspark-gemma4", "assistant")
OTHER_WIDTH = ("eagle3-normed",)


def lower_layers(config: Config, arrays: Arrays) -> None:
    """For a target of four layers."""
    if "target_layer_ids" in config:
        config["target_layer_ids"] = [0, 1, 2]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    build_checkpoint("qwen3", folder, settings={"num_hidden_layers": N_TARGET_LAYERS})
    return convert(folder, folder / "target.gguf")


LOADABLE = [name for name, case in CASES.items() if case.loads_there and name not in OTHER_WIDTH]


@pytest.mark.parametrize("name", LOADABLE)
def test_llama_cpp_drafts_with_it(
    name: str, qwen3: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target, edit = qwen3, None
    if name in OF_GEMMA:
        target, edit = build_gemma("gemma4", tmp_path).path, lower_layers
    made = build_draft_checkpoint(name, tmp_path, edit=edit)
    drafter = convert(made.folder, tmp_path / "draft.gguf", target=open_target(str(target)))
    prompt, how = random_tokens(24, seed=3), {"temperature": 0, "ignore_eos": True}
    with capfd.disabled(), LlamaCpp(target) as peer:
        plain = peer.write(prompt, N, **how)
    with capfd.disabled(), LlamaCpp(target, n_mtp=N_DRAFT, head=drafter) as peer:
        drafted = peer.write(prompt, N, **how)
    assert drafted.tokens == plain.tokens
    assert drafted.timings["draft_n"] > 0
