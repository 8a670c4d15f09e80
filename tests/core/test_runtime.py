"""The Python API: load, logits, generate."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.running import random_tokens, start
from support.tiny_models import TinyModel, build_tiny
from support.vocab import EOS_ID, N_VOCAB

import nextn.core
from nextn.core import fitting
from nextn.core import runtime as runtime_module
from nextn.core.errors import ConfigError, NextnError, NonFiniteError
from nextn.core.generation import CONTEXT, EOS, LIMIT, STOP, Event, GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.options import NO_SPECULATION

GREEDY = SamplingParams(temperature=0.0)
N_CTX = 64
PROMPT = random_tokens(9, seed=5, n_vocab=256)

Tiny = Callable[..., TinyModel]


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def runtime(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Runtime]:
    """A dense model, then a hybrid with recurrent state."""
    with nextn.core.load(tiny(request.param).path, "torch", n_ctx=N_CTX) as loaded:
        yield loaded


def write(runtime: Runtime, prompt: Any = PROMPT, n: int | None = 8, **how: Any) -> list[Event]:
    sampling = SamplingParams(**how) if how else GREEDY
    return list(runtime.generate(prompt, GenerateParams(sampling, max_tokens=n, logprobs=0)))


def ids(events: list[Event]) -> list[int]:
    return [event.token for event in events]


# Logits ------------------------------------------------------------------------------------------


def test_logits_of_every_row(runtime: Runtime, tiny: Tiny) -> None:
    got = runtime.logits(PROMPT)
    assert got.shape == (len(PROMPT), N_VOCAB) == (len(PROMPT), runtime.n_vocab)
    assert got.dtype == np.float32
    bare = start(tiny(runtime.architecture).path).append(PROMPT)
    assert np.array_equal(got, bare)


def test_calls_do_not_meet(runtime: Runtime) -> None:
    first = runtime.logits(PROMPT)
    runtime.logits(random_tokens(20, seed=6))
    write(runtime)
    assert np.array_equal(runtime.logits(PROMPT), first)


def test_a_prompt_in_pieces(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = random_tokens(30, seed=7, n_vocab=256)
    whole, text = runtime.logits(prompt), ids(write(runtime, prompt))
    monkeypatch.setattr(runtime_module, "PROMPT_ROWS", 7)
    rows = runtime.logits(prompt)
    assert rows.shape == whole.shape
    assert np.abs(rows - whole).max() <= 1e-4
    assert ids(write(runtime, prompt)) == text


def test_a_reader_reads_one_sequence_after_the_other(runtime: Runtime) -> None:
    prompts = [random_tokens(n, seed=n, n_vocab=256) for n in (30, 21, 30)]
    reader = runtime.reader(30, n_rows=8)
    for prompt in prompts:
        whole = runtime.logits(prompt)
        for first_row in (0, 7, 8, 19, len(prompt) - 1):
            pieces = [piece.copy() for piece in reader.logits(prompt, first_row)]
            assert max(map(len, pieces)) <= 8
            rows = np.concatenate(pieces)
            assert rows.shape == whole[first_row:].shape
            assert np.abs(rows - whole[first_row:]).max() <= 1e-4


# Text --------------------------------------------------------------------------------------------


def test_greedy_is_the_argmax_of_the_logits(runtime: Runtime) -> None:
    events = write(runtime, n=12)
    assert len(events) == 12
    for i, event in enumerate(events):
        row = runtime.logits(PROMPT + ids(events[:i]))[-1].astype(np.float64)
        assert event.token == row.argmax()
        assert event.logprob == pytest.approx(row.max() - np.log(np.exp(row).sum()), abs=1e-4)


def test_a_text_prompt_is_encoded(runtime: Runtime) -> None:
    text = "the end of it"
    assert ids(write(runtime, text)) == ids(write(runtime, runtime.tokenizer.encode(text)))
    assert ids(write(runtime, text)) != ids(write(runtime, "another"))


def test_the_pieces_of_text_are_the_text(runtime: Runtime) -> None:
    events = write(runtime, n=40)
    want = runtime.tokenizer.decode(ids(events), continues=True)
    assert "".join(event.text for event in events) == want
    assert want


def test_a_space_before_the_first_token_is_kept(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SentencePiece puts a space before a text and takes it off again; here the prompt was that."""
    space = ord(" ")  # the id of this byte in the tiny vocabulary
    monkeypatch.setattr(runtime.tokenizer._algorithm, "adds_space", True, raising=False)
    monkeypatch.setattr(Sampler, "pick", lambda *_: space)
    assert [event.text for event in write(runtime, n=2)] == [" ", " "]


