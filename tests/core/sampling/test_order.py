"""The two spellings of the samplers' order, and the chain that comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import ConfigError
from nextn.core.sampling.order import (
    DEFAULT_ORDER,
    LETTERS,
    parse_samplers,
    parse_sampling_seq,
)
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler_chain import build_sampler_chain

LLAMA_CPP = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
ALL_ON = {
    "top_n_sigma": 2.0, "typical_p": 0.9, "xtc_probability": 0.5, "dry_multiplier": 0.8,
    "repeat_penalty": 1.1, "top_p": 0.9, "min_p": 0.1, "top_k": 9,
}  # fmt: skip


def test_the_default_is_llama_cpps() -> None:
    assert parse_samplers(LLAMA_CPP) == DEFAULT_ORDER == SamplingParams().samplers
    assert parse_sampling_seq("edskypmxt") == DEFAULT_ORDER


@pytest.mark.peer
def test_the_default_is_that_of_the_installed_llama_cpp() -> None:
    import xllamacpp

    theirs = xllamacpp.CommonParams().sampling
    ours = SamplingParams()
    assert parse_samplers(theirs.samplers) == ours.samplers
    names = {"repeat_penalty": "penalty_repeat", "repeat_last_n": "penalty_last_n",
             "presence_penalty": "penalty_present", "frequency_penalty": "penalty_freq",
             "temperature": "temp", "typical_p": "typ_p"}  # fmt: skip
    mine_only = {"seed", "top_n_sigma", "dry_sequence_breakers", "logit_bias", "samplers"}
    for name in set(SamplingParams.__struct_fields__) - mine_only:
        assert getattr(ours, name) == pytest.approx(getattr(theirs, names.get(name, name))), name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ()),
        (" ; ", ()),
        ("top-k; temp", ("top_k", "temperature")),
        ("nucleus;typical;typ-p;typical-p", ("top_p", "typ_p", "typ_p", "typ_p")),
        ("min-p;adaptive-p;top-n-sigma", ("min_p", "adaptive_p", "top_n_sigma")),
    ],
)
def test_other_spellings(text: str, wanted: tuple[str, ...]) -> None:
    assert parse_samplers(text) == wanted


@given(st.lists(st.sampled_from(list(LETTERS)), max_size=12))
def test_letters_and_names_say_the_same(letters: list[str]) -> None:
    names = tuple(LETTERS[letter] for letter in letters)
    assert parse_sampling_seq("".join(letters)) == names == parse_samplers(";".join(names))


@pytest.mark.parametrize("text", ["top_q", "top_k top_p", "infill", "é" * 500, "top_k;" * 65])
def test_unknown_names_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_samplers(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_unknown_letters_are_refused() -> None:
    with pytest.raises(ConfigError, match="no sampler 'z'"):
        parse_sampling_seq("ktz")
    with pytest.raises(ConfigError, match="at most 64"):
        parse_sampling_seq("k" * 65)
    with pytest.raises(ConfigError, match="no sampler 'bogus'"):
        SamplingParams(samplers=("top_k", "bogus"))


@given(st.permutations(DEFAULT_ORDER))
def test_the_chain_has_the_order_asked_for(order: list[str]) -> None:
    params = SamplingParams(samplers=tuple(order), **ALL_ON)  # type: ignore[arg-type]
    assert build_sampler_chain(params).names == tuple(order)


def test_what_is_off_or_not_listed_is_not_in_the_chain() -> None:
    assert build_sampler_chain(SamplingParams()).names == ("top_k", "top_p", "min_p", "temperature")
    assert build_sampler_chain(SamplingParams(samplers=("min_p",))).names == ("min_p",)
    off = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)
    assert build_sampler_chain(off).names == ()


def test_mirostat_takes_the_place_of_all_but_the_temperature() -> None:
    assert build_sampler_chain(SamplingParams(mirostat=2, **ALL_ON)).names == ("temperature",)  # type: ignore[arg-type]
