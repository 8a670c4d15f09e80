"""`nextn.LanguageModel`: calls from any thread, each with the text that it gets alone."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import fields
from support.rows_in_prompts import embedding

import nextn
from nextn import GenerationOptions
from nextn.core import nano
from nextn.core.api.argument_names import FLAGS, argument_names
from nextn.core.api.generation_options import NAMES
from nextn.core.api.inboxes import AsyncInbox
from nextn.core.api.load_options import LoadOptions
from nextn.core.errors import ConfigError
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams

pytestmark = pytest.mark.threads

HANGS_S = 120
PROMPTS = ["def fibonacci(n):", "class Stack:\n", "import os\n", "for i in range(10):"]
WAYS: list[GenerationOptions] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20},
    {"temperature": 0.7, "repeat_penalty": 1.2, "speculation": "none"},
    {"grammar": 'root ::= [a-z ]+ "."'},
]


@pytest.fixture(scope="module")
def model() -> Iterator[nextn.LanguageModel]:
    with nextn.load(n_ctx=256, parallel=4) as loaded:
        yield loaded


def call(model: nextn.LanguageModel, i: int) -> Any:
    options = {**WAYS[i // 4 % 4], "seed": i, "max_tokens": 4 + i % 9}
    return model.generate(PROMPTS[i % 4], **options)  # type: ignore[arg-type]


def test_threads_get_what_they_get_alone(model: nextn.LanguageModel) -> None:
    with nextn.load(n_ctx=256) as single:
        alone = [call(single, i) for i in range(32)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: call(model, i), range(32)))
    for one, other in zip(alone, together, strict=True):
        assert (one.text, one.tokens, one.stop_reason) == (
            other.text, other.tokens, other.stop_reason
        )  # fmt: skip


@pytest.mark.slow
def test_threads_of_two_models() -> None:
    """1600 calls from 8 threads, of two models in one process."""
    with nextn.load(n_ctx=256) as single:
        alone = [call(single, i) for i in range(200)]
    with nextn.load(n_ctx=256, parallel=4) as a, nextn.load(n_ctx=256, parallel=3) as b:
        jobs = [(model, i) for i in range(200) for model in (a, b)] * 4
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda job: call(*job), jobs))
    for (_, i), result in zip(jobs, found, strict=True):
        assert (result.text, result.stop_reason) == (alone[i].text, alone[i].stop_reason)


def test_pieces_are_the_text(model: nextn.LanguageModel) -> None:
    options = GenerationOptions(max_tokens=30, temperature=0.8, seed=4)
    pieces = list(model.stream(PROMPTS[0], **options))
    result = model.generate(PROMPTS[0], **options)
    assert "".join(piece.text for piece in pieces) == result.text == str(result)
    assert [piece.token for piece in pieces] == list(result.tokens)
    assert [piece.stop_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].stop_reason == result.stop_reason


def test_leaving_a_loop_ends_the_text(model: nextn.LanguageModel) -> None:
    stream = model.stream(PROMPTS[1], ignore_eos=True)
    next(stream)
    stream.close()
    deadline = time.monotonic() + HANGS_S
    while model._thread._worker.n_running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_error_in_one_consumer_leaves_the_others_alone(model: nextn.LanguageModel) -> None:
    want = model.generate(PROMPTS[0], temperature=0.0, max_tokens=40).text
    started, found = threading.Event(), list[str]()

    def other() -> None:
        stream = model.stream(PROMPTS[0], temperature=0.0, max_tokens=40)
        text = next(stream).text
        started.set()
        found.append(text + "".join(piece.text for piece in stream))

    thread = threading.Thread(target=other)
    thread.start()
    started.wait(HANGS_S)

    def failing() -> None:
        for _ in model.stream(PROMPTS[2], ignore_eos=True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    thread.join(HANGS_S)
    assert found == [want]


def test_a_text_begins_with_its_first_piece(model: nextn.LanguageModel) -> None:
    """A stream that is never read takes no slot, nor does one that is dropped."""
    streams = [model.stream(PROMPTS[1], ignore_eos=True) for _ in range(8)]
    assert model.generate(PROMPTS[0], max_tokens=2).stop_reason
    assert model._thread._worker.n_open == 0
    del streams


def test_a_loop_that_is_gone_harms_no_engine() -> None:
    """Its inbox is written to by the thread that serves all others."""

    async def made() -> AsyncInbox:
        return AsyncInbox()

    inbox = asyncio.run(made())
    assert inbox._loop.is_closed()
    inbox.put(0, Event(7, "x"))  # raises nothing
    assert inbox._queue.empty()


def test_streams_progress_together(model: nextn.LanguageModel) -> None:
    """Two iterators in one thread: neither waits for the other to end."""
    options = GenerationOptions(temperature=0.0, max_tokens=12)
    want = [model.generate(prompt, **options).text for prompt in PROMPTS[:2]]
    streams, found = [model.stream(prompt, **options) for prompt in PROMPTS[:2]], ["", ""]
    for pair in zip(*streams, strict=True):
        for i, piece in enumerate(pair):
            found[i] += piece.text
    assert found == want


def test_coroutines(model: nextn.LanguageModel) -> None:
    options = GenerationOptions(temperature=0.0, max_tokens=10)
    want = [model.generate(prompt, **options).text for prompt in PROMPTS]

    async def streamed(prompt: str) -> str:
        return "".join([piece.text async for piece in model.astream(prompt, **options)])

    async def cancelled() -> None:
        task = asyncio.create_task(model.agenerate(PROMPTS[1], ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> list[str]:
        ended = asyncio.create_task(cancelled())
        texts = await asyncio.gather(*map(streamed, PROMPTS))
        await ended
        assert [result.text for result in await model.abatch(PROMPTS, **options)] == want
        return list(texts)

    assert asyncio.run(main()) == want


def test_more_calls_than_room(model: nextn.LanguageModel) -> None:
    results = model.batch(PROMPTS * 5, temperature=0.0, max_tokens=5)
    assert [result.text for result in results[:4]] == [result.text for result in results[-4:]]


def test_a_seed_is_drawn_and_returned(model: nextn.LanguageModel) -> None:
    first, second = (model.generate(PROMPTS[0], max_tokens=12) for _ in "12")
    assert first.seed != second.seed
    assert model.generate(PROMPTS[0], max_tokens=12, seed=first.seed).text == first.text


def test_numbers(model: nextn.LanguageModel) -> None:
    tokens = model.tokenize("def main():\n")
    assert model.detokenize(tokens) == "def main():\n"
    logits = model.logits(tokens)
    assert logits.shape == (len(tokens), model.n_vocab)
    greedy = model.generate(tokens, temperature=0.0, max_tokens=1)
    assert greedy.tokens == [int(logits[-1].argmax())]
    mean, last = model.embed(tokens), model.embed(tokens, pooling="last")
    for vector in (mean, last):
        assert np.isclose(vector @ vector, 1)
    assert not np.allclose(mean, last)
    assert model.embed("def main():\n") @ mean == pytest.approx(1)


def test_rows_take_the_place_of_tokens(model: nextn.LanguageModel) -> None:
    text = "def add(a, b):\n    return a + b\n\n\ndef add(a"
    tokens = model.tokenize(text)
    rows = embedding(nano.path())[tokens]
    assert rows.shape[1] == model.n_embd
    mixed: list[Any] = [*tokens[:3], rows[3:20], *tokens[20:]]
    ways: list[GenerationOptions] = [
        {"temperature": temperature, "seed": 2, "max_tokens": 12, "repeat_penalty": 1.0}
        for temperature in (0.0, 0.8)
    ]
    for prompt in (mixed, [rows]):
        for how in ways:
            got = model.generate(prompt, **how)
            want = model.generate(text, **how)
            assert got.tokens == want.tokens
            assert got.stats.prompt_n == len(tokens)
    assert np.array_equal(model.logits(mixed), model.logits(text))
    assert np.array_equal(model.embed(mixed), model.embed(text))


def test_long_prompts_are_embedded_in_pieces(model: nextn.LanguageModel) -> None:
    tokens = [int(n) for n in np.random.default_rng(0).integers(5, 4000, 1100)]
    assert model.logits(tokens).shape[0] == 1100
    assert model.embed(tokens).shape == model.embed(tokens[:5]).shape


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"temprature": 1}, TypeError, "unknown argument 'temprature'; did you mean 'temperature'"),
        ({"top_k": -1}, ConfigError, r"^top_k must be at least 0"),
        ({"temperature": -1}, ConfigError, "^temperature must be"),
        ({"stop": [""]}, ConfigError, "a stop string is empty"),
        ({"max_tokens": 0}, ConfigError, "^max_tokens must be at least 1"),
        ({"speculation": "mpt"}, ConfigError, "mpt"),
        ({"logprobs": -1}, ConfigError, "^logprobs must be"),
        ({"grammar": "root ::= ("}, nextn.NextnError, "grammar"),
    ],
)
def test_wrong_options(
    options: dict[str, Any], error: type[Exception], said: str, model: nextn.LanguageModel
) -> None:
    with pytest.raises(error, match=said):
        model.generate("x", **options)
    assert model.generate("x", max_tokens=1).stop_reason


def test_wrong_prompts(model: nextn.LanguageModel) -> None:
    for prompt in ([], [10**9], [1 << 30], [1] * 300):
        with pytest.raises(ConfigError):
            model.generate(prompt)
    wrong: list[tuple[Any, str]] = [
        (np.zeros((2, 5), np.float32), "at place 1 of the prompt are 5 numbers wide, and this"),
        (np.full((2, model.n_embd), np.inf), "the row at place 1 of the prompt"),
        (np.zeros(model.n_embd), "have two dimensions, and these have 1"),
        (nextn.ImageRows(np.zeros((4, model.n_embd)), np.eye(4, 3, dtype=int) * 4), "of 4 rows"),
        ("a", "place 1 of the prompt holds a str"),
        ([2, 1.5], "place 2 of the prompt holds a float"),
        (None, "place 1 of the prompt holds a NoneType"),
        (np.zeros((2, model.n_embd), int), "place 1 of the prompt holds a ndarray"),
    ]
    for rows, said in wrong:
        with pytest.raises(ConfigError, match=said):
            model.generate([1, rows])
    with pytest.raises(ConfigError, match="at least 1 row, not 0"):
        nextn.ImageRows.of_grid(np.zeros((4, model.n_embd)), 0)
    lists: Any = nextn.ImageRows([[0.0] * model.n_embd], [[0, 0, 0]])  # type: ignore[arg-type]
    assert model.generate([1, lists], max_tokens=1).tokens
    with pytest.raises(TypeError, match="not bytes"):
        model.generate(b"x")
    with pytest.raises(TypeError, match="a list of prompts"):
        model.batch("abc")
    with pytest.raises(ConfigError, match="pooling must be one of mean, last"):
        model.embed("x", pooling="max")


def test_a_closed_model() -> None:
    model = nextn.load(n_ctx=128)
    stream = model.stream("x", ignore_eos=True)
    next(stream)
    for _ in "12":
        model.close()
    with pytest.raises(nextn.NextnError, match="the model was closed"):
        list(stream)
    for use in (lambda: model.generate("x"), lambda: model.logits("x"), lambda: model.embed("x")):
        with pytest.raises(nextn.NextnError, match="the model is closed"):
            use()


def test_closing_while_others_call() -> None:
    """No call hangs: each ends with its text or with an error that says why."""
    model = nextn.load(n_ctx=128, parallel=2)
    ends: list[str] = []

    def calling() -> None:
        for _ in range(1000):
            try:
                model.generate("x", max_tokens=3)
            except nextn.NextnError as error:
                ends.append(str(error))
                return

    threads = [threading.Thread(target=calling) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    model.close()
    for thread in threads:
        thread.join(HANGS_S)
    assert len(ends) == 4
    assert all("the model " in end for end in ends)


def test_an_engine_that_has_failed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with nextn.load(n_ctx=128) as model:
        loaded = model._thread._worker.loaded
        assert loaded is not None
        monkeypatch.setattr(loaded.engine, "step", lambda: 1 // 0)
        with pytest.raises(nextn.NextnError):
            model.generate("x")
        for use in (lambda: model.generate("x"), lambda: model.logits("x")):
            with pytest.raises(nextn.NextnError, match="the engine has failed"):
                use()


def test_a_model_cannot_be_pickled(model: nextn.LanguageModel) -> None:
    with pytest.raises(TypeError, match="load it in each process"):
        pickle.dumps(model)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_says_what_to_do(model: nextn.LanguageModel) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            model.generate("x")
        except nextn.NextnError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    os.waitpid(child, 0)
    assert "load it here, or start processes with 'spawn'" in said


INTERRUPTED = """
import nextn, signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
model = nextn.load(n_ctx=256, parallel=2)
want = model.generate("class A:", temperature=0.0, max_tokens=40).text
for n in range(12):
    other = model.stream("class A:", temperature=0.0, max_tokens=40)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0023 * n)
        for piece in model.stream("def ", ignore_eos=True): pass
    except KeyboardInterrupt: pass
    assert "".join(piece.text for piece in other) == want, n