def test_the_seed_decides(runtime: Runtime) -> None:
    texts = [ids(write(runtime, n=20, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0] != ids(write(runtime, n=20))


# Ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_budget(runtime: Runtime, n: int) -> None:
    assert [event.stop_reason for event in write(runtime, n=n)] == [None] * (n - 1) + [LIMIT]


def test_an_end_of_generation_token_is_the_last(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write(runtime, n=12)
    third = plain[2].token
    assert third not in ids(plain[:2])
    assert EOS_ID in runtime.tokenizer.eog_ids
    monkeypatch.setattr(runtime.tokenizer, "eog_ids", frozenset({third}))
    events = write(runtime, n=12)
    assert ids(events) == ids(plain[:3])
    assert [event.stop_reason for event in events] == [None, None, EOS]


@pytest.mark.parametrize("missing", [1, 2, 5])
def test_a_full_context_ends_the_text(runtime: Runtime, missing: int) -> None:
    prompt = random_tokens(N_CTX - missing, seed=8, n_vocab=256)
    for n in (None, 100):
        events = write(runtime, prompt, n)
        assert [event.stop_reason for event in events] == [None] * (missing - 1) + [CONTEXT]
    assert write(runtime, prompt, missing)[-1].stop_reason == LIMIT


@pytest.mark.parametrize("length", [N_CTX, N_CTX + 1])
def test_a_prompt_that_leaves_no_room(runtime: Runtime, length: int) -> None:
    with pytest.raises(ConfigError, match=f"{length} tokens.*context size of {N_CTX}"):
        write(runtime, random_tokens(length))


def test_closing_the_iterator_ends_it(runtime: Runtime) -> None:
    want = ids(write(runtime))
    events = runtime.generate(PROMPT, GenerateParams(GREEDY, max_tokens=8))
    assert next(events).token == want[0]
    events.close()  # type: ignore[attr-defined]
    assert list(events) == []
    assert runtime.stats.predicted_n == 1
    assert ids(write(runtime)) == want


def test_a_closed_model_says_so(tiny: Tiny) -> None:
    with nextn.core.load(tiny("qwen3").path, "torch", n_ctx=N_CTX) as loaded:
        assert ids(write(loaded))
    for use in (lambda: write(loaded), lambda: loaded.logits(PROMPT), loaded.warm_up):
        with pytest.raises(NextnError, match=r"^the model is closed: load it again$"):
            use()
    loaded.close()  # again


def test_statistics(runtime: Runtime) -> None:
    write(runtime, n=8)
    stats = runtime.stats
    assert (stats.prompt_n, stats.predicted_n) == (len(PROMPT), 8)
    assert min(stats.load_ms, stats.prompt_ms, stats.predicted_ms) > 0


# Through the engine ------------------------------------------------------------------------------


def test_a_stop_string_ends_the_text(runtime: Runtime) -> None:
    whole = "".join(event.text for event in write(runtime, n=30))
    stop = whole[5:8]
    params = GenerateParams(GREEDY, max_tokens=30, stop=(stop,))
    events = list(runtime.generate(PROMPT, params))
    assert "".join(event.text for event in events) == whole[: whole.find(stop)]
    assert events[-1].stop_reason == STOP


def test_two_texts_read_in_turns(runtime: Runtime) -> None:
    """One engine writes both; what is made while the other is read waits."""
    other = random_tokens(7, seed=11, n_vocab=256)
    want = [ids(write(runtime)), ids(write(runtime, other))]
    both = [runtime.generate(p, GenerateParams(GREEDY, max_tokens=8)) for p in (PROMPT, other)]
    got: list[list[int]] = [[], []]
    for _ in range(8):
        for events, tokens in zip(both, got, strict=True):
            tokens.append(next(events).token)
    assert got == want


def test_the_second_time_the_prompt_is_there(runtime: Runtime) -> None:
    prompt = random_tokens(30, seed=12, n_vocab=256)
    first = ids(write(runtime, prompt))
    turn = [*prompt, *first, 3, 4]
    write(runtime, turn)
    assert runtime.stats.cached_n == len(prompt) + len(first) - 1
    printed = runtime.stats.as_json()
    assert (printed["prompt_n"], printed["predicted_n"], printed["steps"]) == (len(turn), 8, 8)
    assert printed["load_ms"] > 0


def test_nan_raises(tmp_path: Path) -> None:
    def poison(_keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)

    path = build_tiny("qwen3", tmp_path, edit=poison).path
    with nextn.core.load(path, "torch", n_ctx=N_CTX) as damaged:
        for _ in range(2):
            with pytest.raises(NonFiniteError):
                write(damaged)


def test_memory_that_is_not_there(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"not enough memory for 2 x 64 tokens.*free"):
        runtime.plan(2)


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_a_runtime_that_is_dropped_is_gone(family: str, tiny: Tiny) -> None:
    """With its weights and state, at once: memory does not wait for a search for circles."""
    gc.collect()
    gc.disable()
    try:
        with nextn.core.load(tiny(family).path, "cpu", n_ctx=N_CTX) as loaded:
            write(loaded, n=3)
            engine = loaded.warm_up()
            parts = [weakref.ref(o) for o in (loaded.backend, loaded.model, engine, engine.store)]
        del loaded, engine
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_an_engine_keeps_what_it_runs_on(tiny: Tiny) -> None:
    loaded = nextn.core.load(tiny("qwen35").path, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION)
    want = [
        event.token for event in loaded.generate([1, 2, 3], GenerateParams(GREEDY, max_tokens=9))
    ]
    engine = loaded.warm_up()
    loaded.close()
    del loaded
    junk = [np.full(64, np.nan, np.float32) for _ in range(10_000)]  # where weights had been
    sequence = engine.add([1, 2, 3], GenerateParams(GREEDY, max_tokens=9))
    while engine.has_work:
        engine.step()
    assert sequence.tokens[3:] == want
    assert len(junk) == 10_000


def test_mapped_weights_are_not_free_memory(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: 10**9)
    monkeypatch.setattr(runtime.backend, "mapped_bytes", 10**8)
    assert runtime.plan(1).available == 9 * 10**8


def test_the_budget_is_told(runtime: Runtime) -> None:
    assert "KV" in runtime.budget.describe()
    with pytest.raises(ConfigError, match="parallel sequences must be at least 1"):
        runtime.plan(0)


# Mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[], ""])
def test_an_empty_prompt(runtime: Runtime, prompt: Any) -> None:
    with pytest.raises(ConfigError, match="prompt is empty"):
        runtime.generate(prompt)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31, 2**70])
def test_token_ids_outside_the_vocabulary(runtime: Runtime, token: int) -> None:
    """Before anything is computed: `generate` itself raises, not the first `next`."""
    for ask in (runtime.generate, runtime.logits):
        with pytest.raises(ConfigError, match=f"{token} at place 1 is outside"):
            ask([1, token])


@pytest.mark.parametrize("n_ctx", [0, -1])
def test_impossible_context_sizes(n_ctx: int, tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=f"context size must be at least 1, got {n_ctx}"):
        nextn.core.load(tiny("qwen3").path, "torch", n_ctx=n_ctx)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("gpu9", "gpu9: unknown device"),
        ("", "unknown device"),
        ("torch:nonsense", "torch:nonsense"),
        ("torch:cuda:99", "torch:cuda:99"),
    ],
)
def test_unknown_devices(device: str, said: str, tiny: Tiny) -> None:
    with pytest.raises(ConfigError) as caught:
        nextn.core.load(tiny("qwen3").path, device)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


