"""llama.cpp's `/completion`: what its clients read."""

from __future__ import annotations

import math
from threading import Event, Thread
from typing import Any

import pytest
from support.serving import HANGS_S, Server, nano_server, running

PROMPT = "def add(a, b):\n"
GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "n_predict": 20}
WHOLE = GREEDY | {"ignore_eos": True}  # to the limit, whatever the model would write


def test_what_an_answer_holds(server: Server) -> None:
    done = server.post("/completion", **WHOLE)
    assert done["stop"] is True
    assert (done["stop_type"], done["stopping_word"], done["truncated"]) == ("limit", "", False)
    assert done["tokens_predicted"] == 20
    assert done["tokens_evaluated"] == len(server.post("/tokenize", prompt=PROMPT)["tokens"])
    assert done["tokens"] == []
    assert done["model"] == "nano.gguf"
    assert done["prompt"].endswith(PROMPT)
    assert 0 <= done["id_slot"] < 4
    assert done["generation_settings"]["temperature"] == 0
    assert done["generation_settings"]["n_predict"] == 20
    timings = done["timings"]
    assert timings["predicted_n"] == 20
    assert timings["prompt_n"] + timings["cache_n"] == done["tokens_evaluated"]
    assert timings["predicted_per_second"] > 0
    assert "completion_probabilities" not in done


