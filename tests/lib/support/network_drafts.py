"""Networks in files of their own: what they drafted, and texts written with and without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.options import NgramModSizes, SpecOptions

from .llama_cpp import LlamaCpp
from .running import random_tokens
from .scripted import drain
from .vocab import N_VOCAB

N_CTX, N_DRAFT, N_PROMPT, N_MADE = 160, 4, 30, 24
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=N_MADE, ignore_eos=True)
SAMPLED = GenerateParams(
    SamplingParams(seed=5, temperature=0.7), max_tokens=N_MADE, ignore_eos=True
)
GRAMMAR = GenerateParams(
    SamplingParams(temperature=0.4, seed=5), max_tokens=N_MADE, grammar='root ::= ("ab" | "the ")*'
)
SPEC = SpecOptions(
    types=("auto",),
    draft_n_max=N_DRAFT,
    fixed=True,
    ngram_mod=NgramModSizes(n_match=2, n_min=1, n_max=9),
)

Tiny = Callable[..., Any]


def load(
    target: Path, draft: Path | list[Path], device: str = "cpu", spec: SpecOptions = SPEC
) -> Runtime:
    return load_runtime(target, device, n_ctx=N_CTX, spec=spec, draft=draft)


class Noted(HiddenStateDrafter):
    drafts: list[tuple[list[int], Draft]]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        made = super().propose(requests)
        for request, draft in zip(requests, made, strict=True):
            self.drafts.append((list(request.tokens), draft))
        return made


def noted_drafts(
    runtime: Runtime, name: str, layers: Sequence[int]
) -> tuple[list[tuple[list[int], Draft]], Any]:
    """Each draft of a greedy text with the tokens before it, and the target's rows that enter
    these layers, for all tokens."""
    noted = Noted(name, runtime.model.drafters[name], runtime.setting(1))
    noted.drafts = []
    engine = runtime.new_engine(runtime.plan(1), noted)
    text = engine.add(random_tokens(N_PROMPT, seed=4, n_vocab=N_VOCAB), GREEDY)
    drain(engine)
    return noted.drafts, features(runtime, text.tokens, [f"blk.{i}.input" for i in layers])


def features(runtime: Runtime, tokens: Sequence[int], names: list[str]) -> Any:
    found = list(runtime.reader(len(tokens), taps=frozenset(names)).outputs(tokens))
    rows = [np.concatenate([output.taps[name] for name in names], axis=1) for output in found]
    return np.concatenate(rows).astype(np.float64)


def write(runtime: Runtime, params: GenerateParams, types: tuple[str, ...], n: int) -> Any:
    drafter = None
    if types:
        options = replace(runtime.spec, types=types)
        drafter = build_speculator(replace(runtime.setting(n), options=options))
    engine = runtime.new_engine(runtime.plan(n), drafter)
    prompts = [(random_tokens(9 + 7 * i, seed=i, n_vocab=256) * 2)[:40] for i in range(n)]
    texts = [engine.add(prompt, params, index=i) for i, prompt in enumerate(prompts)]
    events: list[Event] = drain(engine)
    each = [
        [e._replace(sequence=0, source="") for e in events if e.sequence == text.id]
        for text in texts
    ]
    return each, {name for text in texts for name in text.stats.by_source}


class Drafted(NamedTuple):
    tokens: list[int]
    n_drafted: int
    n_accepted: int


def drafted_here_and_by_llama_cpp(
    target: Path, written: Any, spec: SpecOptions, n: int, n_draft: int
) -> tuple[Drafted, Drafted]:
    """Of a text of the few tokens that the head of the `written` drafter has, which it often
    hits."""
    bias = tuple((int(token), 60.0) for token in sorted(written.d2t))
    prompt = random_tokens(N_PROMPT, seed=4, n_vocab=N_VOCAB)
    with load(target, written.path, spec=replace(spec, draft_n_max=n_draft)) as runtime:
        sampling = SamplingParams(temperature=0.0, logit_bias=bias)
        params = GenerateParams(sampling, max_tokens=n, ignore_eos=True)
        tokens = [event.token for event in runtime.generate(prompt, params)]
        ours = Drafted(tokens, runtime.stats.draft_n, runtime.stats.draft_n_accepted)
    how = {"temperature": 0, "ignore_eos": True, "logit_bias": [list(pair) for pair in bias]}
    with LlamaCpp(target, n_mtp=n_draft, head=written.path) as peer:
        theirs = peer.write(prompt, n, **how)
    counts = (int(theirs.timings[name]) for name in ("draft_n", "draft_n_accepted"))
    return ours, Drafted(theirs.tokens, *counts)
