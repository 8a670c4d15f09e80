"""Logits of drafters in files are those of their formulas in float64, every switch on and off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import dflash_files, eagle3_files
from support.dflash_files import write_dflash
from support.draft_dialects import DIALECTS, rewrite
from support.draft_logits import block_logits, chained_logits, read_text
from support.drafter_files import table_and_head
from support.eagle3_files import write_eagle3
from support.network_drafts import Tiny
from support.running import random_tokens
from support.vocab import N_VOCAB

# The CPU keeps keys and values as half floats, and the reference as floats.
TOLERANCES = {"torch": 1e-4, "cpu": 5e-3}
TOKENS = random_tokens(30, seed=4, n_vocab=N_VOCAB)
N_DRAFTED = 4
TARGET = "qwen35"  # four layers: five rows that can be tapped

Switches = dict[str, dict[str, Any]]  # what each sets


def each_on_and_off(plain: Any, switches: Switches) -> dict[str, Any]:
    """None, each alone, all, and all but one."""
    everything: dict[str, Any] = {}
    for settings in switches.values():
        everything |= settings
    cases = {"none": plain, "all": replace(plain, **everything)}
    for name, settings in switches.items():
        usual = {field: getattr(plain, field) for field in settings}
        cases[name] = replace(plain, **settings)
        cases[f"all but {name}"] = replace(plain, **everything | usual)
    return cases


EAGLE3 = each_on_and_off(
    eagle3_files.PLAIN,
    {
        "residual": {"norm_before_residual": True},
        "norms of taps": {"fc_norm": True},
        "fed normed": {"norm_output": True},
        "norms of heads": {"head_norms": True},
        "window": {"window": 16},
        "layers": {"n_layers": 2},
        "embedding": {"own_embedding": True},
        "d2t in no order": {"shuffled": True},
        "taps": {"n_taps": 5},
    },
)
EAGLE3 |= {f"{n} taps": eagle3_files.Kind(n_taps=n, fc_norm=True) for n in (1, 2, 4)}
EAGLE3 |= {
    "one norm": eagle3_files.Kind(norm_before_fc=True),
    "one norm and the others": replace(EAGLE3["all but norms of taps"], norm_before_fc=True),
    "narrow": replace(EAGLE3["all"], width=32),
    "the target's head": replace(EAGLE3["all"], n_head=0),
    "latent": eagle3_files.Kind(is_latent=True),
    "latent and the others": replace(EAGLE3["all"], is_latent=True, head_norms=False, window=0),
}
DFLASH = each_on_and_off(
    dflash_files.PLAIN,
    {
        "window": {"window": 9},
        "causal": {"causal": True},
        "of Gemma": {"gemma": True},
        "one layer": {"n_layers": 1},
        "embedding": {"own_embedding": True},
        "d2t in no order": {"shuffled": True},
        "taps": {"n_taps": 3},
        "convolutions": {"kernel": 3},
    },
)
DFLASH |= {
    "the target's head": replace(DFLASH["all"], n_head=0),
    "DFlash2": dflash_files.Kind(kernel=4, group=32, top_k=5),
    "DFlash2 and the others": replace(DFLASH["all"], top_k=5),
    "DFlash2 with the target's head": replace(DFLASH["all"], top_k=5, n_head=0),
    "DFlash2 without convolutions": dflash_files.Kind(top_k=5),
    "DSpark": dflash_files.Kind(markov=True),
    "DSpark behind the anchor": dflash_files.Kind(markov=True, anchored=False),
    "DSpark with confidence": dflash_files.Kind(markov=True, confidence=True),
    "DSpark and the others": replace(DFLASH["all"], markov=True, confidence=True),
    "DSpark with the target's head": replace(DFLASH["all"], markov=True, n_head=0),
}


@pytest.mark.parametrize("kind", EAGLE3.values(), ids=EAGLE3)
@pytest.mark.parametrize("device", TOLERANCES)
def test_eagle3(device: str, kind: eagle3_files.Kind, tiny: Tiny, tmp_path: Path) -> None:
    target = tiny(TARGET).path
    written = write_eagle3(tmp_path / "e.gguf", target, kind)
    assert_eagle3(target, written.path, written, device)


@pytest.mark.parametrize("kind", DFLASH.values(), ids=DFLASH)
@pytest.mark.parametrize("device", TOLERANCES)
def test_dflash(device: str, kind: dflash_files.Kind, tiny: Tiny, tmp_path: Path) -> None:
    target = tiny(TARGET).path
    written = write_dflash(tmp_path / "d.gguf", target, kind)
    assert_dflash(target, written.path, written, device)


@pytest.mark.parametrize("name", DIALECTS)
def test_names_of_other_programs(name: str, tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3").path
    dialect = DIALECTS[name]
    written = dialect.write(tmp_path / "today.gguf", target)
    foreign = rewrite(written.path, tmp_path / "foreign.gguf", dialect.edit, dialect.name)
    if dialect.drafter == "eagle3":
        assert_eagle3(target, foreign, written, "torch")
    else:
        assert_dflash(target, foreign, written, "torch")


def test_a_switch_changes_logits(tiny: Tiny, tmp_path: Path) -> None:
    """By far more than the tolerance."""
    target = tiny(TARGET).path
    plain = write_eagle3(tmp_path / "e.gguf", target, seed=1)
    other = write_eagle3(tmp_path / "o.gguf", target, seed=1, norm_before_residual=True)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_eagle3(target, other.path, plain, "torch")


def assert_eagle3(target: Path, path: Path, written: eagle3_files.Eagle3File, device: str) -> None:
    pair = read_text(target, path, TOKENS, device)
    definition = eagle3_files.Definition(written, *table_and_head(target))
    made, want = definition.draft(TOKENS, pair.features.astype(np.float64), N_DRAFTED)
    is_drafted = np.isfinite(want)  # not so tokens that end a text
    want[~is_drafted] = 0
    got = np.where(is_drafted, in_order(chained_logits(pair, made), written.d2t), 0)
    np.testing.assert_allclose(got, want, atol=TOLERANCES[device], rtol=0)


def assert_dflash(target: Path, path: Path, written: dflash_files.DFlashFile, device: str) -> None:
    pair = read_text(target, path, TOKENS, device)
    definition = dflash_files.Definition(written, *table_and_head(target))
    made, want, sure = definition.draft(TOKENS, pair.features.astype(np.float64), N_DRAFTED)
    logits, chances = block_logits(pair, made)
    is_tie = ~want.any(axis=1)  # of the last candidate of a selector with the next one
    assert not is_tie.all()
    got = in_order(logits, written.d2t)[~is_tie]
    np.testing.assert_allclose(got, want[~is_tie], atol=TOLERANCES[device], rtol=0)
    np.testing.assert_allclose(chances, sure, atol=TOLERANCES[device], rtol=0)


def in_order(logits: Any, d2t: Any) -> Any:
    """In the order of the file's head; a network's is that of the tokens' ids."""
    if d2t is None:
        return logits
    places = np.argsort(np.argsort(d2t))
    return logits[:, places]
