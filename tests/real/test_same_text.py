"""A real model writes the same text with every drafter, number of threads and cache as without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.real_model import prompts, smollm2
from support.scripted import drain
from support.thoroughness import COVERS_ALL, share

from nextn.core.engine.engine import Engine
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions

pytestmark = pytest.mark.real

N_TOKENS = 96 if COVERS_ALL else 40
NANO_DRAFT = Path(__file__).parents[1] / "data/nano-draft.gguf"
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "suffix")
LISTS = [*((name,) for name in NGRAMS), ("draft",), ("suffix", "ngram-mod", "draft")]
PROMPTS = share(prompts(), 4)
HOW = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.8, seed=11),
}


@pytest.fixture(scope="module")
def drafted() -> Iterator[Runtime]:
    """With a draft model of another vocabulary, whose tokens are translated."""
    with load_runtime(smollm2(), "cpu", threads=1, draft=NANO_DRAFT) as loaded:
        yield loaded


def params(how: str) -> GenerateParams:
    return GenerateParams(HOW[how], max_tokens=N_TOKENS, logprobs=2)


def write(engine: Engine, how: str, some: Sequence[str], runtime: Runtime) -> list[list[Event]]:
    """Of each prompt, all at once: events without what may differ."""
    encode = runtime.tokenizer.encode
    sequences = [engine.add(encode(text), params(how)) for text in some]
    events = drain(engine)
    return [
        [e._replace(sequence=0, source="") for e in events if e.sequence == each.id]
        for each in sequences
    ]


@pytest.fixture(scope="module")
def plain(drafted: Runtime) -> dict[str, list[list[Event]]]:
    """Each prompt alone, without speculation."""
    engine = drafted.new_engine(drafted.plan(1))
    return {how: [write(engine, how, [text], drafted)[0] for text in PROMPTS] for how in HOW}


@pytest.mark.parametrize("types", LISTS, ids=",".join)
@pytest.mark.parametrize("how", HOW)
def test_drafts_change_nothing(
    types: tuple[str, ...], how: str, drafted: Runtime, plain: dict[str, list[list[Event]]]
) -> None:
    options = SpecOptions(types=types, fixed=True, draft_n_max=4)
    setting = replace(drafted.setting(4), options=options)
    engine = drafted.new_engine(drafted.plan(4), build_speculator(setting))
    for start in range(0, len(PROMPTS), 4):
        some = PROMPTS[start : start + 4]
        assert write(engine, how, some, drafted) == plain[how][start : start + 4]


@pytest.mark.threads
@pytest.mark.parametrize("how", HOW)
def test_two_threads_write_what_one_does(how: str, plain: dict[str, list[list[Event]]]) -> None:
    with load_runtime(smollm2(), "cpu", threads=2) as runtime:
        engine = runtime.new_engine(runtime.plan(1))
        assert [write(engine, how, [text], runtime)[0] for text in PROMPTS] == plain[how]
