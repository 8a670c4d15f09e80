"""A trained drafter's file that is misread drafts worse: a test of drafts can fail.

Random drafters cannot show it, because nothing that they draft is accepted in any case. A model of
six layers is too small to show all of it: layers one further on, a base of 1e6, EAGLE-3.1's rows
and a causal block draft as well within its noise. `test_eagle3` holds those to the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draft_dialects import Keys, int32s, rewrite

from nextn.convert.train.draft_figures import acceptance, load, usual_sampling
from nextn.convert.train.python_sources import first_prompts

DATA = Path(__file__).parents[2] / "data"


@cache
def length_of(path: Path) -> float:
    """Tokens of a step."""
    with load([path.stem.split("-")[1]], path) as runtime:
        return acceptance(runtime, first_prompts()[::2], [usual_sampling(runtime, 0)]).length


def keys(**changed: Any) -> Callable[[Keys], Keys]:
    """Keys of the drafter's architecture."""

    def edit(found: Keys) -> Keys:
        arch = str(found["general.architecture"].value)
        return found | {f"{arch}.{name.replace('__', '.')}": v for name, v in changed.items()}

    return edit


def exchanged(first: str, second: str) -> Callable[[str], str]:
    """Two tensors of one shape under each other's names."""
    names = {f"{first}.weight": f"{second}.weight", f"{second}.weight": f"{first}.weight"}
    return lambda name: names.get(name, name)


MISREADINGS: dict[str, tuple[str, Callable[[Keys], Keys], Callable[[str], str]]] = {
    "layers that are left for those that are entered": (
        "eagle3", keys(target_layers=int32s([1, 3, 5])), str
    ),
    "layers in another order": ("eagle3", keys(target_layers=int32s([6, 4, 2])), str),
    "a residual that is not normed": ("eagle3", keys(norm_before_residual=False), str),
    "keys for values": ("eagle3", keys(), exchanged("blk.0.attn_k", "blk.0.attn_v")),
    "gates for what they multiply": (
        "eagle3", keys(), exchanged("blk.0.ffn_gate", "blk.0.ffn_up")
    ),
    "norms of a block exchanged": (
        "dflash", keys(), exchanged("blk.0.attn_norm", "blk.0.ffn_norm")
    ),
    "a window": ("eagle3", keys(
        attention__sliding_window=4, attention__sliding_window_pattern=[True]
    ), str),
    "a block's layers that are left for those that are entered": (
        "dflash", keys(target_layers=int32s([1, 3, 5])), str
    ),
    "a block whose first row predicts": ("dflash", keys(sample_from_anchor=True), str),
    "another base of a block": ("dflash", keys(rope__freq_base=1e6), str),
    "another mask": ("dflash", lambda found: found | {"tokenizer.ggml.mask_token_id": 7}, str),
    "the corrections exchanged": ("dflash", keys(), exchanged("markov_w1", "markov_w2")),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MISREADINGS)
def test_it_drafts_worse(name: str, tmp_path: Path) -> None:
    kind, edit, rename = MISREADINGS[name]
    right = DATA / f"nano-{kind}.gguf"
    wrong = rewrite(right, tmp_path / right.name, edit, rename)
    assert length_of(wrong) < length_of(right)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_the_same_file_drafts_the_same(kind: str, tmp_path: Path) -> None:
    right = DATA / f"nano-{kind}.gguf"
    same = rewrite(right, tmp_path / right.name, keys(), str)
    assert np.isclose(length_of(same), length_of(right))
