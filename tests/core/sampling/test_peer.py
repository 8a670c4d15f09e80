"""What our samplers leave of a distribution is what llama.cpp's leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.llama_cpp import LlamaCpp

from nextn.core.sampling.candidates import rank
from nextn.core.sampling.draw import Place
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.penalties import Window
from nextn.core.sampling.sampler_chain import Moment, build_sampler_chain

if TYPE_CHECKING:
    from support.tiny_models import TinyModel

pytestmark = pytest.mark.peer

PROMPT = [40, 41, 42, 43, 44, 50, 41, 42, 43, 45, 51, 40, 40, 41, 42, 43]
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "top_k": {"top_k": 13},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "typical": {"typical_p": 0.5},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "temperature": {"temperature": 0.4},
    "dynamic temperature": {"dynatemp_range": 0.6, "dynatemp_exponent": 1.5, "temperature": 0.8},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.004, "min_keep": 1},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": 0.4},
    "a short window": {"frequency_penalty": 1.0, "repeat_last_n": 5},
    "dry": {"dry_multiplier": 0.8, "dry_penalty_last_n": -1},
    "dry, longer": {"dry_multiplier": 0.5, "dry_base": 2.5, "dry_allowed_length": 3},
    "bias": {"logit_bias": ((40, 2.5), (41, -3.0))},
    "the defaults": {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
    "all of them": {
        "top_k": 60, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3, "typical_p": 0.95,
        "top_n_sigma": 3.0, "presence_penalty": 0.3, "dry_multiplier": 0.4, "min_keep": 3,
    },
    "another order": {
        "top_k": 30, "top_p": 0.7, "temperature": 2.0, "min_p": 0.2,
        "samplers": ("temperature", "min_p", "top_p", "top_k"),
    },
    "few in the chain": {"top_k": 5, "min_p": 0.9, "samplers": ("top_k",)},
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tiny: Callable[..., TinyModel]) -> Iterator[LlamaCpp]:
    with LlamaCpp(tiny("llama").path) as loaded:
        yield loaded


def ask(llama: LlamaCpp, **more: Any) -> dict[str, Any]:
    """The distribution of one token. Bytes that wait for the rest of a character are left out of
    the answer, so another seed has to find another token."""
    body = {"prompt": PROMPT, "n_predict": 1, "n_probs": 512, "cache_prompt": False, **more}
    answers = (llama._post("completion", body | {"seed": seed}) for seed in range(50))
    found: dict[str, Any] = next(
        answer["completion_probabilities"][0]
        for answer in answers
        if "completion_probabilities" in answer
    )
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_same_tokens_with_the_same_probabilities(
    name: str, llama: LlamaCpp, capfd: pytest.CaptureFixture[str]
) -> None:
    how = {**OFF, **CASES[name]}
    theirs = dict(how)
    if "samplers" in how:
        theirs["samplers"] = list(how["samplers"])
    if "logit_bias" in how:
        theirs["logit_bias"] = [list(pair) for pair in how["logit_bias"]]
    theirs.update(dry_sequence_breakers=["\n"])
    if how.get("dry_penalty_last_n") == -1:
        theirs["dry_penalty_last_n"] = 1000  # newer versions no longer have a word for "all"
    with capfd.disabled():
        every = ask(llama, temperature=1.0)["top_logprobs"]
        left = ask(llama, post_sampling_probs=True, **theirs)["top_probs"]
    logits = np.full(512, -np.inf, np.float32)
    for top in every:
        logits[top["id"]] = top["logprob"]
    assert np.isfinite(logits).all()
    params = SamplingParams(**how)
    window = Window(params.repeat_last_n)
    window.extend(PROMPT)
    moment = Moment(Place(0, 0, 0), np.array(PROMPT), window, MappingProxyType({}))
    ours = rank(build_sampler_chain(params).run(logits, moment))
    chances = np.exp(ours.logits - ours.logits[0])
    chances /= chances.sum()
    found = {top["id"]: top["prob"] for top in left}
    assert set(found) == set(ours.ids.tolist())
    for token, chance in zip(ours.ids.tolist(), chances.tolist(), strict=True):
        assert found[token] == pytest.approx(chance, rel=2e-4)
    if name not in ("nothing", "bias", "presence", "frequency"):
        assert left != ask(llama, post_sampling_probs=True, **OFF)["top_probs"]