print("right")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of that kind here")
def test_an_interrupt_ends_one_text_and_spoils_none() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr


def test_a_program_ends_without_closing() -> None:
    program = "import nextn; m = nextn.load(n_ctx=64); s = m.stream('x', ignore_eos=True); next(s)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANGS_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# One table of names -------------------------------------------------------------------------------


def test_options_are_those_of_the_core() -> None:
    sampling = {field.name for field in fields(SamplingParams)}
    of_text = {"max_tokens", "stop", "grammar", "json_schema", "logprobs", "ignore_eos"}
    of_drafts = {"speculation", "draft_max", "draft_min", "draft_p_min"}
    assert sampling | of_text | of_drafts | {"lora"} == NAMES
    assert of_text <= {field.name for field in fields(GenerateParams)}


def test_the_model_shows_what_it_is(model: nextn.LanguageModel) -> None:
    assert repr(model) == (
        "<nextn.LanguageModel 'nextn nano': qwen35 on cpu, 256 tokens, 4 at once, "
        "drafters ngram-mod, mtp>"
    )
    assert inspect.signature(nextn.load).parameters["parallel"].default == 1


def test_load_has_the_arguments_of_the_runtime() -> None:
    """Once, but for the name of one: the drafters, which may be a string here."""
    of_runtime = {*inspect.signature(load_runtime).parameters} - {"path", "device", "spec"}
    assert of_runtime == set(LoadOptions.__annotations__)
    with pytest.raises(TypeError, match="unknown argument 'ctx'; did you mean 'n_ctx'"):
        nextn.load(ctx=5)  # type: ignore[call-arg]


