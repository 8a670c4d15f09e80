"""Questions that a model asks itself before it answers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.convert.train.answer_writing import AnswerWriter
from nextn.convert.train.own_questions import LONGEST_QUESTION, OwnQuestions
from nextn.convert.train.text_store import TextStore
from nextn.convert.train.training_requests import OWN_QUESTION, BuiltInRequests
from nextn.core import nano
from nextn.core.bench.prompt_tokens import PromptRenderer
from nextn.core.bench.record import Prompt
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import NO_SPECULATION

STAND_IN = Prompt("0", OWN_QUESTION, turns=("What is chess?",))


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return load_runtime(nano.path(), "cpu", n_ctx=1024, spec=NO_SPECULATION)


def written(runtime: Runtime, folder: Path, *amounts: int) -> tuple[list[int], dict[str, int]]:
    """Tokens and kinds of texts, written up to each of `amounts` by a writer of its own."""
    folder.mkdir()
    source = BuiltInRequests(1, is_chat=True)
    for n in amounts:
        store = TextStore(folder)
        AnswerWriter(runtime, source, SamplingParams(seed=1), store, 1).run(n, lambda _: None)
    store = TextStore(folder)
    return store.read().tolist(), store.kinds


def test_texts_are_the_same_where_the_writer_was_stopped(runtime: Runtime, tmp_path: Path) -> None:
    tokens, kinds = written(runtime, tmp_path / "whole", 1200)
    assert kinds[OWN_QUESTION] >= 3
    assert written(runtime, tmp_path / "stopped", 300, 700, 1200) == (tokens, kinds)


def test_the_question_stands_in_the_users_turn(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    written(runtime, folder, 1200)
    store, renderer = TextStore(folder), PromptRenderer(runtime)
    ids, opening = store.read(), renderer.user_opening()
    assert opening
    asked = [text for text in store.texts if text.kind == OWN_QUESTION]
    prompts = [ids[text.at : text.at + text.first].tolist() for text in asked]
    assert all(prompt[: len(opening)] == opening for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)


def test_what_a_cut_or_empty_question_becomes(runtime: Runtime) -> None:
    renderer, encode = PromptRenderer(runtime), runtime.tokenizer.encode
    questions = OwnQuestions(runtime, renderer, 384)
    whole = encode("Write f.\n\nIt adds", parse_special=False)
    assert questions.prompt(STAND_IN, whole, is_cut=False).turns == ("Write f.\n\nIt adds",)
    assert questions.prompt(STAND_IN, whole, is_cut=True).turns == ("Write f.",)
    assert questions.prompt(STAND_IN, encode(" \n", parse_special=False), is_cut=False) == STAND_IN
    assert OwnQuestions(runtime, renderer, LONGEST_QUESTION).opening == []
