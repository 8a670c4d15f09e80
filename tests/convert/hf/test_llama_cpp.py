"""llama.cpp loads what was converted, reads text as it does, and says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import build_checkpoint
from support.converting import convert
from support.llama_cpp import LlamaCpp
from support.running import random_tokens
from support.tiny_models import FAMILIES, WITH_MTP, YARN_ROPE
from support.tokenizer_files import sentence_piece_merges

from nextn.core.sampling.sampler import logprobs

pytestmark = pytest.mark.peer

N, N_PROBS = 16, 48
TOLERANCE = 1e-4  # of a log-probability
# Its server says nothing of control tokens and of bytes that wait for the rest of a character.
BANNED = (*range(128, 256), 509, 510, 511)
ROPES = {
    "yarn": {**YARN_ROPE, "attention_factor": 0.8, "beta_fast": 16.0},
    "linear": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in FAMILIES} | {
    f"llama-{kind}": ("llama", {"rope_parameters": rope}) for kind, rope in ROPES.items()
}


@pytest.mark.parametrize("case", CASES)
def test_same_probabilities(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name, settings = CASES[case]
    made = build_checkpoint(name, tmp_path, mtp=name in WITH_MTP, settings=settings)
    path = convert(tmp_path, tmp_path / "out.gguf")
    prompt = random_tokens(40, seed=40)
    with capfd.disabled(), LlamaCpp(path) as peer:
        written = peer.greedy(prompt, N, n_probs=N_PROBS, banned=BANNED)
    with torch.no_grad():
        ids = torch.tensor([*prompt, *written.tokens[:-1]])[None]
        ours = logprobs(made.hf(ids).logits[0].numpy()[len(prompt) - 1 :])
    found = np.array(
        [
            [abs(row[token] - value) for token, value in theirs.items()]
            for row, theirs in zip(ours, written.logprobs, strict=True)
        ]
    )
    assert found.shape == (N, N_PROBS)
    assert found.max() <= TOLERANCE


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_every_type_loads(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build_checkpoint("qwen35", tmp_path, mtp=True)
    path = convert(tmp_path, tmp_path / "out.gguf", kind=kind)
    with capfd.disabled(), LlamaCpp(path, n_mtp=2) as peer:
        assert len(peer.greedy(random_tokens(8), 8, banned=BANNED).tokens) == 8
        text = "The end, and it's 1234 <|im_end|> of\n\n  that"
        want = [int(i) for i in _original(tmp_path).encode(text, add_special_tokens=False).ids]
        assert peer.tokenize(text) == want


def test_sentence_piece(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The ids of the original, where scores were made of merges."""
    from tokenizers import Tokenizer

    build_checkpoint("llama", tmp_path, settings={"vocab_size": 1024})
    (tmp_path / "tokenizer.json").write_text(sentence_piece_merges(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    path = convert(tmp_path, tmp_path / "out.gguf")
    original = Tokenizer.from_str(sentence_piece_merges())
    with capfd.disabled(), LlamaCpp(path) as peer:
        for text in (
            "The end of it",
            " two  spaces\n\n  x",
            "naïve 你好 😀",
            "def f(x): return 12",
        ):
            want = original.encode(text, add_special_tokens=False).ids
            assert peer.tokenize(text) == want


def _original(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))
