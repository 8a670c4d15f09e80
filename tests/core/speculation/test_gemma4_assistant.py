"""Gemma 4's assistant: drafts are those of the formulas, the text is that of plain decoding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.assistant_files import (
    ARCH,
    AssistantFile,
    Definition,
    Kind,
    TargetRows,
    as_hf,
    write_assistant,
)
from support.llama_cpp import LlamaCpp
from support.running import PAGES, Machine, Running, load, random_tokens
from support.scripted import drain
from support.vocab import N_VOCAB

from nextn.convert.verify import examine, open_anything
from nextn.core.backend.step import StepPart, build_step
from nextn.core.errors import ConfigError, ModelError
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.load_runtime import load_runtime
from nextn.core.models import add_networks
from nextn.core.models.drafters.gemma4_assistant import TAP
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.options import (
    NO_SPECULATION,
    NgramModSizes,
    SpecOptions,
    named_by_file,
)
from nextn.core.speculation.request_spec import RequestSpec

N_CTX, N_DRAFT = 160, 4
N_SHARED = {"gemma4": 0, "gemma4-moe": 0, "gemma4-inputs": 2, "gemma4-keys": 0}
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=24, ignore_eos=True)
OPTIONS = SpecOptions(
    types=(ARCH,),
    draft_n_max=N_DRAFT,
    fixed=True,
    ngram_mod=NgramModSizes(n_match=2, n_min=1, n_max=9),
)

Tiny = Callable[..., Any]


def load_pair(
    target: Path, draft: Path, device: str = "cpu", spec: SpecOptions = OPTIONS
) -> Runtime:
    return load_runtime(target, device, n_ctx=N_CTX, spec=spec, draft=draft)


# The numbers -------------------------------------------------------------------------------------


def chained_rows(target: Path, written: AssistantFile, tokens: Sequence[int]) -> Any:
    """Logits and hidden rows of chained steps behind all tokens but the last, on the reference
    backend; tokens are drafted as they come."""
    model, backend = load(target)
    with open_gguf(written.path) as file:
        add_networks(model, file, backend)
    (network,) = model.drafters[ARCH]
    running = Running(Machine(model, backend, taps=frozenset({H_NEXTN})))
    n = len(tokens) - 1
    hidden = running.forward(tokens[:n]).taps[H_NEXTN][-1:]
    state, made, token = running.machine.state, [], tokens[n]
    run = backend.compile(network.forward, state, max_rows=1, taps=frozenset({TAP}))
    for _ in range(3):
        part = StepPart([token], n - 1, PAGES, first_position=n)
        output = run(build_step([part], hidden))
        hidden, token = output.taps[TAP].copy(), int(output.logits[0].argmax())
        made.append((output.logits[0].copy(), hidden[0]))
    return made


@pytest.mark.parametrize("n", [5, 30])
@pytest.mark.parametrize("family", N_SHARED)
def test_numbers_are_those_of_the_formulas(family: str, n: int, tiny: Tiny, tmp_path: Path) -> None:
    """Within the window and beyond it."""
    made = tiny(family)
    written = write_assistant(tmp_path / "a.gguf", made.path)
    tokens = random_tokens(n, seed=n, n_vocab=N_VOCAB)
    definition = Definition(written, TargetRows(made.hf, N_SHARED[family], tokens))
    hidden, token = definition.target.hidden[n - 2], tokens[-1]
    for logits, row in chained_rows(made.path, written, tokens):
        want, hidden = definition.row(token, hidden, n - 1)
        np.testing.assert_allclose(logits, want, atol=1e-4)
        np.testing.assert_allclose(row, hidden, atol=1e-4)
        token = int(want.argmax())


KINDS = {
    "windowed alone": Kind(windowed=(True,)),
    "whole alone": Kind(windowed=(False, False)),
    "narrow window": Kind(window=3),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_logits_of_all_kinds(kind: Kind, tiny: Tiny, tmp_path: Path) -> None:
    made = tiny("gemma4")
    written = write_assistant(tmp_path / "a.gguf", made.path, kind)
    tokens = random_tokens(30, seed=3, n_vocab=N_VOCAB)
    definition = Definition(written, TargetRows(made.hf, N_SHARED["gemma4"], tokens))
    _, want = definition.draft(len(tokens), 3)
    got = [logits for logits, _ in chained_rows(made.path, written, tokens)]
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", N_SHARED)
def test_the_formulas_are_those_of_transformers(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """Whose rows see two cells more through a window of the same size."""
    made, n = tiny(family), 30
    written = write_assistant(tmp_path / "a.gguf", made.path)
    tokens = random_tokens(n, seed=3, n_vocab=N_VOCAB)
    target = TargetRows(made.hf, N_SHARED[family], tokens)
    hf = as_hf(written, target.table.shape[1], written.kind.window - 2)
    cells = {
        name: tuple(
            torch.from_numpy(each[: n - 1]).transpose(0, 1)[None]
            for each in target.cells(name == "sliding_attention")
        )
        for name in ("sliding_attention", "full_attention")
    }
    definition, token = Definition(written, target), tokens[-1]
    hidden = target.hidden[n - 2]
    for _ in range(3):
        e = target.table[token] * target.table.shape[1] ** 0.5
        with torch.no_grad():
            out = hf(
                inputs_embeds=torch.from_numpy(np.concatenate([e, hidden]))[None, None],
                position_ids=torch.tensor([[n - 1]]),
                attention_mask=torch.ones(1, n, dtype=torch.long),
                shared_kv_states=cells,
            )
        want, hidden = definition.row(token, hidden, n - 1)
        np.testing.assert_allclose(out.logits[0, 0].numpy(), want, atol=1e-5)
        np.testing.assert_allclose(out.last_hidden_state[0, 0].numpy(), hidden, atol=1e-5)
        token = int(want.argmax())


class Noted(HiddenStateDrafter):
    drafts: list[tuple[list[int], list[int]]]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        made = super().propose(requests)
        for request, draft in zip(requests, made, strict=True):
            self.drafts.append((list(request.tokens), list(draft.tokens)))
        return made


@pytest.mark.parametrize("family", N_SHARED)
@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_drafts_are_those_of_the_formulas(
    family: str, device: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Whatever was accepted and rejected before."""
    made = tiny(family)
    written = write_assistant(tmp_path / "a.gguf", made.path)
    with load_pair(made.path, written.path, device) as runtime:
        noted = Noted(ARCH, runtime.model.drafters[ARCH], runtime.setting(1))
        noted.drafts = []
        engine = runtime.new_engine(runtime.plan(1), noted)
        text = engine.add(random_tokens(30, seed=4, n_vocab=N_VOCAB), GREEDY)
        drain(engine)
    definition = Definition(written, TargetRows(made.hf, N_SHARED[family], text.tokens))
    n_compared = 0
    for tokens, draft in noted.drafts:
        want, logits = definition.draft(len(tokens), len(draft))
        best = np.sort(logits, axis=1)
        sure = int(np.logical_and.accumulate(best[:, -1] - best[:, -2] > 0.02).sum())
        assert draft[:sure] == want[:sure]
        n_compared += sure
    assert n_compared > 50


