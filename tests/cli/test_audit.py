"""`--verify-lossless` on a real model, with real and with broken verification."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.drafters import Toy, repeats

from nextn.cli.app import run
from nextn.core import audit as audit_module
from nextn.core import runtime as runtime_module
from nextn.core.backend.interface import HostOutput
from nextn.core.engine.sequence import Sequence

Capture = pytest.CaptureFixture[str]
PROMPT = "the cat and the dog and the cat and the "


@pytest.fixture
def words(tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    toy = Toy(lambda text, longest: (repeats(text, longest) or text[-1:])[:4])
    monkeypatch.setattr(runtime_module, "build_speculator", lambda _setting: toy)
    model = str(tiny("qwen35").path)
    return ["generate", "-m", model, "-n", "30", "--verify-lossless", "-p", PROMPT]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Verification takes a wrong token at place 7, once. Tells which it should have been."""
    right = Sequence.pick
    fired: list[int] = []

    def wrong(sequence: Sequence, output: HostOutput, row: int) -> int:
        token = right(sequence, output, row)
        if len(sequence.tokens) - sequence.n_prompt == 7 and not fired:
            fired.append(token)
            return (token + 1) % 256
        return token

    monkeypatch.setattr(Sequence, "pick", wrong)
    return lambda: fired[0]


@pytest.mark.parametrize(
    "flags", ["--temp 0", "-s 5 --temp 1.3", '-s 5 --grammar root::=("a"|"the")+']
)
def test_a_sound_run_is_lossless(words: list[str], flags: str, capsys: Capture) -> None:
    assert run([*words, *flags.split()]) == 0
    shown = capsys.readouterr()
    n_tokens = re.search(r"generated  (\d+) tokens", shown.err)
    assert n_tokens is not None
    assert shown.err.endswith(f"lossless: {n_tokens[1]} tokens, logits equal\n")
    assert "drafted    " in shown.err
    text = shown.out
    assert run([*words, *flags.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["lossless"], result["text"]) == (True, text)
    assert result["draft_n"] > 0  # of the first run, not of the second
    assert "difference" not in result


def test_chat_is_audited_too(words: list[str], capsys: Capture) -> None:
    assert run([*words, "--chat", "--chat-template", "chatml", "--temp", "0"]) == 0
    assert "lossless: " in capsys.readouterr().err


def test_a_difference_is_reported(
    words: list[str], broken: Callable[[], int], capsys: Capture
) -> None:
    assert run([*words, "--temp", "0"]) == 1
    shown = capsys.readouterr()
    assert shown.out  # the text had been written
    *_, error, written, plain = shown.err.splitlines()
    found = re.fullmatch(
        r"spec: error: not lossless: token 7 is ('.*'|\".*\") \(source: target\) instead of "
        r"('.*'|\".*\"), although its logits are equal; "
        r"the best token's margin without speculation is ([\d.e-]+)",
        error,
    )
    assert found is not None, error
    assert float(found[3]) > 0
    assert written.startswith("  with speculation  ")
    assert plain.startswith(f"  without           {found[2]} ")
    assert written.split()[2:] == plain.split()[1:]
    best = [float(number) for number in re.findall(r" (-?[\d.]+)(?:  |$)", plain)]
    assert best == sorted(best, reverse=True)
    assert len(best) == 5
    assert float(found[3]) == pytest.approx(best[0] - best[1], abs=1e-5)


def test_a_difference_as_json(words: list[str], broken: Callable[[], int], capsys: Capture) -> None:
    assert run([*words, "--temp", "0", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["lossless"] is False
    found = result["difference"]
    assert found["position"] == 7
    assert found["margin"] > 0
    assert found["without"]["token"] == broken()
    assert found["with_speculation"]["token"] == result["tokens"][7] == (broken() + 1) % 256
    assert found["without"]["top_logits"] == found["with_speculation"]["top_logits"]
    assert found["without"]["top_logits"][0]["token"] == broken()


def test_nothing_is_printed_to_a_quiet_terminal_but_failures(
    words: list[str], broken: Callable[[], int], capsys: Capture
) -> None:
    assert run([*words, "--temp", "0", "-q"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.startswith("spec: error: not lossless: token 7 ")


def test_ctrl_c_ends_the_audit_and_keeps_the_result(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_module, "audit", interrupted)
    assert run([*words, "--temp", "0", "--json"]) == 130
    result = json.loads(capsys.readouterr().out)
    assert (result["stop_reason"], len(result["tokens"])) == ("interrupted", 30)
    assert "lossless" not in result


def test_without_the_flag_nothing_is_audited(
    words: list[str], broken: Callable[[], int], capsys: Capture
) -> None:
    words.remove("--verify-lossless")
    assert run([*words, "--temp", "0", "--json"]) == 0
    assert "lossless" not in json.loads(capsys.readouterr().out)
