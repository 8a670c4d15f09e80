"""Configurations as people spell them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.bench.variants import common_options, distinct, parse_variant
from nextn.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("none", {"types": ("none",)}),
        ("auto", {"types": ("auto",)}),
        ("mtp:n=3", {"types": ("mtp",), "draft_n_max": 3, "fixed": False}),
        ("mtp:n=3,fixed", {"draft_n_max": 3, "fixed": True}),
        (" mtp , ngram-mod : n = 4 , p = 0.5 ",
         {"types": ("ngram-mod", "mtp"), "draft_p_min": 0.5}),
        ("draft-mtp:min=1,vocab=full,prefill=9",
         {"types": ("mtp",), "draft_n_min": 1, "draft_vocab": "full", "mtp_prefill": 9}),
        ("mtp:accept=ratio", {"accept": "ratio"}),
        ("mtp:accept=relaxed:5,0.3,always,n=2",
         {"accept": "relaxed:5,0.3,always", "draft_n_max": 2}),
        ("mtp:n=3,synth=2.5", {"synth_len": 2.5}),
    ],
)  # fmt: skip
def test_what_it_comes_to(text: str, wanted: dict[str, Any]) -> None:
    variant = parse_variant(text)
    assert {name: getattr(variant.options, name) for name in wanted} == wanted
    assert variant.name == text.strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mpt", "did you mean mtp"),
        ("", "unknown"),
        ("mtp:n=x", "n= needs a whole number, got 'x'"),
        ("mtp:mim=1", "did you mean min="),
        ("mtp:n=1,n=2", "has n twice"),
        ("mtp:n", "'n' is not a setting"),
        ("mtp:", "'' is not a setting"),
        ("none:n=1", "nothing to set"),
        ("mtp:n=65", "between 0 and 64"),
        ("mtp:n=0", "n=0 drafts nothing"),
        ("auto:n=0", "n=0 drafts nothing"),
        ("mtp:fixed,costs=f", "costs have no use"),
        ("mtp:accept=ratio,synth=2", "exclude each other"),
        ("none,mtp", "cannot be combined"),
    ],
)
def test_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_variant(text)


@given(st.text() | st.from_regex(r"(mtp|auto|none|x)(:[a-z=,.0-9:]{0,12})?", fullmatch=True))
def test_nothing_else_is_raised(text: str) -> None:
    with suppress(ConfigError):
        parse_variant(text)


def test_what_repeats_and_what_is_lossless(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    for text, repeats, lossless in (
        ("none", True, True),
        ("auto", False, True),
        ("mtp:n=3", False, True),
        ("mtp:n=3,fixed", True, True),
        (f"auto:costs={costs}", False, True),  # the file is not there: it will be written
        ("mtp:accept=ratio,fixed", True, False),
        ("mtp:n=3,synth=2,fixed", True, False),
    ):
        variant = parse_variant(text)
        assert (variant.repeats, variant.is_lossless) == (repeats, lossless), text
    costs.write_text("{}")
    assert parse_variant(f"auto:costs={costs}").repeats


def test_flags_for_all() -> None:
    assert parse_variant("mtp:n=3", fixed=True).options.fixed
    assert parse_variant("none", fixed=True).is_plain
    assert parse_variant("auto", costs="f").options.costs == "f"
    assert parse_variant("auto:costs=g", costs="f").options.costs == "g"


def test_the_same_twice() -> None:
    found = distinct([parse_variant(text) for text in ("none", "mtp", "none", "none")])
    assert [variant.name for variant in found] == ["none", "mtp", "none#2", "none#3"]


@pytest.mark.parametrize(
    ("texts", "types", "longest"),
    [
        (["none"], ("none",), 3), (["none", "mtp:n=5"], ("mtp",), 16),
        (["none", "auto"], ("auto",), 16), (["mtp:n=40", "ngram-mod"], ("ngram-mod", "mtp"), 40),
    ],
)  # fmt: skip
def test_one_runtime_for_all(texts: list[str], types: tuple[str, ...], longest: int) -> None:
    options = common_options([parse_variant(text) for text in texts])
    assert options.types == types
    assert options.n_max >= longest
