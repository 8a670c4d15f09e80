"""`spec speculative-simple`: the text of `generate`, and the figures of llama.cpp's example."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.drafters import Toy, knows, repeats

from nextn.cli import console
from nextn.cli.app import run
from nextn.core.errors import ConfigError
from nextn.core.speculation import build
from nextn.core.speculation.setting import Setting

Capture = pytest.CaptureFixture[str]
PROMPT = "the cat and the dog and the cat and the "


class Toys(dict[str, Toy]):
    """ngram-simple drafts what came after the last two tokens before; ngram-mod knows the text,
    if it was told, but for the third token of each draft."""

    truth: list[int]

    def make(self, name: str, setting: Setting) -> Toy:
        self[name] = Toy(self.repeat if name == "ngram-simple" else self.know, name)
        return self[name]

    def repeat(self, text: list[int], longest: int) -> list[int]:
        return repeats(text, min(longest, 6), 2)

    def know(self, text: list[int], longest: int) -> list[int]:
        return knows(self.truth or text * 2, 2)(text, min(longest, 6))


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., Any], capsys: Capture) -> Toys:
    made = Toys()
    monkeypatch.setattr(build, "make_speculator", made.make)
    made.truth = []
    how = ("--temp", "0", "-q", PROMPT)
    assert run(words(tiny, "generate", "--spec-type", "none", "--json", *how)) == 0
    written = json.loads(capsys.readouterr().out)["tokens"]
    assert run(words(tiny, "speculative-simple", "--spec-type", "ngram-mod", *how)) == 0
    capsys.readouterr()
    made.truth = made["ngram-mod"].begun[0] + written
    return made


def words(tiny: Callable[..., Any], command: str, *flags: str, n: int = 40) -> list[str]:
    model = str(tiny("qwen35").path)
    return [command, "-m", model, "-n", str(n), *flags]


@pytest.mark.parametrize("flags", ["--temp 0", "-s 5", "-s 6 --temp 1.4 --repeat-penalty 1.1"])
def test_the_text_is_that_of_generate(
    flags: str, tiny: Callable[..., Any], toys: Toys, capsys: Capture
) -> None:
    how = (*flags.split(), "-p", PROMPT)
    assert run(words(tiny, "generate", "--spec-type", "none", *how)) == 0
    want = capsys.readouterr().out
    for types in ("ngram-mod", "ngram-simple,ngram-mod", "none"):
        assert run(words(tiny, "speculative-simple", "--spec-type", types, *how)) == 0
        assert capsys.readouterr().out == want
    assert toys["ngram-mod"].settled
    assert (toys["ngram-mod"].n_ended, toys["ngram-mod"].n_closed) == (1, 1)


def test_the_figures(tiny: Callable[..., Any], toys: Toys, capsys: Capture) -> None:
    types = ("--spec-type", "ngram-simple,ngram-mod", "--spec-draft-n-max", "5")
    assert run(words(tiny, "speculative-simple", *types, "--temp", "0", PROMPT)) == 0
    shown = capsys.readouterr().err
    seconds = r"tokens in +\d+\.\d{3} seconds, speed: +\d+\.\d{3} t/s"
    found = re.fullmatch(
        rf"encoded +(\d+) {seconds}\n"
        rf"decoded   40 {seconds}\n"
        r"n_draft   = 5\n"
        r"n_predict = 40\n"
        r"n_drafted = (\d+)\n"
        r"n_accept  = (\d+)\n"
        r"accept    = (\d+\.\d{3})%\n"
        r"statistics ngram-simple: (.*)\n"
        r"statistics ngram-mod: (.*)\n"
        r"load \d+\.\d\d ms, prompt \d+\.\d\d ms, (\d+) passes of the target \d+\.\d\d ms, "
        r"all \d+\.\d\d ms\n",
        shown,
    )
    assert found is not None, shown
    n_drafted, n_accepted, n_passes = int(found[2]), int(found[3]), int(found[7])
    assert float(found[4]) == pytest.approx(100 * n_accepted / n_drafted, abs=1e-3)
    assert n_passes + n_accepted == 40
    assert n_accepted > 10
    each = [
        re.search(
            r"#calls\(b,g,a\) = 1 (\d+) (\d+), #gen drafts = \2, #acc drafts = \d+, "
            r"#gen tokens = (\d+), #acc tokens = (\d+)",
            line,
        )
        for line in (found[5], found[6])
    ]
    figures = [list(map(int, one.groups())) for one in each if one is not None]
    assert [sum(column) for column in zip(*figures, strict=True)][2:] == [n_drafted, n_accepted]
    assert figures[1][0] == figures[0][0] - figures[0][1]  # asked where the first has no draft
    assert "dur(b,g,a) = " in found[5]


def test_a_random_seed_is_printed(tiny: Callable[..., Any], capsys: Capture) -> None:
    none = ("--spec-type", "none")
    assert run(words(tiny, "speculative-simple", *none, "-p", PROMPT, n=9)) == 0
    shown = capsys.readouterr()
    seed = re.search(r"^seed      = (\d+)$", shown.err, re.MULTILINE)
    assert seed is not None
    assert run(words(tiny, "speculative-simple", *none, "-s", seed[1], "-p", PROMPT, n=9)) == 0
    assert capsys.readouterr().out == shown.out


def test_a_text_that_ends_early_is_counted(tiny: Callable[..., Any], capsys: Capture) -> None:
    """n_predict, too, is what was written: here up to the end of the context."""
    context = ("--spec-type", "ngram-simple", "-c", "30", "--ignore-eos")
    assert run(words(tiny, "speculative-simple", *context, "-p", "ab", n=99)) == 0
    shown = capsys.readouterr().err
    assert "decoded   28 tokens" in shown
    assert "n_predict = 28\n" in shown


def test_no_drafts_are_no_division_by_zero(tiny: Callable[..., Any], capsys: Capture) -> None:
    assert run(words(tiny, "speculative-simple", "--spec-type", "none", "x", n=3)) == 0
    assert "accept    = nothing was drafted\n" in capsys.readouterr().err


@pytest.mark.parametrize("n", [1, 2, 7])
def test_c7_not_a_token_more_than_asked_for(
    n: int, tiny: Callable[..., Any], toys: Toys, capsys: Capture
) -> None:
    flags = ("--spec-type", "ngram-mod", "--temp", "0", PROMPT)
    assert run(words(tiny, "speculative-simple", *flags, n=n)) == 0
    assert f"decoded {n:4} tokens" in capsys.readouterr().err
    assert all(1 <= longest < n for longest in toys["ngram-mod"].asked)


def test_b10_long_prompts_and_speculators_that_fail(
    tiny: Callable[..., Any],
    toys: Toys,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B10: a prompt had to fit into one batch, and what went wrong at the start was not caught."""
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT * 30)
    flags = ("--temp", "0", "-f", str(file), "-c", "2000")
    assert run(words(tiny, "generate", "--spec-type", "none", *flags)) == 0
    want = capsys.readouterr().out
    assert run(words(tiny, "speculative-simple", "--spec-type", "ngram-mod", *flags)) == 0
    assert capsys.readouterr().out == want

    def fail(name: str, setting: Setting) -> Toy:
        raise ConfigError("spec-type mtp: this file has no head")

    monkeypatch.setattr(build, "make_speculator", fail)
    for command in ("speculative-simple", "generate"):
        assert run(words(tiny, command, "--spec-type", "mtp", "x")) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == (
            "",
            "spec: error: --spec-type mtp: this file has no head\n",
        )


