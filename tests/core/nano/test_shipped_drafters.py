"""The drafters for the bundled model: what they are, and how much of what they draft is right."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from nextn.convert.train import draft_figures
from nextn.convert.train.draft_figures import (
    GREEDY,
    NGRAMS,
    Measured,
    acceptance,
    load,
    usual_sampling,
)
from nextn.convert.train.python_sources import first_prompts
from nextn.core import nano
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf

DATA = Path(__file__).parents[2] / "data"
DRAFTERS = {
    "mtp": None,
    "eagle3": DATA / "nano-eagle3.gguf",
    "dflash": DATA / "nano-dflash.gguf",
}
FIGURES = json.loads((Path(__file__).parent / "figures.json").read_text(encoding="utf-8"))
MARGIN = 0.25  # other processors round otherwise, and a text that differs at one token goes on so


@functools.cache
def measured(name: str, *more: str, greedy: bool = False) -> Measured:
    with load([*more, name], DRAFTERS[name]) as runtime:
        sampling = GREEDY if greedy else usual_sampling(runtime, seed=0)
        return acceptance(runtime, first_prompts()[::4], [sampling])


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_what_they_are(name: str) -> None:
    path = DRAFTERS[name]
    assert path is not None
    assert path.stat().st_size <= 2.5e6
    with open_gguf(path) as file, open_gguf(nano.path()) as target:
        assert file.metadata.architecture == name
        assert {"token_embd.weight", "output.weight"}.isdisjoint(file.tensors)
        assert {tensor.format.name for tensor in file.tensors.values()} == {"Q8_0", "F32"}
        assert file.metadata["general.license"] == target.metadata["general.license"]
        for key in ("tokens", "merges", "pre", "eos_token_id"):
            name_of = f"tokenizer.ggml.{key}"
            assert file.metadata[name_of] == target.metadata[name_of]


@pytest.mark.parametrize("name", DRAFTERS)
def test_they_draft_as_well_as_was_measured(name: str) -> None:
    for how in ("sampled", "greedy"):
        found = measured(name, greedy=how == "greedy").length
        assert found >= max(FIGURES["drafters"][name][how] - MARGIN, 1.8)


@pytest.mark.parametrize("name", DRAFTERS)
def test_they_change_no_text(name: str) -> None:
    """Random drafters are nearly always rejected; most of what these draft is accepted."""
    texts = []
    for types in (["none"], [NGRAMS, name]):
        with load(types, None if types == ["none"] else DRAFTERS[name]) as runtime:
            usual = usual_sampling(runtime, seed=4)
            ways = [
                GenerateParams(sampling, max_tokens=48, logprobs=0) for sampling in (usual, GREEDY)
            ]
            prompts = first_prompts()[1::8]
            texts.append(
                [
                    [(event.token, event.logprob) for event in runtime.generate(prompt, params)]
                    for prompt in prompts
                    for params in ways
                ]
            )
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_splice_with_ngrams_is_no_shorter(name: str) -> None:
    spliced, alone = measured(name, NGRAMS, greedy=True), measured(name, greedy=True)
    assert spliced.tokens == alone.tokens
    assert spliced.length >= alone.length


def test_the_figures_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "".join(f"    total += {i}\n" for i in range(3))
    # Some of a hundred names are in the part that is held out.
    for i in range(100):
        (tmp_path / f"m{i}.py").write_text(f"total = 0\n\n\ndef add_{i}(total):\n{body}" * 5)
    prompts = draft_figures.held_out_prompts(tmp_path)
    assert 0 < len(prompts) <= draft_figures.N_SITES
    assert all(prompt.splitlines()[-1].startswith("def add_") for prompt in prompts)
    monkeypatch.setattr(draft_figures, "first_prompts", lambda: ["def f(x):"])
    monkeypatch.setattr(draft_figures, "held_out_prompts", lambda _: prompts[:1])
    monkeypatch.setattr(draft_figures, "N_SEEDS", 1)
    (ngrams, mtp, spliced, controlled) = draft_figures.report([], tmp_path)
    assert ngrams.startswith("ngram-mod | fixed | ")
    assert spliced.startswith("ngram-mod,mtp | fixed | ")
    assert controlled.startswith("ngram-mod,mtp | controller | ")
    assert all(float(length) > 1.2 for length in mtp.split(" | ")[2:])