def test_a_stream(server: Server) -> None:
    whole = server.post("/completion", return_tokens=True, n_probs=3, **WHOLE)
    events = server.events("/completion", n_probs=3, timings_per_token=True, **WHOLE)
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    told = [entry for event in events for entry in event["completion_probabilities"]]
    assert told == whole["completion_probabilities"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert all("timings" in event for event in events)
    assert events[-1]["tokens_predicted"] == 20
    counts = [event["tokens_predicted"] for event in events]
    assert counts == sorted(counts)


def test_probabilities_behind_the_samplers(server: Server) -> None:
    """By hand from those before them, as no filter but top-k and the temperature is on."""
    plain: dict[str, Any] = {"min_p": 0, "top_p": 1, "seed": 3, "n_predict": 12}
    body = {"prompt": PROMPT, **plain, "temperature": 0.7, "top_k": 4, "n_probs": 9}
    before = server.post("/completion", **body)["completion_probabilities"]
    done = server.post("/completion", **body, post_sampling_probs=True)
    assert done["generation_settings"]["post_sampling_probs"] is True
    told = done["completion_probabilities"]
    assert len(told) == 12
    for old, new in zip(before, told, strict=True):
        assert set(new) == {"id", "token", "bytes", "prob", "top_probs"}
        assert {name: new[name] for name in ("id", "token", "bytes")} == {
            name: old[name] for name in ("id", "token", "bytes")
        }
        assert [each["id"] for each in new["top_probs"]] == [
            each["id"] for each in old["top_logprobs"][:4]
        ]
        weights = [math.exp(each["logprob"] / 0.7) for each in old["top_logprobs"][:4]]
        chances = [weight / sum(weights) for weight in weights]
        assert [each["prob"] for each in new["top_probs"]] == pytest.approx(chances)
        assert (new["id"], new["prob"]) in [(each["id"], each["prob"]) for each in new["top_probs"]]
    events = server.events("/completion", **body, post_sampling_probs=True)
    assert [each for event in events for each in event["completion_probabilities"]] == told


def test_a_greedy_token_is_certain_behind_the_samplers(server: Server) -> None:
    told = server.post("/completion", **GREEDY, n_probs=5, post_sampling_probs=True)
    for entry in told["completion_probabilities"]:
        assert entry["prob"] == 1
        assert [(each["id"], each["prob"]) for each in entry["top_probs"]] == [(entry["id"], 1)]
    without = server.post("/completion", **GREEDY, post_sampling_probs=True)
    assert "completion_probabilities" not in without


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_progress(server: Server, path: str) -> None:
    text = "a = 1\nb = 2\n" * 150
    body: dict[str, Any] = {"prompt": text, "messages": [{"role": "user", "content": text}]}
    events = server.events(path, return_progress=True, max_tokens=2, cache_prompt=False, **body)
    told = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    assert len(told) > 2
    assert [each["processed"] for each in told] == sorted(each["processed"] for each in told)
    assert all(each["total"] == told[0]["total"] for each in told)


def test_smaller_pieces_of_a_prompt() -> None:
    """--batch-size: more steps, each of whole pages of 64 tokens, and the same text."""
    body = {"prompt": "a = 1\nb = 2\n" * 30, "max_tokens": 8, "n_probs": 2, "seed": 1}
    found = []
    for n_batch, piece in ((None, 256), (65, 128), (1, 64)):
        with running(nano_server(how={"n_batch": n_batch})) as server:
            events = server.events("/completion", return_progress=True, **body)
        progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        processed = [each["processed"] for each in progress]
        total = progress[0]["total"]
        assert processed == [*range(0, total, piece), total]
        found.append([e.get("completion_probabilities") for e in events if e.get("content")])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_progress_of_a_short_prompt_is_its_start_and_its_end(server: Server, path: str) -> None:
    body: dict[str, Any] = {"prompt": "a = 1", "messages": [{"role": "user", "content": "a = 1"}]}
    events = server.events(path, return_progress=True, timings_per_token=True, max_tokens=1, **body)
    first, last = (event for event in events if "prompt_progress" in event)
    assert first["prompt_progress"]["processed"] == first["prompt_progress"]["cache"]
    assert last["prompt_progress"]["processed"] == last["prompt_progress"]["total"]
    if path == "/completion":
        assert first["timings"]["prompt_n"] == first["timings"]["prompt_ms"] == 0
        assert last["timings"]["prompt_n"] > 0 < last["timings"]["prompt_ms"]


def test_fields_of_the_response(server: Server) -> None:
    fields = ["content", "timings/predicted_n", "generation_settings/top_k", "nothing"]
    done = server.post("/completion", response_fields=fields, **GREEDY)
    assert set(done) == {"content", "timings/predicted_n", "generation_settings/top_k"}


def test_the_end_of_text_is_among_the_biases_of_ignore_eos(server: Server) -> None:
    for ignores in (True, False):
        done = server.post("/completion", ignore_eos=ignores, **GREEDY)
        biases = done["generation_settings"]["logit_bias"]
        assert bool(biases) == ignores
        assert all(each["bias"] is None for each in biases)  # -inf


def test_a_rate_is_over_the_steps_after_the_first_token(server: Server) -> None:
    one = server.post("/completion", prompt="a", n_predict=1)["timings"]
    assert (one["predicted_per_second"], one["predicted_per_token_ms"]) == (0, 0)
    many = server.post("/completion", prompt="a", n_predict=9, ignore_eos=True)["timings"]
    assert many["predicted_per_second"] == pytest.approx(8000 / many["predicted_ms"])


def test_kinds_of_prompts(server: Server) -> None:
    ids = server.post("/tokenize", prompt=PROMPT)["tokens"]
    text = server.post("/completion", **GREEDY)["content"]
    assert server.post("/completion", **GREEDY | {"prompt": ids})["content"] == text
    rest = server.post("/tokenize", content=PROMPT[3:])["tokens"]
    mixed = server.post("/completion", **GREEDY | {"prompt": [ids[0], "def", *rest]})
    assert (mixed["content"], mixed["tokens_evaluated"]) == (text, len(ids))
    several = server.post("/completion", **GREEDY | {"prompt": [PROMPT, ids, "a = "]})
    assert [each["index"] for each in several] == [0, 1, 2]
    assert [each["content"] == text for each in several] == [True, True, False]


def test_nothing_to_write(server: Server) -> None:
    """The prompt is read into the cache, for later."""
    prompt = "# something that nobody has asked before\n" * 8
    done = server.post("/completion", prompt=prompt, n_predict=0)
    assert (done["content"], done["tokens_predicted"]) == ("", 0)
    later = server.post("/completion", prompt=prompt + "x", n_predict=1)
    assert later["timings"]["cache_n"] > 50


def test_a_full_context_and_one_more(server: Server) -> None:
    n_ctx = server.get("/props")["default_generation_settings"]["n_ctx"]
    done = server.post("/completion", prompt=[300] * (n_ctx - 3), ignore_eos=True)
    assert done["tokens_predicted"] == 3
    assert (done["stop_type"], done["truncated"]) == ("limit", True)
    assert server.post("/completion", prompt=[300] * (n_ctx - 1))["tokens_predicted"] == 1
    for n in (n_ctx, n_ctx + 1):
        status, error = server.refused("/completion", {"prompt": [300] * n})
        assert (status, error["type"]) == (400, "exceed_context_size_error")
        assert "exceeds the available context size" in error["message"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (n, n_ctx)


def test_a_grammar(server: Server) -> None:
    grammar = 'root ::= ("yes" | "no") "\\n"'
    done = server.post("/completion", **GREEDY, grammar=grammar)
    assert done["content"] in ("yes\n", "no\n")
    assert done["stop_type"] == "eos"


def test_time_runs_out(server: Server) -> None:
    """The limit holds once there is a newline, which a random text may lack for long."""
    newline = [[token, 30] for token in server.post("/tokenize", content="\n")["tokens"]]
    done = server.post(
        "/completion", prompt=PROMPT, n_predict=3000, t_max_predict_ms=1, ignore_eos=True,
        logit_bias=newline,
    )  # fmt: skip
    assert done["stop_type"] == "limit"
    assert 0 < done["tokens_predicted"] < 3000


def test_characters_that_tokens_split(server: Server) -> None:
    """Streamed text is whole characters, always."""
    ids = server.post("/tokenize", content="€é😀")["tokens"]
    bias = [[token, 30] for token in set(ids)]
    body: dict[str, Any] = {"prompt": PROMPT, "logit_bias": bias, "n_predict": 30, "seed": 4}
    whole = server.post("/completion", **body)
    events = server.events("/completion", **body)
    assert "".join(event["content"] for event in events) == whole["content"]
    assert sum(len(event["tokens"]) for event in events) == 30


def test_tokens_and_text(server: Server) -> None:
    text = "def f(x):\n    return 'é€😀'\n"
    tokens = server.post("/tokenize", content=text)["tokens"]
    assert server.post("/detokenize", tokens=tokens)["content"] == text
    pieces = server.post("/tokenize", content=text, with_pieces=True)["tokens"]
    raw = b"".join(
        piece.encode() if isinstance(piece := each["piece"], str) else bytes(piece)
        for each in pieces
    )
    assert raw.decode() == text
    assert [each["id"] for each in pieces] == tokens
    as_prompt = server.post("/tokenize", prompt=text)
    assert as_prompt["tokens"] == [server.runtime.tokenizer.bos_id, *tokens]
    assert as_prompt["count"] == len(tokens) + 1


def test_the_template(server: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    prompt = server.post("/apply-template", messages=messages)["prompt"]
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    chat = server.post("/v1/chat/completions", messages=messages, max_tokens=9, temperature=0)
    plain = server.post("/completion", prompt=prompt, n_predict=9, temperature=0)
    assert chat["choices"][0]["message"]["content"] == plain["content"]


def test_what_the_server_says_of_itself(server: Server) -> None:
    props = server.get("/props")
    assert props["total_slots"] == 4
    assert props["chat_template"]
    slots = server.get("/slots")
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    model = server.get("/v1/models")["data"][0]
    assert model["root"] == model["id"]
    assert model["meta"]["n_params"] > 7e6
    assert model["meta"]["size"] > 7e6
    assert model["max_model_len"] == model["context_length"] == slots[0]["n_ctx"]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_who_drafted_each_token(eager: Server, path: str) -> None:
    body: dict[str, Any] = {"return_sources": True, "temperature": 0, "max_tokens": 40}
    body["ignore_eos"] = True
    body |= {"prompt": "x = 1\n" * 20, "messages": [{"role": "user", "content": "x = 1\n" * 9}]}
    done = eager.post(path, **body)
    told = done if path == "/completion" else done["choices"][0]
    sources, timings = told["sources"], done["timings"]
    assert len(sources) == timings["predicted_n"] == 40
    assert len(sources) - sources.count("target") == timings["draft_n_accepted"] > 0
    assert set(sources) <= {"target", "mtp", "ngram-mod"}
    events = [event for event in eager.events(path, **body) if event != "[DONE]"]
    parts = [e if path == "/completion" else c for e in events for c in e.get("choices", [e])]
    parts = [part for part in parts if "sources" in part]
    assert all(len(part["sources"]) == len(part["tokens"]) for part in parts)
    sources = [source for part in parts for source in part["sources"]]
    assert len(sources) == 40
    timings = next(event["timings"] for event in events if "timings" in event)
    assert len(sources) - sources.count("target") == timings["draft_n_accepted"]


def test_a_large_request_stops_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut into tokens beside the loop: others are answered until that has ended."""
    tokenizer = server.runtime.tokenizer
    encode, is_cutting, may_cut = tokenizer.encode, Event(), Event()

    def wait_and_encode(*args: Any, **more: Any) -> list[int]:
        is_cutting.set()
        may_cut.wait(HANGS_S)
        return encode(*args, **more)

    monkeypatch.setattr(tokenizer, "encode", wait_and_encode)
    body = {"prompt": "some words and 1234 numbers\n" * 10_000, "n_predict": 1}
    found: list[Any] = []
    asking = Thread(target=lambda: found.append(server.request("POST", "/completion", body)))
    asking.start()
    assert is_cutting.wait(HANGS_S)
    for _ in range(3):
        assert server.get("/health") == {"status": "ok"}
    assert not found
    may_cut.set()
    asking.join()
    assert "exceeds the available context size" in found[0][1]["error"]["message"]


def test_an_endless_prompt_is_not_cut_into_tokens(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.runtime.tokenizer, "encode", None)
    status, error = server.refused("/completion", {"prompt": "some words\n" * 500_000})
    assert (status, error["type"]) == (400, "exceed_context_size_error")


def test_rules_of_acceptance(eager: Server) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "temperature": 0.9, "seed": 5, "n_predict": 40}
    plain = eager.post("/completion", speculative=False, **body)["content"]
    match = eager.post("/completion", speculative={"accept": "match"}, **body)["content"]
    assert match == plain
    ratio = eager.post("/completion", speculative={"accept": "ratio"}, **body)
    assert ratio["tokens_predicted"] > 0
    status, error = eager.refused("/completion", {**body, "speculative": {"accept": "relaxed"}})
    assert status == 400
    assert "thinking" in error["message"]


def test_drafts_in_any_case(server: Server) -> None:
    """At every step but the last, whatever the server has measured; the text is the same."""
    body = {"prompt": "xyzzy: 8271 ", "n_predict": 30, "temperature": 0, "ignore_eos": True}
    plain = server.post("/completion", **body, speculative=False)
    spec = {"fixed": True, "types": "mtp", "n_max": 3}
    fixed = server.post("/completion", **body, speculative=spec, return_sources=True)
    assert fixed["content"] == plain["content"]
    steps = fixed["sources"].count("target")
    assert fixed["timings"]["draft_n"] >= 3 * (steps - 3)
    status, error = server.refused("/completion", {**body, "speculative": {"fixed": "yes"}})
    assert status == 400
    assert "speculative.fixed" in error["message"]