# Errors in the words of Python --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "abacus"}, "^device abacus: unknown device"),
        ({"cache_type_k": "q3"}, "^cache_type_k 'q3': unknown type"),
        ({"device": "torch", "cache_type_k": "q8_0"}, "^cache_type_k and cache_type_v are for"),
        ({"device": "torch", "repack_cache": True}, "^repack_cache is for device cpu"),
        ({"speculation": "mpt"}, "^speculation mpt|mpt"),
        ({"n_ctx": 0}, "context size must be at least 1"),
        ({"n_batch": 0}, "batch size must be at least 1"),
    ],
)
def test_errors_of_loading(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        nextn.load(**options)
    assert " -" not in f" {raised.value}"


def test_errors_of_calls(model: nextn.LanguageModel) -> None:
    with pytest.raises(ConfigError, match=r"shorten it or give a larger n_ctx$"):
        model.generate([1] * 300)


def test_flags_become_arguments() -> None:
    assert argument_names("--spec-type mtp: give -md, a smaller -c or --top-k") == (
        "speculation mtp: give draft, a smaller n_ctx or top_k"
    )
    for text in ("--chat is no argument", "a well-known -x", "minus -5, a--b", "q4_k-m"):
        assert argument_names(text) == text


def test_flags_are_those_of_the_command_line() -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"  # it is generated
    flags = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page.read_text(encoding="utf-8")))
    assert set(FLAGS) <= flags
