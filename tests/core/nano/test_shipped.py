"""The bundled model and its draft model: what they are, what they can do, the same in llama.cpp.

`tests/data/nano-answers.json` is what the float32 backend writes behind the prompts, as tokens;
`PYTHONPATH=tests/lib:.types python tests/core/nano/test_shipped.py` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.llama_cpp import LlamaCpp
from support.mtp_acceptance import DraftAcceptance, measure
from support.nano_script import load_script

from nextn import core
from nextn.convert.train.draft_figures import GREEDY, usual_sampling
from nextn.core import nano
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.runtime import Runtime

DATA = Path(__file__).parents[2] / "data"
NANO, DRAFT = nano.path(), DATA / "nano-draft.gguf"
TEXTS = json.loads((DATA / "nano-prompts.json").read_text(encoding="utf-8"))
PROMPTS: list[str] = TEXTS["prompts"]
ANSWERS, N_ANSWER = DATA / "nano-answers.json", 128
FIGURES = json.loads((Path(__file__).parent / "figures.json").read_text(encoding="utf-8"))

LICENSE = "PSF-2.0 AND MIT AND BSD-3-Clause AND BSD-2-Clause AND Apache-2.0 AND ISC"
N_GREEDY = 32
# Both sides round activations to int8, each in its own way; 0.046 was seen.
NEAR_TIE = 0.05


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with core.load(NANO, "cpu") as made:
        yield made


def test_what_it_is() -> None:
    file = open_gguf(NANO)
    meta = file.metadata
    assert NANO.stat().st_size <= 16e6
    assert meta.architecture == "qwen35"
    assert meta.int("ssm.time_step_rank") != meta.int("ssm.group_count")  # heads are tiled
    assert meta.int("nextn_predict_layers") == 1
    assert meta["general.license"] == LICENSE
    assert {tensor.format.name for tensor in file.tensors.values()} == {"Q8_0", "F32"}


def test_the_draft_model_goes_with_it() -> None:
    one, other = open_gguf(NANO).metadata, open_gguf(DRAFT).metadata
    assert other.architecture == "qwen3"
    assert DRAFT.stat().st_size <= 2e6
    for key in ("tokens", "merges", "pre", "eos_token_id"):
        assert one[f"tokenizer.ggml.{key}"] == other[f"tokenizer.ggml.{key}"]


def write(runtime: Runtime, prompt: Sequence[int], n: int) -> list[int]:
    params = GenerateParams(GREEDY, max_tokens=n)
    return [event.token for event in runtime.generate(prompt, params) if event.token >= 0]


def test_it_writes_python(runtime: Runtime) -> None:
    tokens = write(runtime, runtime.tokenizer.encode("def fibonacci(n):"), 40)
    text = runtime.tokenizer.decode(tokens)
    assert text.startswith("\n    ")
    assert len(text.split()) > 3


def test_bits_of_a_held_out_file(runtime: Runtime) -> None:
    found = load_script().bits_per_byte(runtime, [TEXTS["text"]])
    assert found <= FIGURES["bits_per_byte_of_bisect"] + 0.02


def test_bits_per_byte_charges_every_token_once(runtime: Runtime) -> None:
    """Windows are a matter of cost: with a window as long as the text, nothing is left to them."""
    text = PROMPTS[0]
    tokens = runtime.tokenizer.encode(text, parse_special=False)
    logits = runtime.logits(tokens).astype(np.float64)
    assert tokens[0] == runtime.tokenizer.bos_id  # which costs nothing
    chosen = logits[np.arange(len(tokens) - 1), tokens[1:]]
    own = (np.log(np.exp(logits[:-1]).sum(1)) - chosen).sum() / np.log(2)
    expected = own / len(text.encode())
    assert load_script().bits_per_byte(runtime, [text]) == pytest.approx(expected, rel=1e-5)


def drafted(runtime: Runtime, prompts: Sequence[str], n: int) -> DraftAcceptance:
    total = DraftAcceptance(0, (0, 0, 0))
    for text in prompts:
        prompt = runtime.tokenizer.encode(text, parse_special=False)
        written = write(runtime, prompt, n)
        if len(written) > 4:
            total += measure(runtime.model, runtime.backend, prompt, written)
    return total


def test_the_head_drafts(runtime: Runtime) -> None:
    found = drafted(runtime, PROMPTS[:3], 64)
    assert found.first >= 0.55
    assert found.length >= 2.0


@pytest.mark.slow
def test_the_head_drafts_as_well_as_was_measured(runtime: Runtime) -> None:
    """On texts that are the same everywhere: processors round otherwise, and write others."""
    found = DraftAcceptance(0, (0, 0, 0))
    for text, written in zip(PROMPTS, json.loads(ANSWERS.read_text()), strict=True):
        prompt = runtime.tokenizer.encode(text, parse_special=False)
        if len(written) > 4:
            found += measure(runtime.model, runtime.backend, prompt, written)
    assert found.first >= FIGURES["first_token"] - 0.01
    assert found.length >= FIGURES["acceptance_length"] - 0.03


@pytest.mark.slow
def test_everyday_prompts(runtime: Runtime) -> None:
    found = load_script().share_that_parses(runtime, [usual_sampling(runtime, seed=0)])
    assert found >= FIGURES["parsing_of_seed_0"] - 0.05


@pytest.mark.peer
@pytest.mark.parametrize("n_draft", [0, 3], ids=["plain", "mtp"])
def test_llama_cpp_writes_the_same(
    n_draft: int, runtime: Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled(), LlamaCpp(NANO, n_ctx=2048, n_threads=1, n_mtp=n_draft) as peer:
        for prompt in PROMPTS:
            tokens = runtime.tokenizer.encode(prompt, parse_special=False)
            assert [runtime.tokenizer.bos_id, *peer.tokenize(prompt, special=False)] == tokens
            theirs = peer.greedy(tokens, N_GREEDY).tokens
            assert first_loss(runtime, tokens, theirs) <= NEAR_TIE


def first_loss(runtime: Runtime, prompt: list[int], theirs: list[int]) -> float:
    """How far below our own best token the first of theirs is that differs; 0 if none does."""
    ours = write(runtime, prompt, N_GREEDY)
    for i, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            logits = runtime.logits([*prompt, *ours[:i]])[-1]
            return float(logits[own] - logits[other])
    return 0.0


def write_answers() -> None:
    with core.load(NANO, "torch") as runtime:
        prompts = [runtime.tokenizer.encode(text, parse_special=False) for text in PROMPTS]
        lines = [json.dumps(write(runtime, prompt, N_ANSWER)) for prompt in prompts]
    ANSWERS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write_answers()
