"""Drafters in the names of other programs draft the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from support import dflash_files
from support.draft_dialects import (
    DIALECTS,
    Keys,
    dotted,
    draft_keys,
    in_foreign_names,
    int32s,
    rewrite,
    underscored,
    write_dflash,
)
from support.network_drafts import SPEC, Tiny, load, noted_drafts

from nextn.convert.verify import examine, open_anything
from nextn.core.errors import ModelError
from nextn.core.load_runtime import load_runtime


def drafts_of(target: Path, draft: Path, name: str) -> list[tuple[list[int], list[int]]]:
    with load(target, draft, spec=replace(SPEC, types=(name,))) as runtime:
        drafts, _ = noted_drafts(runtime, name, [0])
        return [(tokens, list(made.tokens)) for tokens, made in drafts]


@pytest.mark.parametrize("name", DIALECTS)
def test_it_drafts_the_same(name: str, tiny: Tiny, tmp_path: Path) -> None:
    target, drafter = tiny("qwen3").path, DIALECTS[name].drafter
    written, foreign = in_foreign_names(name, target, tmp_path)
    want = drafts_of(target, written, drafter)
    assert any(tokens for _, tokens in want)
    assert drafts_of(target, foreign, drafter) == want

    report = examine(open_anything(str(target)), open_anything(str(foreign)))
    assert [each.works for each in report.drafters if each.name == drafter] == [True]
    (finding,) = [f for f in report.findings if "spec convert drafter" in f.text]
    assert finding.breaks_llama_cpp


def test_layers_of_gemma_4(tiny: Tiny, tmp_path: Path) -> None:
    """What these files do not say: a cap, GELU, a scale of embeddings and of attention."""
    target = tiny("qwen3").path
    kind = dflash_files.Kind(gemma=True)
    written = dflash_files.write_dflash(tmp_path / "today.gguf", target, kind)
    silent = ("hidden_activation", "embedding_scale", "final_logit_softcapping", "attention.scale")
    usual = {"dflash.hidden_activation": "gelu", "dflash.embedding_scale": 8.0,
             "dflash.final_logit_softcapping": 30.0, "dflash.attention.scale": 1.0}  # fmt: skip
    said = rewrite(written.path, tmp_path / "said.gguf", lambda keys: keys | usual, str)
    of_gemma = draft_keys("gemma4-dflash-draft", with_tokenizer=False)

    def edit(keys: Keys) -> Keys:
        return of_gemma({k: v for k, v in keys.items() if k.removeprefix("dflash.") not in silent})

    foreign = rewrite(said, tmp_path / "foreign.gguf", edit, dotted)
    assert drafts_of(target, foreign, "dflash") == drafts_of(target, said, "dflash")


def test_layers_that_are_counted_otherwise_draft_otherwise(tiny: Tiny, tmp_path: Path) -> None:
    """The comparison above would notice layers that are off by one."""
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "today.gguf", target)
    keys = {"dflash.target_layers": int32s([layer - 1 for layer in written.layers])}
    moved = rewrite(written.path, tmp_path / "moved.gguf", lambda found: found | keys, str)
    assert drafts_of(target, moved, "dflash") != drafts_of(target, written.path, "dflash")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"general.architecture": "deepseek4-dspark"},
            "deepseek4-dspark cannot be run: ",
        ),
        ({"dflash-draft.dflash.laguna": True}, "dflash-draft.dflash.laguna is true; that form of"),
        ({"dflash-draft.dflash.target_layer_ids": None}, "dflash.target_layer_ids' is missing"),
        ({"dflash-draft.dflash.target_layer_ids": int32s([0, 9])}, "target_layers is .1, 10., exp"),
    ],
)
def test_files_that_cannot_be_run(change: Keys, message: str, tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "today.gguf", target)
    of_ik = draft_keys("dflash-draft", with_tokenizer=True)

    def edit(keys: Keys) -> Keys:
        return {key: value for key, value in (of_ik(keys) | change).items() if value is not None}

    foreign = rewrite(written.path, tmp_path / "foreign.gguf", edit, underscored)
    with pytest.raises(ModelError, match=message) as raised:
        load(target, foreign, spec=SPEC)
    assert str(raised.value).startswith(str(foreign))


def test_one_as_the_model(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    written = write_dflash(tmp_path / "today.gguf", target)
    edit = draft_keys("dflash-draft", with_tokenizer=True)
    foreign = rewrite(written.path, tmp_path / "foreign.gguf", edit, underscored)
    with pytest.raises(ModelError, match=r"holds a drafter \(dflash-draft\) for another model"):
        load_runtime(foreign, "cpu")
