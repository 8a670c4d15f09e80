"""DFlash and DSpark: drafts are those of the formulas, the text is that of plain decoding."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.dflash_files import BLOCK, Definition, Kind, write_dflash
from support.drafter_files import table_and_head
from support.eagle3_files import write_eagle3
from support.every_family import EVERY_FAMILY, EVERY_WITH_MTP
from support.network_drafts import (
    GRAMMAR,
    GREEDY,
    N_DRAFT,
    N_MADE,
    N_PROMPT,
    SAMPLED,
    SPEC,
    Tiny,
    drafted_here_and_by_llama_cpp,
    load,
    noted_drafts,
    write,
)
from support.plain_hub_cases import PLAIN_CASES

from nextn.core.errors import ConfigError, ModelError
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions

KINDS = {
    "plain": Kind(),
    "the target's head": Kind(n_head=0, n_taps=3),
    "window": Kind(window=9, shuffled=True),
    "causal": Kind(causal=True, own_embedding=True),
    "gemma": Kind(gemma=True, n_layers=1),
    "dflash2": Kind(kernel=3, top_k=4, shuffled=True),
    "dflash2 of the target's head": Kind(kernel=4, group=32, top_k=3, n_head=0, gemma=True),
    "convolutions alone": Kind(kernel=3),
    "a selector alone": Kind(top_k=7, window=9),
    "dspark": Kind(markov=True, shuffled=True),
    "dspark, the target's head": Kind(markov=True, n_head=0, confidence=True),
    "dspark behind the anchor": Kind(markov=True, anchored=False, confidence=True, gemma=True),
}
OPTIONS = replace(SPEC, types=("dflash",))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_drafts_are_those_of_the_formulas(
    kind: Kind, device: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Whatever was accepted and rejected before."""
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    with load(target, written.path, device, OPTIONS) as runtime:
        drafts, taps = noted_drafts(runtime, "dflash", written.layers)
        ends = sorted(runtime.tokenizer.eog_ids)  # which are not to be drafted here
    definition, n_compared = Definition(written, *table_and_head(target)), 0
    for tokens, made in drafts:
        draft = made.tokens
        want, scores, _ = definition.draft(tokens, taps[: len(tokens) - 1], len(draft))
        best = np.sort(scores, axis=1)
        is_sure = (best[:, -1] - best[:, -2] > 1e-3) & ~np.isin(want, ends)
        sure = int(np.logical_and.accumulate(is_sure).sum())
        assert draft[:sure] == want[:sure]
        n_compared += sure
    assert n_compared > 50


@pytest.mark.parametrize("anchored", [True, False])
def test_confidence_is_the_chance(anchored: bool, tiny: Tiny, tmp_path: Path) -> None:
    """What drafts end by, and what the controller goes by."""
    target = tiny("qwen3").path
    kind = Kind(markov=True, confidence=True, anchored=anchored)
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    definition = Definition(written, *table_and_head(target))
    p_min, found = 0.0, []
    for is_cut in (False, True):
        with load(target, written.path, spec=replace(OPTIONS, draft_p_min=p_min)) as runtime:
            drafts, taps = noted_drafts(runtime, "dflash", written.layers)
        n_cut = 0
        for tokens, draft in drafts:
            n_asked = min(N_DRAFT, N_MADE - (len(tokens) - N_PROMPT) - 1)
            _, _, want = definition.draft(tokens, taps[: len(tokens) - 1], max(n_asked, 1))
            np.testing.assert_allclose(draft.chances, want[: len(draft.tokens)], atol=2e-3)
            n_sure = int(np.logical_and.accumulate(np.array(want) >= p_min).sum())
            assert len(draft.tokens) == min(n_sure, n_asked)
            n_cut += n_sure < n_asked
            found += want
        assert bool(n_cut) == is_cut
        p_min = float(np.median(found))


@pytest.mark.parametrize(
    "family",
    sorted({*EVERY_FAMILY} - {*PLAIN_CASES} | {"olmo2", "cohere2", "granitehybrid", "lfm2"}),
)
def test_it_changes_no_text(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """Alone, with n-grams, and beside the model's own head: two networks at once."""
    has_mtp = family in EVERY_WITH_MTP
    target = tiny(family, mtp=has_mtp).path
    kind = Kind(own_embedding=True, window=9, markov=True, confidence=True)
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    lists = [("dflash",), ("ngram-mod", "dflash")] + [("dflash", "mtp")] * has_mtp
    with load(target, written.path) as runtime:
        drafted: set[str] = set()
        for params, n in ((GREEDY, 1), (SAMPLED, 4), (GRAMMAR, 4)):
            want, _ = write(runtime, params, (), n)
            for types in lists:
                got, sources = write(runtime, params, types, n)
                assert got == want
                drafted |= sources
        assert "dflash" in drafted


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
@pytest.mark.parametrize("kind", [Kind(markov=True), Kind(kernel=3, top_k=4)])
def test_the_controller_and_acceptance_by_ratio(
    family: str, kind: Kind, tiny: Tiny, tmp_path: Path
) -> None:
    target = tiny(family).path
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    with load(target, written.path, spec=replace(SPEC, fixed=False)) as runtime:
        assert runtime.spec_types == ("ngram-mod", "dflash")
        want, _ = write(runtime, SAMPLED, (), 2)
        assert write(runtime, SAMPLED, ("ngram-mod", "dflash"), 2)[0] == want
    with load(target, written.path, spec=replace(OPTIONS, accept="ratio")) as runtime:
        texts, sources = write(runtime, SAMPLED, ("dflash",), 2)
        assert "dflash" in sources
        assert [len(text) for text in texts] == [24, 24]


@pytest.mark.parametrize("kind", [Kind(n_head=1), Kind(n_head=1, markov=True)])
def test_its_own_tokens_are_accepted(kind: Kind, tiny: Tiny, tmp_path: Path) -> None:
    """A target that repeats one token, and a head that has only this one: whole blocks."""
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    assert written.d2t is not None
    only, longest = int(written.d2t[0]), BLOCK - kind.n_unread
    biased = SamplingParams(temperature=0.0, logit_bias=((only, 1000.0),))
    with load(target, written.path, spec=replace(OPTIONS, draft_n_max=16)) as runtime:
        events = list(runtime.generate([1, 2, 3], GenerateParams(biased, max_tokens=40)))
        assert [event.token for event in events] == [only] * 40
        stats = runtime.stats
        assert stats.by_source["dflash"].accepted == stats.draft_n
        assert stats.draft_n >= 39 * longest // (longest + 1)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "plain"),
        ("qwen35", "window"),
        ("qwen3", "dflash2"),
        ("qwen3", "dspark"),
        ("qwen3", "dspark behind the anchor"),
    ],
)
def test_llama_cpp_drafts_and_accepts_the_same(
    family: str, name: str, tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target, kind = tiny(family).path, KINDS[name]
    kind = dataclasses.replace(kind, n_head=max(3, kind.top_k), gemma=False)
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    with capfd.disabled():
        ours, theirs = drafted_here_and_by_llama_cpp(target, written, OPTIONS, 60, 3)
    assert ours == theirs
    assert ours.n_accepted > 0


def test_a_context_is_filled_to_its_end(tiny: Tiny, tmp_path: Path) -> None:
    """The block's masks need cells behind those that the text will have."""
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "d.gguf", target)
    params = GenerateParams(SamplingParams(temperature=0.0), ignore_eos=True)
    with load(target, written.path, spec=OPTIONS) as runtime:
        prompt = [5, 6, 7] * 20
        drafted = [event.token for event in runtime.generate(prompt, params)]
        plain = [event.token for event in runtime.generate(prompt, params, plainly=True)]
        assert drafted == plain
        assert len(plain) >= 160 - len(prompt)


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_networks_in_several_files(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """Beside each other, and beside the model's own head if it has one."""
    has_mtp = family in EVERY_WITH_MTP
    target = tiny(family, mtp=has_mtp).path
    files = [
        write_dflash(tmp_path / "d.gguf", target, Kind(markov=True)).path,
        write_eagle3(tmp_path / "e.gguf", target).path,
    ]
    with load(target, files) as runtime:
        names = ("ngram-mod", "dflash", "eagle3", *["mtp"] * has_mtp)
        assert runtime.spec_types == names
        for params, n in ((GREEDY, 1), (SAMPLED, 4)):
            want, _ = write(runtime, params, (), n)
            got, sources = write(runtime, params, names, n)
            assert got == want
            assert {"dflash", "eagle3"} & sources
            for alone in names[1:]:
                assert write(runtime, params, (alone,), n) == (want, {alone})
    with pytest.raises(ConfigError, match=r"d2.gguf: a DFlash drafter, and so is .*d.gguf; give"):
        load(target, [files[0], Path(shutil.copy(files[0], tmp_path / "d2.gguf"))])


def test_files_of_other_models(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    for keys, message in (
        ({"embedding_length": 32}, "has shape"),
        ({"target_layers": [9]}, "target_layers is [9], expected layers of the model"),
        ({"block_size": 1}, "'dflash.block_size' is 1, expected 2 to 65"),
        ({"block_size": 900}, "'dflash.block_size' is 900, expected 2 to 65"),
        ({"tokenizer.ggml.mask_token_id": 512}, "mask_token_id' is 512"),
        ({"tokenizer.ggml.mask_token_id": None}, "tokenizer.ggml.mask_token_id' is missing"),
        ({"target_hidden_size": 48}, "its target is 48 wide, the model 64"),
        ({"hidden_activation": "tanh"}, "hidden_activation is 'tanh', expected silu or gelu"),
    ):
        written = write_dflash(tmp_path / "d.gguf", target, Kind(own_embedding=True), **keys)
        with pytest.raises(ModelError, match=re.escape(message)) as raised:
            load(target, written.path, spec=OPTIONS)
        assert str(raised.value).startswith(str(written.path))


def test_files_in_wrong_places(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "d.gguf", target)
    with pytest.raises(ConfigError, match="holds only a DFlash drafter, which is for spec-type d"):
        load(target, written.path, spec=SpecOptions(types=("mtp",)))
    assert SpecOptions(types=("draft-dspark", "draft-dflash")).types == ("dflash",)
