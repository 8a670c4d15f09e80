"""Several MTP heads: each is another block, and drafts the token at its own distance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rows_in_prompts import with_rows
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import build_tiny

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.step import StepPart, build_step
from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.options import SpecOptions

N_HEADS, N_LAYERS = 3, 4
PAGE_LEN = 16
SPEC = SpecOptions(types=("mtp",), draft_n_max=8)
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=40, ignore_eos=True)


def with_more_heads(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    first = [name for name in tensors if name.startswith(f"blk.{N_LAYERS}.")]
    for i in range(1, N_HEADS):
        for name in first:
            twin = name.replace(f"blk.{N_LAYERS}.", f"blk.{N_LAYERS + i}.")
            spread = 1 + 0.3 * rng.normal(size=tensors[name].shape)
            tensors[twin] = (tensors[name] * spread).astype(np.float32)
    for name in keys:
        if name.endswith("block_count"):
            keys[name] += N_HEADS - 1
        elif name.endswith("nextn_predict_layers"):
            keys[name] = N_HEADS
        elif isinstance(keys[name], list) and len(keys[name]) == N_LAYERS + 1:
            keys[name] = [*keys[name], *[keys[name][-1]] * (N_HEADS - 1)]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("heads")
    path: Path = build_tiny("qwen35", folder, mtp=True, edit=with_more_heads).path
    with load_runtime(path, "cpu", n_ctx=128, spec=SPEC) as loaded:
        assert len(loaded.model.nextn) == N_HEADS
        yield loaded


class Noted(HiddenStateDrafter):
    drafts: list[tuple[list[int], list[int]]]

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        made = super().propose(asks)
        for ask, draft in zip(asks, made, strict=True):
            self.drafts.append((list(ask.tokens), draft.tokens))
        return made


def make_engine(runtime: Runtime, n_slots: int = 1) -> tuple[Engine, Noted]:
    noted = Noted("mtp", runtime.model.nextn, runtime.setting(n_slots))
    noted.drafts = []
    return runtime.new_engine(runtime.plan(n_slots), noted), noted


def from_the_definition(runtime: Runtime, text: list[int]) -> list[int]:
    """One head after the other over the whole text, each in a fresh state."""
    model, backend = runtime.model, runtime.backend

    def run(forward: Any, tokens: list[int], hidden: Any = None) -> Any:
        state = backend.new_state(
            model.state_shape, StateRoom(n_pages=8, page_len=PAGE_LEN, n_slots=1, window=4)
        )
        taps = frozenset({H_NEXTN})
        step = build_step([StepPart(tokens, 0, range(8))], hidden)
        return backend.compile(forward, state, max_rows=128, taps=taps)(step)

    trunk = run(model.forward, text[:-1]).taps[H_NEXTN].copy()
    hidden = np.concatenate([np.zeros_like(trunk[:1]), trunk])
    tokens, drafted = list(text), []
    for head in model.nextn:
        output = run(head.forward, tokens, hidden)
        drafted.append(int(output.logits[-1].argmax()))
        tokens.append(drafted[-1])
        hidden = np.concatenate([hidden, output.taps[H_NEXTN][-1:]])
    return drafted


def test_each_head_drafts_its_token(runtime: Runtime) -> None:
    engine, noted = make_engine(runtime)
    engine.add(random_tokens(21, seed=4, n_vocab=256), GREEDY)
    drain(engine)
    whole = [(text, draft) for text, draft in noted.drafts if len(draft) == N_HEADS]
    assert len(whole) > 10
    for text, draft in whole[::5]:
        assert draft == from_the_definition(runtime, text)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_text_is_that_of_plain_decoding(runtime: Runtime, temperature: float) -> None:
    how = GenerateParams(SamplingParams(temperature=temperature, seed=2), max_tokens=30)
    prompts = [random_tokens(9 + 20 * i, seed=i, n_vocab=256) for i in range(3)]
    plain, (engine, noted) = runtime.new_engine(runtime.plan(3)), make_engine(runtime, 3)
    want, got = ([each.add(prompt, how) for prompt in prompts] for each in (plain, engine))
    drain(plain)
    drain(engine)
    assert [text.tokens for text in got] == [text.tokens for text in want]
    assert max(len(draft) for _, draft in noted.drafts) == N_HEADS


def test_all_heads_read_rows(runtime: Runtime) -> None:
    """Rows of a prompt in place of tokens: the same text, drafted alike."""
    tokens, found = random_tokens(30, seed=5, n_vocab=256), []
    for prompt in (tokens, with_rows(runtime, tokens, 4, 28), with_rows(runtime, tokens, 12, 30)):
        # Without the policy, which drafts as much as pays by the clock.
        drafter = HiddenStateDrafter("mtp", runtime.model.drafters["mtp"], runtime.setting(1))
        engine = runtime.new_engine(runtime.plan(1), drafter)
        sequence = engine.add(prompt, GREEDY)
        events = [event._replace(sequence=0) for event in drain(engine)]
        found.append((events, sequence.stats.draft_n, sequence.stats.draft_n_accepted))
    assert found[0] == found[1] == found[2]
    assert found[0][1]
