"""The law: speculation never changes the text.

Every family, with every drafter and their splice, alone and four at once, greedy and sampled, with
a grammar and without: tokens, logprobs and how the text ends are those of plain decoding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.every_family import EVERY_FAMILY, EVERY_WITH_MTP
from support.plain_hub_cases import PLAIN_CASES
from support.running import random_tokens
from support.scripted import Oracle, drain
from support.state_hub_cases import WITH_CONVERTED_HEAD
from support.tiny_models import FAMILIES, TinyModel

from nextn.core import nano
from nextn.core.engine.engine import Engine
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NgramModSizes, NgramSizes, SpecOptions
from nextn.core.state.store import SequenceState

Tiny = Callable[..., TinyModel]

N_CTX, N_TOKENS, BATCH = 192, 28, 4
EASY = NgramSizes(size_n=2, size_m=6)
OPTIONS = SpecOptions(
    types=("auto",),
    ngram_simple=EASY,
    ngram_map_k=EASY,
    ngram_map_k4v=EASY,
    ngram_mod=NgramModSizes(n_match=2, n_min=1, n_max=9),
)
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "suffix")
LISTS = [*((name,) for name in NGRAMS), ("mtp",), ("draft",), ("ngram-mod", "mtp"),
         ("suffix", "mtp"), ("ngram-simple", "ngram-cache", "draft", "mtp")]  # fmt: skip
# Families that differ from those above in their layers only.
FEW = [
    ("ngram-mod",),
    ("suffix",),
    ("draft",),
    ("mtp",),
    ("ngram-simple", "ngram-cache", "draft", "mtp"),
]
ONE = [("ngram-simple", "ngram-cache", "draft")]  # families made of operations of others
NANO_DRAFT = Path(__file__).parents[2] / "data/nano-draft.gguf"
GRAMMAR = 'root ::= ("ab" | "the " | "in " | [a-h] | " of ")*'


@dataclass
class Model:
    runtime: Runtime
    plain: dict[tuple[int, str], list[list[Event]]] = field(default_factory=dict)


HOW = {
    "greedy": GenerateParams(SamplingParams(temperature=0.0), max_tokens=N_TOKENS, logprobs=2),
    "sampled": GenerateParams(
        SamplingParams(temperature=0.4, seed=7), max_tokens=N_TOKENS, logprobs=2
    ),
    "penalised": GenerateParams(
        SamplingParams(temperature=0.6, seed=3, repeat_penalty=1.2, dry_multiplier=0.8),
        max_tokens=N_TOKENS,
    ),
    "grammar": GenerateParams(
        SamplingParams(temperature=0.4, seed=5), max_tokens=N_TOKENS, grammar=GRAMMAR
    ),
    "greedy grammar": GenerateParams(
        SamplingParams(temperature=0.0), max_tokens=N_TOKENS, grammar=GRAMMAR, logprobs=0
    ),
}


# Families whose files have no head are not asked for drafts by one.
CASES = [
    pytest.param(family, types, id=f"{family}-{','.join(types)}")
    for family in sorted(EVERY_FAMILY)
    for types in (LISTS if family in FAMILIES else ONE if family in PLAIN_CASES else FEW)
    if "mtp" not in types or family in EVERY_WITH_MTP
]
CASES += [
    pytest.param(name, types, id=f"{name}-{','.join(types)}")
    for name in WITH_CONVERTED_HEAD
    for types in (("mtp",), ("ngram-mod", "mtp"))
]


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Model]:
    """It is its own draft model: recurrent ones draft for recurrent ones."""
    path = tiny(request.param, mtp=request.param in EVERY_WITH_MTP).path
    with load_runtime(path, "cpu", n_ctx=N_CTX, spec=OPTIONS, draft=path) as loaded:
        yield Model(loaded)


def prompts(n: int) -> list[list[int]]:
    # Some of it comes twice, so that n-grams have something to find.
    return [(random_tokens(11 + 9 * i, seed=i, n_vocab=256) * 2)[: 60 - 7 * i] for i in range(n)]


def write(engine: Engine, how: GenerateParams, n: int) -> tuple[list[list[Event]], int]:
    """The events of each text, and how many tokens were drafted."""
    texts = [engine.add(prompt, how, index=i) for i, prompt in enumerate(prompts(n))]
    events = drain(engine)
    each = [
        [e._replace(sequence=0, source="") for e in events if e.sequence == text.id]
        for text in texts
    ]
    return each, sum(text.stats.draft_n for text in texts)


def plainly(model: Model, how: str, n: int) -> list[list[Event]]:
    if (n, how) not in model.plain:
        engine = model.runtime.new_engine(model.runtime.plan(n))
        model.plain[n, how], _ = write(engine, HOW[how], n)
    return model.plain[n, how]


def speculative(model: Model, types: Sequence[str], n: int, *, fixed: bool) -> Engine:
    runtime = model.runtime
    options = replace(OPTIONS, types=tuple(types), fixed=fixed, draft_n_max=4)
    setting = replace(runtime.setting(n), options=options)
    return runtime.new_engine(runtime.plan(n), build_speculator(setting))


@pytest.mark.parametrize(("model", "types"), CASES, indirect=["model"])
@pytest.mark.parametrize("n", [1, BATCH])
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "controlled"])
def test_the_text_is_that_of_plain_decoding(
    model: Model, types: tuple[str, ...], n: int, fixed: bool
) -> None:
    assert model.runtime.model.nextn or "mtp" not in types
    engine = speculative(model, types, n, fixed=fixed)
    drafted = 0
    for how in HOW:
        got, n_drafted = write(engine, HOW[how], n)
        assert got == plainly(model, how, n)
        drafted += n_drafted
    # Random models seldom repeat themselves: there n-grams may have nothing to say.
    assert drafted or not fixed or not {"mtp", "draft"}.intersection(types)


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_a_state_that_is_wrong_by_one_row_is_noticed(
    family: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These tests can fail: after a refused draft, one row too many is kept."""
    path = tiny(family).path
    with load_runtime(path, "cpu", n_ctx=N_CTX, spec=OPTIONS, draft=path) as runtime:
        model = Model(runtime)
        want = plainly(model, "sampled", 1)
        advance = SequenceState.advance

        def keep_one_more(state: SequenceState, n_rows: int, n_valid: int) -> None:
            cells = state.n_cells
            advance(state, n_rows, min(n_rows, n_valid + 1))
            if runtime.model.state_shape.recurrent:
                state.n_cells = cells + n_valid  # only the recurrent state is wrong

        monkeypatch.setattr(SequenceState, "advance", keep_one_more)
        oracle = Oracle(lambda number, place: int(place == number % 3), length=4)
        oracle.n_vocab = runtime.n_vocab
        oracle.texts[0] = prompts(1)[0] + [event.token for event in want[0]]
        got, n_drafted = write(runtime.new_engine(runtime.plan(1), oracle), HOW["sampled"], 1)
        assert n_drafted
        assert got != want


