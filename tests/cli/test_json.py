"""`--json`, `--jsonl` and `--logprobs`: what programs read."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from nextn.cli.app import run

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]
GENERATE = ("generate", "-m", "m.gguf", "-s", "9")
SPECULATED = {
    "pieces": ["a", "b", "c"],
    "sources": ["target", "mtp"],
    "stats": {
        "draft_n": 4, "draft_n_accepted": 3, "accept_per_pos": [2, 1], "draft_per_pos": [2, 2],
    },
    "by_source": {"mtp": [4, 3, 1.5]},
    "spec_types": ["ngram-mod", "mtp"],
}  # fmt: skip


def lines(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_one_object_with_the_names_of_the_contract(spec: Run) -> None:
    done = spec(*GENERATE, "--json", "hi", script=SPECULATED)
    assert done.returncode == 0
    assert lines(done.stdout) == [
        {
            "text": "abc",
            "tokens": [0, 0, 0],
            "stop_reason": "limit",
            "prompt_n": 3,
            "prompt_ms": 2.0,
            "predicted_n": 3,
            "predicted_ms": 4.0,
            "prompt_per_second": 1500.0,
            "predicted_per_second": 750.0,
            "load_ms": 12.0,
            "cached_n": 0,
            "drafts": 0,
            "accept_mode": "match",
            "relaxed_n": 0,
            "draft_n": 4,
            "draft_n_accepted": 3,
            "steps": 3,
            "mean_accept_len": 1.0,
            "accept_per_pos": [2, 1],
            "draft_per_pos": [2, 2],
            "by_source": {"mtp": {"drafted": 4, "accepted": 3, "ms": 1.5}},
            "model": "m.gguf",
            "device": "cpu",
            "seed": 9,
            "spec_types": ["ngram-mod", "mtp"],
        }
    ]
    assert done.stderr.endswith("stopped    limit, seed 9\n")


def test_jsonl_is_an_event_per_token_and_then_that_object(spec: Run) -> None:
    shown = spec(*GENERATE, "--jsonl", "hi", script=SPECULATED).stdout
    *events, last = lines(shown)
    assert events == [
        {"token": 0, "text": "a", "source": "target"},
        {"token": 0, "text": "b", "source": "mtp"},
        {"token": 0, "text": "c", "source": "target"},
    ]
    assert [last] == lines(spec(*GENERATE, "--json", "hi", script=SPECULATED).stdout)


def test_json_escapes_what_would_end_its_line(spec: Run) -> None:
    done = spec(*GENERATE, "--json", "hi", script={"pieces": ['"\n\\日', "\x1b"]})
    assert done.stdout.count("\n") == 1
    assert lines(done.stdout)[0]["text"] == '"\n\\日\x1b'


def test_logprobs_name_tokens_by_id_text_and_bytes(spec: Run) -> None:
    script = {"pieces": ["x"]}
    best = [
        {"token": 0, "text": "\ufffd", "bytes": [0xC3], "logprob": -0.5},
        {"token": 7, "text": "piece 7", "bytes": list(b"piece 7"), "logprob": None},
    ]
    own = {"token": 0, "text": "\ufffd", "bytes": [0xC3], "logprob": -1.0}
    for wanted in (0, 1, 2):
        flags = ("--jsonl", "--logprobs", str(wanted))
        event, last = lines(spec(*GENERATE, *flags, "hi", script=script).stdout)
        assert last["logprobs"] == [own | {"top_logprobs": best[:wanted]}]
        assert (event["logprob"], event["top_logprobs"]) == (-1.0, best[:wanted])


def test_a_failure_prints_no_object(spec: Run) -> None:
    for flag, n_lines in (("--json", 0), ("--jsonl", 2)):
        done = spec(*GENERATE, flag, "hi", script={"error": "ModelError"})
        assert (done.returncode, done.stdout.count("\n")) == (1, n_lines)
        assert done.stderr.startswith("spec: error: it broke")


def test_ctrl_c_still_prints_the_object(
    fake_command: list[str], fake_environment: Callable[..., dict[str, str]]
) -> None:
    process = subprocess.Popen(
        [*fake_command, *GENERATE, "--jsonl", "hi"],
        env=fake_environment({"wait": True}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    assert process.stdout is not None
    # An event is there as soon as its token is.
    assert [json.loads(process.stdout.readline())["text"] for _ in range(2)] == ["Hello", " world"]
    process.send_signal(signal.SIGINT)
    last = json.loads(process.stdout.read())
    assert process.wait(timeout=120) == 130
    assert (last["text"], last["stop_reason"]) == ("Hello world", "interrupted")


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_a_real_model_on_each_device(
    tiny: Callable[..., Any], capsys: Capture, device: str
) -> None:
    model = str(tiny("qwen35").path)
    words = ["generate", "-m", model, "--device", device, "-n", "6", "--temp", "0", "-q"]
    assert run([*words, "--json", "--logprobs", "3", "hello"]) == 0
    [result] = lines(capsys.readouterr().out)
    assert result["model"] == model
    assert result["device"].startswith(device)
    assert result["predicted_n"] == len(result["tokens"]) == len(result["logprobs"]) == 6
    assert result["prompt_n"] > 0
    assert result["load_ms"] > 0
    for token, each in zip(result["tokens"], result["logprobs"], strict=True):
        tops = each["top_logprobs"]
        assert each["token"] == token == tops[0]["token"]  # greedy takes the best
        assert each["logprob"] == tops[0]["logprob"] >= tops[1]["logprob"] >= tops[2]["logprob"]
        assert math.exp(each["logprob"]) <= 1
    assert run([*words, "hello"]) == 0
    assert capsys.readouterr().out == result["text"]
