"""Whatever else the server does: a request's text is the same."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.serving import Server

PROMPTS = [
    "def add(a, b):\n",
    "import os\n\ndef read_file(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "for i in range(10):\n    print(",
    "# Sort a list of numbers\ndef sort(numbers):\n",
    "x = [1, 2, 3]\ny = [",
    "def fibonacci(n):\n    if n",
    "try:\n    value = int(text)\nexcept",
]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 11},
    {"temperature": 1.2, "seed": 3, "repeat_penalty": 1.1, "min_p": 0.0},
]
STEERED = {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.4}
AFTER_SAMPLING: list[dict[str, Any]] = [
    *WAYS,
    {"temperature": 0.8, "seed": 5, "mirostat": 2, "mirostat_tau": 3},
    {"temperature": 0.8, "seed": 6, **STEERED},
    {"temperature": 1, "seed": 7, "dry_multiplier": 0.8, "xtc_probability": 0.5},
    {"temperature": 0.9, "seed": 8, "grammar": "root ::= [a-f \\n]+"},
]


def write(server: Server, prompt: str, **how: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 48, "return_tokens": True, "n_probs": 2, **how}
    found: dict[str, Any] = server.post("/completion", **body)
    return found


def essence(done: dict[str, Any]) -> Any:
    return done["tokens"], done["content"], done["completion_probabilities"]


@pytest.mark.parametrize("how", WAYS)
def test_speculation_changes_nothing(eager: Server, how: dict[str, Any]) -> None:
    server = eager
    n_drafted = 0
    for prompt in PROMPTS:
        plain = write(server, prompt, speculative={"off": True}, cache_prompt=False, **how)
        assert plain["timings"]["draft_n"] == 0
        for spec in ({}, {"types": "mtp", "n_max": 3}, {"types": ["ngram-mod"]}, {"n_min": 2}):
            done = write(server, prompt, speculative=spec, **how)
            assert essence(done) == essence(plain)
            n_drafted += done["timings"].get("draft_n", 0)
    assert n_drafted > 100


@pytest.mark.parametrize("how", AFTER_SAMPLING)
def test_nor_what_tokens_were_drawn_from(eager: Server, how: dict[str, Any]) -> None:
    n_drafted = 0
    for prompt in ("x = 1\ny = 2\n" * 8, PROMPTS[0]):
        ask = {**how, "post_sampling_probs": True, "n_probs": 100}
        plain = write(eager, prompt, speculative=False, cache_prompt=False, **ask)
        for spec in ({}, {"types": "mtp", "n_max": 4}, {"types": "ngram-mod"}):
            done = write(eager, prompt, speculative=spec, **ask)
            assert essence(done) == essence(plain)
            n_drafted += done["timings"].get("draft_n_accepted", 0)
        for entry in plain["completion_probabilities"]:
            chances = {each["id"]: each["prob"] for each in entry["top_probs"]}
            assert 0 < entry["prob"] == chances.get(entry["id"], entry["prob"])
            assert list(chances.values()) == sorted(chances.values(), reverse=True)
            assert min(chances.values()) > 0
            whole = sum(chances.values())
            assert whole == pytest.approx(1) or (len(chances) == 100 and whole < 1)
    assert n_drafted > 5


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("which", ["server", "eager"])
@pytest.mark.slow
def test_others_change_nothing(
    which: str, how: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Eight at once, on four slots, streamed and not."""
    server: Server = request.getfixturevalue(which)
    alone = [write(server, prompt, cache_prompt=False, **how) for prompt in PROMPTS]

    def ask(i: int) -> Any:
        if i % 3 == 2:
            events = server.events("/completion", prompt=PROMPTS[i % 8], n_predict=48, **how)
            return "".join(event["content"] for event in events)
        return write(server, PROMPTS[i % 8], **how)["content"]

    order = list(range(24))
    random.Random(5).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(order, pool.map(ask, order), strict=True))
    assert [found[i] for i in range(24)] == [alone[i % 8]["content"] for i in range(24)]


def test_a_chat_of_ten_turns(server: Server) -> None:
    """As people talk: defaults, the cache on. The same again without the cache."""
    texts: list[list[str]] = []
    cached = 0
    for with_cache in (True, False):
        messages: list[dict[str, str]] = []
        told: list[str] = []
        for turn in range(10):
            messages.append({"role": "user", "content": f"Write function number {turn}."})
            done = server.post(
                "/v1/chat/completions", messages=messages, temperature=0.7, seed=turn,
                max_tokens=40, cache_prompt=with_cache,
                **({} if with_cache else {"speculative": False}),
            )  # fmt: skip
            told.append(done["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": told[-1]})
            n = done["usage"]["prompt_tokens_details"]["cached_tokens"]
            cached += n
            assert with_cache or n == 0
        texts.append(told)
    assert texts[0] == texts[1]
    assert cached > 500


def test_what_one_user_wrote_is_not_drafted_for_another(eager: Server) -> None:
    """By `cache_salt`: the n-grams of an earlier answer are its owner's."""

    def drafted(salt: str) -> int:
        body = {"prompt": "class Stack:", "n_predict": 80, "temperature": 0, "cache_salt": salt}
        body["speculative"] = {"types": "ngram-mod"}
        timings = eager.post("/completion", **body)["timings"]
        return int(timings.get("draft_n_accepted", 0))

    first = drafted("one")
    assert drafted("two") == first
    assert drafted("one") > first


def test_parts_of_a_text_are_drafted_for_as_they_want(server: Server) -> None:
    """A model that marks no thoughts says so; what cannot be is refused by name."""
    body = {"prompt": "x", "n_predict": 2}
    status, error = server.refused(
        "/completion", body | {"speculative": {"thinking": {"off": True}}}
    )
    assert status == 400
    assert "open and close" in error["message"]
    same = {"n_max": 3, "thinking": {"n_max": 3}, "answer": {}}
    assert server.post("/completion", **body, speculative=same)["tokens_predicted"] == 2
    for odd, name in (({"thinking": 3}, "speculative.thinking"),
                      ({"answer": {"accept": "ratio"}}, "speculative.answer.accept")):  # fmt: skip
        assert server.refused("/completion", body | {"speculative": odd})[1]["param"] == name
