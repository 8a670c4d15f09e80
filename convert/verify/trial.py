"""A short text with every drafter that the files offer, each audited against plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from ...core.audit import RowRecorder, Verdict, audit
from ...core.generation import NO_TOKEN, GenerateParams, Stats
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from ...core.speculation.options import AUTO, NgramModSizes, SpecOptions
from .verdict import TrialFacts

N_TOKENS: Final = 48
# Repeats itself, for n-grams to have something to find.
PROMPT: Final = (
    "Count the animals, one per line.\n"
    "1. The cat sat on the mat.\n2. The dog sat on the mat.\n3. The cow sat on the mat.\n"
    "4. The pig sat on the mat.\n5. The"
)
DRAFT_N_MAX: Final = 3
EAGER: Final = NgramModSizes(n_match=2, n_min=1, n_max=8)  # for drafts that are wrong as well


class Trial(Struct, frozen=True):
    drafter: str  # auto: all of them, under the controller
    verdict: Verdict
    stats: Stats
    plain: Stats

    @property
    def facts(self) -> TrialFacts:
        found = self.verdict.difference
        return TrialFacts(
            self.drafter,
            self.verdict.is_lossless,
            None if found is None else found.place,
            self.stats.predicted_n,
            self.stats.draft_n,
            self.stats.draft_n_accepted,
            self.stats.mean_accept_len,
            self.stats.predicted_per_second,
            self.plain.predicted_per_second,
        )


def trials(runtime: Runtime, n_tokens: int = N_TOKENS) -> Iterator[Trial]:
    """A trial of each drafter by itself, then of all together. `runtime` is made with `auto`."""
    room = max(2, runtime.n_ctx - n_tokens - 1)
    prompt = runtime.tokenizer.encode(PROMPT)[:room]
    n_tokens = min(n_tokens, runtime.n_ctx - len(prompt))
    params = GenerateParams(SamplingParams(temperature=0), max_tokens=n_tokens, ignore_eos=True)
    for name in (*runtime.spec_types, AUTO):
        spec = SpecOptions(
            types=(name,),
            fixed=name != AUTO,
            draft_n_max=None if name == AUTO else DRAFT_N_MAX,
            ngram_mod=EAGER,
        )
        yield _try(runtime.beside(spec, keeps=False), name, prompt, params)


def _try(runtime: Runtime, name: str, prompt: list[int], params: GenerateParams) -> Trial:
    runtime.warm_up()
    recorder = RowRecorder()
    for event in runtime.generate(prompt, params, on_row=recorder):
        if event.token == NO_TOKEN:
            break
    stats = runtime.stats
    verdict = audit(runtime, prompt, params, recorder.rows)  # gives up the speculating engine
    return Trial(name, verdict, stats, runtime.stats)