def test_a_prompt_that_leaves_no_room(tiny: Callable[..., Any], capsys: Capture) -> None:
    assert run(words(tiny, "speculative-simple", "--spec-type", "none", "-c", "4", PROMPT)) == 1
    assert "exceeds the available context size of 4" in capsys.readouterr().err


def test_the_context_ends_the_text(tiny: Callable[..., Any], toys: Toys, capsys: Capture) -> None:
    flags = ("--ignore-eos", "--temp", "0", "-c", "64", "-p", PROMPT)
    for command in ("generate", "speculative-simple"):
        assert run(words(tiny, command, "--spec-type", "none", *flags, n=-1)) == 0
    _, made = capsys.readouterr().err.split("stopped    context")
    found = re.search(r"encoded +(\d+) .*\ndecoded +(\d+) ", made)
    assert found is not None
    assert int(found[1]) + int(found[2]) == 64


def test_color_shows_what_was_drafted(
    tiny: Callable[..., Any],
    toys: Toys,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ("--spec-type", "ngram-mod", "--temp", "0", "-q", PROMPT)
    assert run(words(tiny, "speculative-simple", *flags)) == 0
    plain = capsys.readouterr().out
    assert run(words(tiny, "speculative-simple", "--color", *flags[:-2], PROMPT)) == 0
    shown = capsys.readouterr()
    assert shown.out == plain
    assert "--color shows nothing here" in shown.err
    monkeypatch.setattr(console, "_has_colours", lambda _stream: True)
    assert run(words(tiny, "speculative-simple", "--color", *flags)) == 0
    coloured = capsys.readouterr().out
    green = re.findall(r"\x1b\[32m(.*?)\x1b\[0m", coloured, re.DOTALL)
    assert green
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain
