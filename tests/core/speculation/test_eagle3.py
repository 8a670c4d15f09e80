"""EAGLE3: drafts are those of the formulas, the text is that of plain decoding."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.drafter_files import table_and_head
from support.eagle3_files import Definition, Kind, write_eagle3
from support.every_family import EVERY_FAMILY, EVERY_WITH_MTP
from support.network_drafts import (
    GRAMMAR,
    GREEDY,
    N_CTX,
    SAMPLED,
    SPEC,
    Tiny,
    drafted_here_and_by_llama_cpp,
    load,
    noted_drafts,
    write,
)
from support.plain_hub_cases import PLAIN_CASES
from support.vocab import N_VOCAB

from nextn.convert.verify import examine, open_anything
from nextn.core.errors import ConfigError, ModelError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions

KINDS = {
    "plain": Kind(),
    "normed residual": Kind(norm_before_residual=True, shuffled=True),
    "one norm": Kind(norm_before_fc=True, own_embedding=True),
    "3.1": Kind(fc_norm=True, norm_output=True),
    "fed normed": Kind(norm_output=True, norm_before_residual=True),
    "five taps": Kind(n_taps=5, head_norms=True, fc_norm=True),
    "one tap": Kind(n_taps=1, norm_before_fc=True),
    "two layers": Kind(n_layers=2, norm_output=True, window=16),
    "the target's head": Kind(n_head=0),
    "latent": Kind(is_latent=True),
    "narrow": Kind(width=32, own_embedding=True),
}
OPTIONS = replace(SPEC, types=("eagle3",))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_drafts_are_those_of_the_formulas(
    kind: Kind, device: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Whatever was accepted and rejected before."""
    target = tiny("qwen3" if kind.n_taps < 5 else "qwen35").path  # of two layers, of four
    written = write_eagle3(tmp_path / "e.gguf", target, kind)
    with load(target, written.path, device, OPTIONS) as runtime:
        drafts, taps = noted_drafts(runtime, "eagle3", written.layers)
    definition, n_compared = Definition(written, *table_and_head(target)), 0
    for tokens, made in drafts:
        draft = made.tokens
        want, logits = definition.draft(tokens, taps[: len(tokens) - 1], len(draft))
        best = np.sort(logits, axis=1)
        sure = int(np.logical_and.accumulate(best[:, -1] - best[:, -2] > 1e-3).sum())
        assert draft[:sure] == want[:sure]
        n_compared += sure
    assert n_compared > 50


# The law -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family",
    sorted({*EVERY_FAMILY} - {*PLAIN_CASES} | {"olmo2", "cohere2", "granitehybrid", "lfm2"}),
)
def test_it_changes_no_text(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """Alone, with n-grams, and beside the model's own head: two networks at once."""
    has_mtp = family in EVERY_WITH_MTP
    target = tiny(family, mtp=has_mtp).path
    written = write_eagle3(tmp_path / "e.gguf", target, Kind(own_embedding=True))
    lists = [("eagle3",), ("ngram-mod", "eagle3")] + [("eagle3", "mtp")] * has_mtp
    with load(target, written.path, spec=replace(OPTIONS, types=("auto",))) as runtime:
        drafted: set[str] = set()
        for params, n in ((GREEDY, 1), (SAMPLED, 4), (GRAMMAR, 4)):
            want, _ = write(runtime, params, (), n)
            for types in lists:
                got, sources = write(runtime, params, types, n)
                assert got == want
                drafted |= sources
        assert "eagle3" in drafted


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_the_controller_and_acceptance_by_ratio(family: str, tiny: Tiny, tmp_path: Path) -> None:
    target = tiny(family).path
    written = write_eagle3(tmp_path / "e.gguf", target)
    spec = replace(OPTIONS, types=("auto",), fixed=False)
    with load(target, written.path, spec=spec) as runtime:
        assert runtime.spec_types == ("ngram-mod", "eagle3")
        want, _ = write(runtime, SAMPLED, (), 2)
        assert write(runtime, SAMPLED, ("ngram-mod", "eagle3"), 2)[0] == want
    with load(target, written.path, spec=replace(OPTIONS, accept="ratio")) as runtime:
        texts, sources = write(runtime, SAMPLED, ("eagle3",), 2)
        assert "eagle3" in sources
        assert [len(text) for text in texts] == [24, 24]


def test_its_own_tokens_are_accepted(tiny: Tiny, tmp_path: Path) -> None:
    """A target that repeats one token, and a head that knows only this one."""
    target = tiny("qwen3").path
    written = write_eagle3(tmp_path / "e.gguf", target, Kind(n_head=1))
    assert written.d2t is not None
    only = int(written.d2t[0])
    biased = SamplingParams(temperature=0.0, logit_bias=((only, 1000.0),))
    with load(target, written.path, spec=OPTIONS) as runtime:
        events = list(runtime.generate([1, 2, 3], GenerateParams(biased, max_tokens=21)))
        assert [event.token for event in events] == [only] * 21
        stats = runtime.stats
        assert stats.by_source["eagle3"].accepted == stats.draft_n == 16


@pytest.mark.peer
@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", "plain"), ("qwen35", "normed residual"), ("qwen3", "one norm"), ("qwen3", "narrow")],
)
def test_llama_cpp_drafts_and_accepts_the_same(
    family: str, name: str, tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a text of few tokens, which a head that knows only these often hits."""
    target, n, n_draft = tiny(family).path, 60, 3
    written = write_eagle3(tmp_path / "e.gguf", target, dataclasses.replace(KINDS[name], n_head=3))
    with capfd.disabled():
        ours, theirs = drafted_here_and_by_llama_cpp(target, written, OPTIONS, n, n_draft)
    assert ours == theirs
    assert ours.n_accepted > 0


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        (Kind(), {"target_hidden_size": 48}, "its target is 48 wide, the model 64"),
        (Kind(width=32), {}, "it is 32 wide and has no embedding of its own, the model is 64 wide"),
        (Kind(), {"block_count": 2}, "blk.1.attn_norm.weight"),
        (
            Kind(),
            {"target_layers": [1, 2]},
            "target_layers names 2 layers of 64, and fc.weight joins rows of 192",
        ),
        (Kind(), {"target_layers": [0, 1, 99]}, "target_layers is [0, 1, 99], expected layers of"),
        (Kind(), {"target_layers": None}, "eagle3.target_layers' is missing"),
    ],
)
def test_a_drafter_of_another_model(
    kind: Kind, keys: dict[str, Any], message: str, tiny: Tiny, tmp_path: Path
) -> None:
    target = tiny("qwen3").path
    written = write_eagle3(tmp_path / "e.gguf", target, kind, **keys)
    with pytest.raises(ModelError, match=re.escape(message)) as raised:
        load(target, written.path, spec=OPTIONS)
    assert str(raised.value).startswith(str(written.path))


@pytest.mark.parametrize("wrong", ["twice", "beyond", "negative", "short"])
def test_a_list_of_tokens_that_is_wrong(wrong: str, tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    written = write_eagle3(tmp_path / "e.gguf", target)
    assert written.d2t is not None
    data, d2t = written.path.read_bytes(), written.d2t.copy()
    if wrong == "twice":
        d2t[1] = d2t[0]
    else:
        d2t[0] = {"beyond": N_VOCAB, "negative": -1, "short": 1 << 40}[wrong]
    assert data.count(written.d2t.tobytes()) == 1
    written.path.write_bytes(data.replace(written.d2t.tobytes(), d2t.tobytes()))
    message = "d2t names a token twice" if wrong == "twice" else "d2t must hold token ids below 512"
    with pytest.raises(ModelError, match=message):
        load(target, written.path, spec=OPTIONS)


def test_files_in_wrong_places(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    written = write_eagle3(tmp_path / "e.gguf", target)
    with pytest.raises(ModelError, match=r"holds a drafter \(eagle3\) for another model; give"):
        load_runtime(written.path, "cpu")
    with pytest.raises(ConfigError, match="holds only an EAGLE3 drafter, which is for spec-type e"):
        load(target, written.path, spec=SpecOptions(types=("mtp",)))
    with (
        load_runtime(target, "cpu", n_ctx=N_CTX, spec=OPTIONS) as runtime,
        pytest.raises(ConfigError, match="eagle3: give the file of an EAGLE3 drafter for the mod"),
    ):
        runtime.warm_up()


def test_inspect_compares_it_with_the_model(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    right = write_eagle3(tmp_path / "right.gguf", target).path
    wrong = write_eagle3(tmp_path / "wrong.gguf", target, target_hidden_size=48).path
    reports = [
        examine(open_anything(str(target)), open_anything(str(draft))) for draft in (right, wrong)
    ]
    assert [report.drafters[0].name for report in reports] == ["eagle3", "eagle3"]
    assert [report.drafters[0].works for report in reports] == [True, False]
    assert reports[0].drafters[0].command == f"spec generate -m {target} -md {right}"
    assert reports[0].is_sound
    assert "it reads rows of 48, the model has rows of 64" in reports[1].findings[-1].text
