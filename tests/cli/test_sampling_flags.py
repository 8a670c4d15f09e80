"""Every sampling flag reaches its parameter, and changes the text that a model writes."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from nextn.cli.app import run
from nextn.core.sampling.params import SamplingParams

Run = Callable[..., subprocess.CompletedProcess[str]]

# Flags, and the parameter that they set with its value.
FLAGS: dict[str, tuple[str, Any]] = {
    "--seed 7": ("seed", 7),
    "--temp 0.25": ("temperature", 0.25),
    "--top-k 3": ("top_k", 3),
    "--top-p 0.5": ("top_p", 0.5),
    "--min-p 0.2": ("min_p", 0.2),
    "--typical 0.6": ("typical_p", 0.6),
    "--top-nsigma 1.5": ("top_n_sigma", 1.5),
    "--xtc-probability 0.75": ("xtc_probability", 0.75),
    "--xtc-threshold 0.2": ("xtc_threshold", 0.2),
    "--dynatemp-range 0.5": ("dynatemp_range", 0.5),
    "--dynatemp-exp 2": ("dynatemp_exponent", 2.0),
    "--repeat-last-n -1": ("repeat_last_n", -1),
    "--repeat-penalty 1.5": ("repeat_penalty", 1.5),
    "--presence-penalty 0.5": ("presence_penalty", 0.5),
    "--frequency-penalty -0.5": ("frequency_penalty", -0.5),
    "--dry-multiplier 0.8": ("dry_multiplier", 0.8),
    "--dry-base 2": ("dry_base", 2.0),
    "--dry-allowed-length 1": ("dry_allowed_length", 1),
    "--dry-penalty-last-n -1": ("dry_penalty_last_n", -1),
    "--dry-sequence-breaker a --dry-sequence-breaker ;": ("dry_sequence_breakers", ["a", ";"]),
    "--adaptive-target 0.5": ("adaptive_target", 0.5),
    "--adaptive-decay 0.5": ("adaptive_decay", 0.5),
    "--mirostat 2": ("mirostat", 2),
    "--mirostat-lr 0.2": ("mirostat_eta", 0.2),
    "--mirostat-ent 4": ("mirostat_tau", 4.0),
    "-l 5+1.5 -l 3-inf -l 5-.5": ("logit_bias", [[3, -math.inf], [5, 1.0]]),
    "--samplers temp;top-k;adaptive_p": ("samplers", ["temperature", "top_k", "adaptive_p"]),
}
ALONE = "--mirostat 2"  # cannot be together with --samplers


def asked(spec: Run, flags: list[str]) -> dict[str, Any]:
    done = spec("generate", "-m", "m.gguf", *flags, "hi", script={"echo": True})
    assert done.returncode == 0, done.stderr
    sampling: dict[str, Any] = json.loads(done.stdout)["params"]["sampling"]
    return sampling


def test_each_flag_sets_its_parameter(spec: Run) -> None:
    together = [word for flags in FLAGS if flags != ALONE for word in flags.split()]
    got = asked(spec, together)
    assert {name: got[name] for name, _ in FLAGS.values() if name != "mirostat"} == {
        name: value for name, value in FLAGS.values() if name != "mirostat"
    }
    got = asked(spec, [*ALONE.split(), "--dry-sequence-breaker", "none"])
    assert (got["mirostat"], got["dry_sequence_breakers"]) == (2, [])
    assert asked(spec, ["--sampling-seq", "kt"])["samplers"] == ["top_k", "temperature"]


def test_every_parameter_has_its_flag() -> None:
    parameters = {field.name for field in fields(SamplingParams)}
    assert parameters - {name for name, _ in FLAGS.values()} == {"min_keep"}  # none in llama.cpp


# Only bytes a and b come up, with about the same probability: much repeats, little is likely.
AB = "-l 97+15 -l 98+15"
DRY = f"{AB} --dry-multiplier 2"
# What must be set before a flag can matter.
NEEDS = {
    "--xtc-probability 0.75": AB,
    "--xtc-threshold 0.2": f"{AB} --xtc-probability 1 --xtc-threshold 0.6",
    "--dynatemp-exp 2": f"{AB} --dynatemp-range 0.7",
    "--repeat-last-n -1": "--repeat-penalty 1.9 --repeat-last-n 2",
    "--dry-multiplier 0.8": AB,
    "--dry-base 2": DRY,
    "--dry-allowed-length 1": DRY,
    "--dry-penalty-last-n -1": f"{DRY} --dry-penalty-last-n 8",
    "--dry-sequence-breaker a --dry-sequence-breaker ;": DRY,
    "--adaptive-target 0.5": f"{AB} --samplers top_k;adaptive_p",
    "--adaptive-decay 0.5": f"{AB} --samplers top_k;adaptive_p --adaptive-target 0.3",
    "--mirostat-lr 0.2": "--mirostat 2",
    "--mirostat-ent 4": "--mirostat 2",
}


@pytest.fixture
def tokens(
    tiny: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[int]]:
    model = str(tiny("llama").path)

    def of(flags: str) -> list[int]:
        words = ["generate", "-m", model, "-q", "--json", "-n", "60", "-s", "3", *flags.split()]
        code = run([*words, "ab ab ab ab the end of ab ab: the end of"])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        made: list[int] = json.loads(shown.out)["tokens"]
        return made

    return of


@pytest.mark.parametrize("flags", FLAGS)
def test_each_flag_changes_the_text(flags: str, tokens: Callable[[str], list[int]]) -> None:
    before = NEEDS.get(flags, "")
    assert tokens(f"{before} {flags}") != tokens(before)


def test_grammars(tokens: Callable[[str], list[int]], tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "grammar").write_text('root ::= "no"\n')
    (tmp_path / "schema").write_text('{"const": 8}')
    assert bytes(tokens("--grammar root::=[y]")[:1]) == b"y"
    assert bytes(tokens(f"--grammar-file {tmp_path / 'grammar'}")[:2]) == b"no"
    assert bytes(tokens('-j {"const":7}')[:1]) == b"7"
    assert bytes(tokens(f"-jf {tmp_path / 'schema'}")[:1]) == b"8"


def test_ends(tokens: Callable[[str], list[int]]) -> None:
    assert len(tokens(f"{AB} -n 50 --ignore-eos")) == 50
    end = "-l 511+30"  # the token that ends a text
    assert tokens(end) == [511]
    assert len(tokens(f"{end} --ignore-eos")) == 60
    assert len(tokens(f"{AB} -r b")) < 60