@pytest.mark.peer
@pytest.mark.parametrize("family", N_SHARED)
def test_llama_cpp_drafts_and_accepts_the_same(
    family: str, tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a head that prefers the tokens of which the text has most."""
    target, n_draft = tiny(family).path, 3
    prompt = random_tokens(30, seed=4, n_vocab=N_VOCAB)
    n, params = 60, replace(GREEDY, max_tokens=60)
    with load_runtime(target, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        text = [event.token for event in runtime.generate(prompt, params)]
    likely = tuple(token for token, _ in Counter(text).most_common(3))
    written = write_assistant(tmp_path / "a.gguf", target, Kind(likely=likely))
    with load_pair(target, written.path, spec=replace(OPTIONS, draft_n_max=n_draft)) as runtime:
        assert [event.token for event in runtime.generate(prompt, params)] == text
        stats = runtime.stats
    with capfd.disabled(), LlamaCpp(target, n_mtp=n_draft, head=written.path) as peer:
        theirs = peer.write(prompt, n, temperature=0, ignore_eos=True)
    assert text == theirs.tokens
    assert stats.draft_n == theirs.timings["draft_n"]
    assert stats.draft_n_accepted == theirs.timings["draft_n_accepted"] > 0


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("gemma4", {"embedding_length_out": 48}, "its target is 48 wide, the model 64"),
        (
            "gemma4",
            {"attention.key_length": 16, "rope.dimension_count": 16},
            "block 2 reads heads of 16, the model has 32",
        ),
        ("gemma4", {"attention.key_length_swa": 32}, "block 0 reads heads of 32, the model has 16"),
        (
            "gemma4-keys",
            {"attention.head_count_kv": 2},
            "its block 2 reads 2 key-value heads, the model has 1",
        ),
        ("gemma4", {"attention.sliding_window": 1}, "a window of 1 sees no cell but its own"),
    ],
)
def test_an_assistant_of_another_model(
    family: str, keys: dict[str, Any], message: str, tiny: Tiny, tmp_path: Path
) -> None:
    target = tiny(family).path
    written = write_assistant(tmp_path / "a.gguf", target, **keys)
    with pytest.raises(ModelError, match=re.escape(message)) as raised:
        load_pair(target, written.path)
    line = str(raised.value)
    assert line.startswith(f"{written.path}: this Gemma 4 assistant is not one for the model: ")
    assert line.isprintable()


def test_a_target_that_is_no_gemma4(tiny: Tiny, tmp_path: Path) -> None:
    written = write_assistant(tmp_path / "a.gguf", tiny("gemma4").path)
    with pytest.raises(ModelError, match="it is for gemma4, the model is qwen3"):
        load_pair(tiny("qwen3").path, written.path)


def test_a_vocabulary_of_another_size(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("gemma4").path
    written = write_assistant(tmp_path / "a.gguf", target, Kind(n_vocab=520))
    with pytest.raises(ModelError, match="its vocabulary has 520 rows, the model's 512"):
        load_pair(target, written.path)


def test_files_in_wrong_places(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("gemma4").path
    written = write_assistant(tmp_path / "a.gguf", target)
    with pytest.raises(ModelError, match=r"holds a drafter \(gemma4-assistant\) for another model"):
        load_runtime(written.path, "cpu")
    with pytest.raises(ConfigError, match="holds only a Gemma 4 assistant, which is for spec-type"):
        load_pair(target, written.path, spec=SpecOptions(types=("eagle3",)))
    with (
        load_runtime(target, "cpu", n_ctx=N_CTX, spec=OPTIONS) as runtime,
        pytest.raises(ConfigError, match="gemma4-assistant: give the file of an assistant for the"),
    ):
        runtime.warm_up()


@pytest.mark.parametrize("types", [("auto",), ("mtp",), ("draft-mtp",), (ARCH,)])
def test_the_names_that_choose_it(types: tuple[str, ...], tiny: Tiny, tmp_path: Path) -> None:
    """llama.cpp's name is that of MTP heads, too."""
    target = tiny("gemma4").path
    written = write_assistant(tmp_path / "a.gguf", target)
    with load_pair(target, written.path, spec=replace(OPTIONS, types=types)) as runtime:
        assert runtime.spec_types == (("ngram-mod",) if types == ("auto",) else ()) + (ARCH,)
        for asked in ((), ("draft-mtp",), (ARCH,)):
            params = replace(GREEDY, spec=RequestSpec(asked))
            list(runtime.generate([1, 2, 3], params))
            assert runtime.stats.by_source[ARCH].drafted > 0


@pytest.mark.parametrize(
    ("types", "loaded", "want"),
    [
        (("mtp",), (ARCH,), (ARCH,)),
        (("ngram-mod", "mtp"), ("ngram-mod", ARCH), ("ngram-mod", ARCH)),
        (("mtp",), ("mtp",), ("mtp",)),
        (("mtp",), (), ("mtp",)),
        (("eagle3",), (ARCH,), ("eagle3",)),
    ],
)
def test_what_is_loaded_decides_what_mtp_means(
    types: tuple[str, ...], loaded: tuple[str, ...], want: tuple[str, ...]
) -> None:
    assert named_by_file(types, loaded) == want


def test_inspect_compares_it_with_the_model(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("gemma4").path
    right = write_assistant(tmp_path / "right.gguf", target).path
    wrong = write_assistant(tmp_path / "wrong.gguf", target, embedding_length_out=48).path
    reports = [
        examine(open_anything(str(target)), open_anything(str(draft))) for draft in (right, wrong)
    ]
    assert [report.drafters[0].name for report in reports] == [ARCH, ARCH]
    assert [report.drafters[0].works for report in reports] == [True, False]
    assert reports[0].drafters[0].command == f"spec generate -m {target} -md {right}"
    assert reports[0].is_sound
    assert "it reads rows of 48, the model has rows of 64" in reports[1].findings[-1].text
