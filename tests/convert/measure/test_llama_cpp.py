"""Perplexity beside llama.cpp's log-probabilities of the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from support.llama_cpp import LlamaCpp
from support.tiny_models import TinyModel
from support.vocab import N_VOCAB

from nextn import core
from nextn.convert.measure.fidelity import summarise
from nextn.convert.measure.sample_text import sample_text
from nextn.convert.measure.side_by_side import score
from nextn.convert.measure.text_chunks import cut
from nextn.core.speculation.options import NO_SPECULATION

pytestmark = pytest.mark.peer
N_CTX = 48
# llama.cpp's server says nothing about the token after a prompt if it writes half a character, or
# ends the text.
BANNED = [id for id in range(N_VOCAB) if id not in range(32, 127)]


@pytest.mark.parametrize("quantise", ["F32", "Q8_0"])
def test_perplexity(
    quantise: str, tiny: Callable[..., TinyModel], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tiny("llama", quantise=quantise).path
    with core.load(path, "torch", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        chunks = cut(sample_text(), runtime.tokenizer, N_CTX, 3)
        tokens = score(runtime, runtime, chunks, lambda done, total: None)
    with capfd.disabled(), LlamaCpp(path) as llama:
        theirs = [
            llama.greedy(chunk[: row + 1], 1, n_probs=N_VOCAB, banned=BANNED).logprobs[0][
                chunk[row + 1]
            ]
            for chunk in chunks
            for row in range(N_CTX // 2, N_CTX - 1)
        ]
    assert len(theirs) == tokens.kl.size == 3 * 23
    want = math.exp(-sum(theirs) / len(theirs))
    assert summarise(tokens).perplexity.value == pytest.approx(want, rel=1e-3)
