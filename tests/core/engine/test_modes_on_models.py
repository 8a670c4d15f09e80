"""Modes that keep other tokens than the target's leave the state that those tokens make.

Real models on the CPU: every logprob of a text written with drafts has the bits of a fresh run
over the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support.running import load, random_tokens, start
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.sampling.logprobs import token_logprob
from nextn.core.sampling.noise import DRAFT_TOKEN
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.acceptance import Acceptance
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import Speculator
from nextn.core.state.sizes import StateSizes
from nextn.core.tokenizer import load_tokenizer

SIZES = StateSizes(96, n_slots=3, n_checkpoints=3, page_len=16, window=5)
MODES = {
    "ratio": Acceptance("ratio"),
    "relaxed": Acceptance("relaxed", 40, 1.0, always=True),
    "synthetic": Acceptance("synthetic", chances=(0.8, 0.7, 0.6, 0.5)),
}


class Guessing(Speculator):
    """Draws from a law that has nothing to do with the model."""

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: DraftRequest) -> Draft:
        draft = Draft()
        for place in range(ask.max_draft):
            position = len(ask.tokens) + place
            logits = np.random.default_rng(position).normal(0, 1, 512).astype(np.float32)
            distribution = ask.sampler.copy().distribution(logits, ask.tokens, position)
            draft.tokens.append(ask.sampler.draw(distribution, position, DRAFT_TOKEN))
            draft.distributions.append(distribution)
            draft.sources.append("guess")
        return draft


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
@pytest.mark.parametrize("mode", MODES)
def test_logprobs_are_those_of_a_fresh_run(
    tiny: Callable[..., TinyModel], family: str, mode: str
) -> None:
    path = tiny(family).path
    model, backend = load(path, "cpu")
    tokenizer = load_tokenizer(open_gguf(path).metadata)
    settings = EngineConfig(SIZES, chunk=16, acceptance=MODES[mode])
    engine = Engine(model, backend, tokenizer, settings, drafter=Guessing())
    sampling = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=2)
    how = GenerateParams(sampling, max_tokens=60, ignore_eos=True, logprobs=0)
    prompts = [random_tokens(n, seed=n, n_vocab=256) for n in (7, 21, 16)]
    texts = [engine.add(prompt, how) for prompt in prompts]
    events = drain(engine)
    for text in texts:
        assert 0 < text.stats.draft_n_accepted < text.stats.draft_n
        rows = start(path, "cpu").append(text.tokens[:-1])
        made = text.tokens[text.n_prompt :]
        want = [token_logprob(rows[text.n_prompt - 1 + n], token) for n, token in enumerate(made)]
        got = [event.logprob for event in events if event.sequence == text.id]
        assert got == want
