"""With acceptance by ratio, MTP draws its drafts and tells their laws; the text keeps its own."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace
from support.distributions import law_of_texts, surprise

from nextn.core import nano
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions

THREE = SamplingParams(temperature=1.5, top_k=3, top_p=1.0, min_p=0.0)
N_RUNS, N_TOKENS = 1500, 3


@pytest.mark.slow
def test_the_law_of_the_text() -> None:
    options = SpecOptions(types=("mtp",), accept="ratio", fixed=True)
    with load_runtime(nano.path(), "cpu", n_ctx=64, spec=options) as runtime:
        engine = runtime.warm_up()
        prompt = runtime.tokenizer.encode("def main(x):\n    return")
        how = GenerateParams(THREE, max_tokens=N_TOKENS)
        texts = [
            engine.add(prompt, replace(how, sampling=replace(THREE, seed=seed)))
            for seed in range(N_RUNS)
        ]
        while engine.has_work:
            engine.step()
        found = Counter(tuple(text.tokens[len(prompt) :]) for text in texts)
        chances = law_of_texts(
            prompt,
            N_TOKENS,
            THREE,
            lambda tokens: runtime.logits(tokens)[-1],
            runtime.tokenizer.eog_ids,
        )
        accepted = sum(text.stats.draft_n_accepted for text in texts)
        assert accepted > 0.3 * sum(text.stats.draft_n for text in texts)
    assert surprise(found, chances) < 4