N_RANDOM = 500


@pytest.mark.slow
@pytest.mark.threads
@pytest.mark.parametrize("seed", range(20, 24))
def test_random_runs(seed: int) -> None:
    """The bundled model: any drafters, lengths, sampling, number of texts, order of arrival."""
    rng = random.Random(seed)
    with load_runtime(nano.path(), "cpu", n_ctx=256, spec=OPTIONS, draft=NANO_DRAFT) as runtime:
        vocabulary = runtime.n_vocab - 8
        plain = runtime.new_engine(runtime.plan(1))
        n_drafted = 0
        for _ in range(N_RANDOM // 20):
            n = rng.randint(1, 4)
            types = rng.sample([*NGRAMS, "mtp", "draft"], rng.randint(1, 3))
            sizes = NgramSizes(rng.randint(1, 4), rng.randint(1, 12))
            options = SpecOptions(
                types=tuple(types),
                fixed=rng.random() < 0.7,
                draft_n_max=rng.randint(1, 9),
                draft_p_min=rng.choice([0.0, 0.3]),
                draft_vocab=rng.choice(["full", "512"]),
                mtp_prefill=rng.choice([-1, 0, 20]),
                ngram_simple=sizes,
                ngram_map_k=sizes,
                ngram_map_k4v=sizes,
                ngram_mod=NgramModSizes(rng.randint(1, 6), 1, rng.randint(1, 30)),
            )
            setting = replace(runtime.setting(n), options=options)
            engine = runtime.new_engine(runtime.plan(n), build_speculator(setting))
            texts = []
            for _ in range(20):
                sampling = SamplingParams(
                    temperature=rng.choice([0.0, 0.3, 0.8]),
                    seed=rng.randrange(100),
                    repeat_penalty=rng.choice([1.0, 1.0, 1.3]),
                )
                piece = random_tokens(rng.randint(1, 30), rng.randrange(9), vocabulary)
                prompt = (piece * rng.randint(1, 4))[: rng.randint(1, 90)]
                how = GenerateParams(sampling, max_tokens=rng.randint(1, 40), logprobs=0)
                texts.append((engine.add(prompt, how), prompt, how))
                for _ in range(rng.randint(0, 9)):
                    engine.step()
            drain(engine)
            for text, prompt, how in texts:
                want = plain.add(prompt, how)
                drain(plain)
                assert text.tokens == want.tokens, (options, prompt, how)
                assert text.stop_reason == want.stop_reason
                n_drafted += text.stats.draft_n
        assert n_drafted > N_RANDOM