WITHOUT_TORCH = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Missing())
import nextn.core
from nextn.core.errors import MissingDependencyError
try:
    nextn.core.load(sys.argv[1], "torch")
except MissingDependencyError as error:
    print(error)
assert "torch" not in sys.modules
"""


def test_without_torch_the_install_command_is_named(tiny: Tiny) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, tiny("qwen3").path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert "pip install 'nextn[torch]'" in done.stdout
    assert done.stdout.count("\n") == 1


def test_progress_ends_at_one(tiny: Tiny) -> None:
    seen: list[float] = []
    nextn.core.load(tiny("qwen3").path, "torch", progress=lambda _, done: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


GRAMMAR = 'root ::= [a-c]+ " " [0-9] [0-9]'


@pytest.mark.parametrize("device", ["torch", "cpu"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_grammar_is_followed_to_its_end(device: str, temperature: float, tiny: Tiny) -> None:
    import re

    with nextn.core.load(tiny("qwen3").path, device, n_ctx=N_CTX) as loaded:
        for seed in range(4):
            sampling = SamplingParams(temperature=temperature, seed=seed)
            params = GenerateParams(sampling, max_tokens=60, grammar=GRAMMAR)
            events = list(loaded.generate(PROMPT, params))
            text = "".join(event.text for event in events)
            if events[-1].stop_reason == "eos":
                assert re.fullmatch("[a-c]+ [0-9][0-9]", text), text
            else:
                assert re.fullmatch("[a-c]+", text), text  # still in its first part


def test_a_json_schema_is_followed(tiny: Tiny) -> None:
    import json

    schema = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    with nextn.core.load(tiny("qwen3").path, "torch", n_ctx=N_CTX) as loaded:
        params = GenerateParams(
            SamplingParams(temperature=0, logit_bias=((32, -20.0),)),
            max_tokens=100,
            json_schema=json.dumps(schema),
        )
        events = list(loaded.generate(PROMPT, params))
    assert events[-1].stop_reason == "eos"
    assert list(json.loads("".join(event.text for event in events))) == ["n"]


def test_grammars_that_cannot_be_are_refused(tiny: Tiny) -> None:
    loaded = nextn.core.load(tiny("qwen3").path, "torch", n_ctx=N_CTX)
    with loaded, pytest.raises(ConfigError, match="grammar"):
        list(loaded.generate(PROMPT, GenerateParams(grammar="root ::= nothing")))
    with pytest.raises(ConfigError, match="cannot both"):
        GenerateParams(grammar=GRAMMAR, json_schema="{}")
    with pytest.raises(ConfigError, match="ignore_eos"):
        GenerateParams(grammar=GRAMMAR, ignore_eos=True)
