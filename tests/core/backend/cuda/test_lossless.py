"""The law through the CUDA kernels: speculation never changes the text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checked_sources import if_backend_changed
from msgspec.structs import replace
from support.host_device import use_for_cuda
from support.running import random_tokens
from support.scripted import Oracle, drain
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.engine.engine import Engine
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NgramSizes, SpecOptions

Tiny = Callable[..., TinyModel]
EASY = NgramSizes(size_n=2, size_m=6)
OPTIONS = SpecOptions(types=("auto",), ngram_simple=EASY, fixed=True, draft_n_max=3)
HOW = [
    GenerateParams(SamplingParams(temperature=0.0), max_tokens=14, logprobs=2),
    GenerateParams(SamplingParams(temperature=0.5, seed=7), max_tokens=14, logprobs=2),
]
pytestmark = if_backend_changed


def write(engine: Engine, how: GenerateParams, n: int) -> tuple[list[list[Event]], int]:
    """The events of each text, and how many tokens were drafted."""
    prompts = [(random_tokens(7 + 4 * i, seed=i, n_vocab=256) * 2)[: 24 - 5 * i] for i in range(n)]
    texts = [engine.add(prompt, how, index=i) for i, prompt in enumerate(prompts)]
    events = drain(engine)
    each = [
        [e._replace(sequence=0, source="") for e in events if e.sequence == text.id]
        for text in texts
    ]
    return each, sum(text.stats.draft_n for text in texts)


def drafting(runtime: Runtime, types: tuple[str, ...], n: int) -> Engine:
    setting = replace(runtime.setting(n), options=replace(OPTIONS, types=types))
    return runtime.new_engine(runtime.plan(n), build_speculator(setting))


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
def test_the_text_is_that_of_plain_decoding(family: str, tiny: Tiny, shim: None) -> None:
    path = tiny(family, mtp=True, quantise="Q8_0").path
    drafted = 0
    with load_runtime(path, "cuda", n_ctx=128, spec=OPTIONS) as runtime:
        for n in (1, 3):
            for how in HOW:
                plain, _ = write(runtime.new_engine(runtime.plan(n)), how, n)
                for types in (("mtp",), ("ngram-simple", "mtp")):
                    got, n_drafted = write(drafting(runtime, types, n), how, n)
                    assert got == plain
                    drafted += n_drafted
    assert drafted


def test_the_text_is_that_of_plain_decoding_behind_long_prompts(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that are run by themselves, of the model and of its MTP head."""
    use_for_cuda(monkeypatch, prompts=PromptSizes(few=10, calls=(64,), chunk=64))
    path = tiny("qwen35", mtp=True, quantise="Q8_0").path
    with load_runtime(path, "cuda", n_ctx=128, spec=OPTIONS) as runtime:
        plain, _ = write(runtime.new_engine(runtime.plan(2)), HOW[1], 2)
        got, n_drafted = write(drafting(runtime, ("mtp",), 2), HOW[1], 2)
    assert got == plain
    assert n_drafted


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        *(("qwen35", wrong) for wrong in (0, 1, 2, None)),
        *((family, 1) for family in ("granitehybrid", "falcon-h1", "lfm2", "kimi-linear")),
    ],
)
def test_drafts_that_are_wrong_at_each_place(
    family: str, wrong: int | None, tiny: Tiny, shim: None
) -> None:
    path = tiny(family, quantise="Q8_0").path
    prompt = random_tokens(9, n_vocab=256)
    with load_runtime(path, "cuda", n_ctx=128) as runtime:
        engine = runtime.new_engine(runtime.plan(1))
        engine.add(prompt, HOW[0])
        plain = drain(engine)
        oracle = Oracle(lambda _, place: int(place == wrong), length=3)
        oracle.n_vocab = runtime.n_vocab
        engine = runtime.new_engine(runtime.plan(1), oracle)
        text = engine.add(prompt, HOW[0])
        oracle.texts[text.id] = [*prompt, *(event.token for event in plain)]
        got = drain(engine)
    assert [e._replace(sequence=0, source="") for e in got] == [
        e._replace(sequence=0, source="") for e in plain
    ]
    most = 3 if wrong is None else wrong
    assert {n for _, n in oracle.settled[:-1]} == {most}
